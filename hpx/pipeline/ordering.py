"""Which listed pass must run before which, and why; and an order that keeps to it.

1. A pass that provides a fact runs before each pass that requires it. Of a pass listed several
   times, those listed before the requirer do (the first one, when none is).
2. A pass runs before the passes that its ``before`` names and after those that ``after`` names.
3. Instances of one pass run in the order they are listed in.
4. A pass that invalidates a fact never stands between the one that provides it and the one that
   requires it: it runs after the requirer, or before a provider. Of the two, the way that keeps it
   and the requirer as they are listed is taken, when the other rules allow it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from hpx.errors import PipelineError
from hpx.pipeline.info import Fact, Pass, PassInfo

if TYPE_CHECKING:
    import networkx as nx

    Graph: TypeAlias = nx.DiGraph[int]

__all__ = [
    "Edge",
    "Listed",
    "chain_text",
    "declared_edges",
    "edges_graph",
    "label_passes",
    "providers",
    "sort",
    "sorted_facts",
]


@dataclass(frozen=True)
class Listed:
    """A pass at its place in the listed order, with the name that tells instances apart."""

    index: int
    name: str
    pass_: Pass

    @property
    def info(self) -> PassInfo:
        """What the pass declares."""
        return self.pass_.info


@dataclass(frozen=True)
class Edge:
    """``first`` must run before ``then``, because of ``why``."""

    first: Listed
    then: Listed
    why: str


def sorted_facts(facts: Iterable[Fact]) -> list[Fact]:
    """Facts by name: sets have no order of their own, and messages need one."""
    return sorted(facts, key=lambda fact: fact.name)


def label_passes(passes: Sequence[Pass]) -> list[Listed]:
    """The passes with their names; a pass listed several times is ``name#1``, ``name#2``."""
    names = [pass_.info.name for pass_ in passes]
    labels = [
        f"{name}#{names[: index + 1].count(name)}" if names.count(name) > 1 else name
        for index, name in enumerate(names)
    ]
    return [Listed(index, labels[index], pass_) for index, pass_ in enumerate(passes)]


def providers(listed: Sequence[Listed], requirer: Listed, fact: Fact) -> list[Listed]:
    """The listed passes that must provide ``fact`` before ``requirer`` runs (rule 1).

    A pass that itself requires the fact only keeps it, and is no provider.
    """
    able = [one for one in listed if fact in one.info.provides - one.info.requires]
    chosen = []
    for one in able:
        earlier = one.index < requirer.index
        same = [other for other in able if other.info.name == one.info.name]
        none_earlier = same[0].index > requirer.index
        if earlier or (none_earlier and one is same[0]):
            chosen.append(one)
    return chosen


def declared_edges(listed: Sequence[Listed]) -> list[Edge]:
    """The edges of rules 1 to 3."""
    edges = []
    for then in listed:
        for fact in sorted_facts(then.info.requires):
            edges += [
                Edge(first, then, f"{first.name} provides {fact}")
                for first in providers(listed, then, fact)
            ]
        for first in listed:
            if then.info.name in first.info.before:
                edges.append(Edge(first, then, f"{first.name} asks to run before {then.name}"))
            if first.info.name in then.info.after:
                edges.append(Edge(first, then, f"{then.name} asks to run after {first.name}"))
            if first.info.name == then.info.name and first.index < then.index:
                edges.append(Edge(first, then, f"{first.name} is listed first"))
    return edges


def sort(listed: Sequence[Listed]) -> tuple[list[Listed], list[Edge]]:
    """An order that keeps to all four rules, as near to the listed one as they allow; its edges.

    Raises:
        PipelineError: There is none; prints a cycle as a chain.
    """
    import networkx as nx

    edges = declared_edges(listed)
    graph = edges_graph(listed, edges)
    if not nx.is_directed_acyclic_graph(graph):
        raise _cycle(graph, edges)
    settled = _Settler(listed, edges).settle()
    graph = edges_graph(listed, settled)
    order = nx.lexicographical_topological_sort(graph, key=lambda index: index)
    return [listed[index] for index in order], settled


def edges_graph(listed: Sequence[Listed], edges: Sequence[Edge]) -> Graph:
    """The edges as a networkx graph over the listed positions."""
    import networkx as nx

    graph: Graph = nx.DiGraph()
    graph.add_nodes_from(one.index for one in listed)
    graph.add_edges_from((edge.first.index, edge.then.index) for edge in edges)
    return graph


def chain_text(edges: Sequence[Edge]) -> str:
    """Edges as a reader follows them: ``a must run before b (reason); b must ...``."""
    return "; ".join(
        f"{edge.first.name} must run before {edge.then.name} ({edge.why})" for edge in edges
    )


class _Settler:
    """Decides rule 4 for each invalidating pass and requirer, going back where it got stuck."""

    def __init__(self, listed: Sequence[Listed], edges: list[Edge]) -> None:
        self._listed = listed
        self._edges = edges
        self._stuck: PipelineError | None = None

    def settle(self) -> list[Edge]:
        found = self._search(self._edges, _invalidation_choices(self._listed))
        if found is None:
            assert self._stuck is not None  # a search that finds nothing got stuck somewhere
            raise self._stuck
        return found

    def _search(self, edges: list[Edge], pending: list[list[Edge]]) -> list[Edge] | None:
        from networkx import has_path

        graph = edges_graph(self._listed, edges)

        def leads(edge: Edge, forward: bool) -> bool:
            ends = (edge.first.index, edge.then.index)
            return has_path(graph, *(ends if forward else reversed(ends)))

        pending = [way for way in pending if not any(leads(edge, True) for edge in way)]
        if not pending:
            return edges
        possible = [[edge for edge in way if not leads(edge, False)] for way in pending]
        # The choice with the fewest ways first: what is forced is not worth a guess.
        at = min(range(len(pending)), key=lambda place: len(possible[place]))
        if not possible[at]:
            self._note_stuck([*edges, pending[at][0]])
            return None
        rest = pending[:at] + pending[at + 1 :]
        for edge in possible[at]:
            if (found := self._search([*edges, edge], rest)) is not None:
                return found
        return None

    def _note_stuck(self, edges: list[Edge]) -> None:
        # The first dead end is the one nearest to what was listed.
        if self._stuck is None:
            self._stuck = _cycle(edges_graph(self._listed, edges), edges)


def _invalidation_choices(listed: Sequence[Listed]) -> list[list[Edge]]:
    """For each invalidating pass and requirer the edges of which one must hold, preferred first."""
    found = []
    for requirer in listed:
        for fact in sorted_facts(requirer.info.requires):
            sources = providers(listed, requirer, fact)
            found += [
                _ways(breaker, fact, sources, requirer)
                for breaker in listed
                if breaker is not requirer and fact in breaker.info.invalidates
            ]
    return found


def _ways(breaker: Listed, fact: Fact, sources: list[Listed], requirer: Listed) -> list[Edge]:
    broken = f"{breaker.name} invalidates {fact}"
    later = Edge(requirer, breaker, f"{broken}, which {requirer.name} requires")
    earlier = [
        Edge(breaker, source, f"{broken}, which {source.name} provides for {requirer.name}")
        for source in reversed(sources)
    ]
    return [*earlier, later] if breaker.index < requirer.index else [later, *earlier]


def _cycle(graph: Graph, edges: Sequence[Edge]) -> PipelineError:
    import networkx as nx

    paths = [
        nx.shortest_path(graph, then, first)
        for first, then in graph.edges
        if nx.has_path(graph, then, first)
    ]
    path = min(paths, key=lambda path: (len(path), path))
    ring = list(zip(path, [*path[1:], path[0]], strict=True))
    by_ends = {(edge.first.index, edge.then.index): edge for edge in reversed(edges)}
    return PipelineError(
        "these passes have no order",
        why=chain_text([by_ends[ends] for ends in ring]),
        fix="drop one of them, or mend what they declare",
    )
