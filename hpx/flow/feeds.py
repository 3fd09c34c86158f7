"""What tracing found, and its edges in a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from hpx.flow.edges import Point
from hpx.graph.graph import ModuleGraph

__all__ = ["Feeds", "add_feeds"]


@dataclass(frozen=True)
class Feeds:
    """What tracing found.

    Attributes:
        points: Registered module paths in the order in which they run, each with the numbers of
            the points before it that it takes something from.
        how: ``export``, ``fx``, or None where the model could not be traced.
        why: Why there are no edges, or what is not in them.
    """

    points: tuple[Point, ...]
    how: Literal["export", "fx"] | None
    why: str = ""

    def __str__(self) -> str:
        if self.how is None:
            return f"dataflow is not traced: {self.why}"
        way = "torch.export" if self.how == "export" else "torch.fx"
        rest = f"; {self.why}" if self.why else ""
        return f"{len(self.edges)} dataflow edges by {way}{rest}"

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """Pairs (from, to) of paths, each once."""
        return tuple(
            dict.fromkeys(
                (self.points[origin][0], path)
                for path, origins in self.points
                for origin in origins
                if self.points[origin][0] != path
            )
        )


def add_feeds(graph: ModuleGraph, found: Feeds) -> None:
    """Put what flows into a graph, and in ``hints["dataflow"]`` how they were found."""
    ids = {path: graph.find(path) for path in {path for path, _ in found.points}}
    graph.flow = tuple(
        (-1 if ids[path] is None else cast(int, ids[path]), origins)
        for path, origins in found.points
    )
    graph.hints["dataflow"] = str(found)
