"""Ties of folded graphs: the names on both ends, of all that a group stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpx.graph.fold import FoldedGraph
from hpx.graph.graph import ModuleGraph
from hpx.ranges import fold_names

__all__ = ["TieNames", "below_shared", "tie_names"]


@dataclass(frozen=True)
class TieNames:
    """What the groups of a folded graph are tied to, numbers folded.

    Attributes:
        further: By group, the further names of its nodes.
        first: By group of further names, the first names of their nodes.
    """

    further: Mapping[int, tuple[str, ...]]
    first: Mapping[int, tuple[str, ...]]


def tie_names(folded: FoldedGraph, owner: Mapping[int, int]) -> TieNames:
    """The names on the other ends of all ties.

    Args:
        folded: The groups.
        owner: The group of every node, as `FoldedGraph.owner_of` says.
    """
    graph = folded.graph
    further: dict[int, list[str]] = {}
    first: dict[int, list[str]] = {}
    for node_id, index in owner.items():
        node = graph.nodes[node_id]
        for parent, name in node.more:
            further.setdefault(index, []).append(graph.edge_path(parent, name))
            above = owner.get(parent)
            place = None if above is None else folded.child_at(above, name)
            if place is not None:
                first.setdefault(place, []).append(graph.path(node_id))
    return TieNames(_folded(further), _folded(first))


def _folded(names: Mapping[int, list[str]]) -> dict[int, tuple[str, ...]]:
    return {index: tuple(fold_names(dict.fromkeys(found))) for index, found in names.items()}


def below_shared(graph: ModuleGraph) -> set[int]:
    """The modules that have several names, and all below them: their tensors have several, too."""
    found: set[int] = set()
    for node in graph.modules():
        if node.more or node.parent in found:
            found.add(node.id)
    return found
