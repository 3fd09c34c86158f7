"""What tracing found, and its edges in a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from hpx.graph.graph import ModuleGraph

__all__ = ["Feeds", "add_feeds"]


@dataclass(frozen=True)
class Feeds:
    """What tracing found.

    Attributes:
        edges: Pairs (from, to) of registered module paths, in the order in which they run.
        how: ``export``, ``fx``, or None where the model could not be traced.
        why: Why there are no edges, or what is not in them.
    """

    edges: tuple[tuple[str, str], ...]
    how: Literal["export", "fx"] | None
    why: str = ""

    def __str__(self) -> str:
        if self.how is None:
            return f"dataflow is not traced: {self.why}"
        way = "torch.export" if self.how == "export" else "torch.fx"
        rest = f"; {self.why}" if self.why else ""
        return f"{len(self.edges)} dataflow edges by {way}{rest}"


def add_feeds(graph: ModuleGraph, found: Feeds) -> None:
    """Put edges into a graph, and in ``hints["dataflow"]`` how they were found."""
    pairs: dict[tuple[int, int], None] = {}
    for origin, target in found.edges:
        ends = graph.find(origin), graph.find(target)
        if None not in ends and ends[0] != ends[1]:
            pairs.setdefault(cast(tuple[int, int], ends))
    graph.feeds = tuple(pairs)
    graph.hints["dataflow"] = str(found)
