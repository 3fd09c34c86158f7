"""What a static check looks at, and how it tells what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple, TypeAlias

from hpx.errors import Numbers
from hpx.graph.graph import ModuleGraph
from hpx.mesh import MeshSpec
from hpx.pipeline.context import Problem
from hpx.plan import ShardingPlan

__all__ = ["Level", "Question", "Subject", "Told", "problems_of"]

Level: TypeAlias = Literal["error", "warning", "info"]


class Subject(NamedTuple):
    """A graph with layouts, and the request that led to them."""

    graph: ModuleGraph
    plan: ShardingPlan
    mesh: MeshSpec

    @property
    def tp(self) -> int:
        """The size of the tensor parallel axis; 1 where there is none."""
        return self.mesh.size("tp", 1)


class Told(NamedTuple):
    """One thing that a check found about one node, or about the whole model."""

    level: Level
    node: int | None
    text: str
    hint: str = ""
    numbers: Numbers = ()


Question: TypeAlias = Callable[[Subject], Iterator[Told]]
"""A static check: it reads, and tells; it never raises."""


def problems_of(told: Iterable[Told], check: str = "") -> list[Problem]:
    """One problem for all nodes of which the same is told, in the order of the first of each."""
    nodes: dict[Told, list[int]] = {}
    for one in told:
        found = nodes.setdefault(one._replace(node=None), [])
        if one.node is not None:
            found.append(one.node)
    return [
        Problem(one.level, tuple(ids), one.text, one.hint, check, one.numbers)
        for one, ids in nodes.items()
    ]
