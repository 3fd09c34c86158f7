"""The order that a pipeline runs in, why, and the proof that it holds.

``schedule`` is pure: passes in, ``Schedule`` out, nothing is run. The order comes from what the
passes declare (see ``ordering``), is as near to the listed one as that allows, and is proved by a
replay of the facts with every invalidation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hpx.errors import HpxError, ManyErrors, PipelineError, did_you_mean
from hpx.pipeline import registry
from hpx.pipeline.info import Fact, Pass
from hpx.pipeline.ordering import (
    Edge,
    Listed,
    chain_text,
    declared_edges,
    edges_graph,
    label_passes,
    providers,
    sort,
    sorted_facts,
)

__all__ = ["Schedule", "ScheduleEdge", "Step", "schedule"]

_ORDERS: Final = ("auto", "given")


@dataclass(frozen=True)
class Step:
    """One pass at its place in the order.

    Attributes:
        index: 1 for the first step; 0 is the graph at entry.
        pass_: The pass.
        name: Its name, with ``#1``, ``#2`` when it is listed several times.
        because: Why it runs no earlier, and where what it requires comes from.
    """

    index: int
    pass_: Pass
    name: str
    because: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScheduleEdge:
    """``first`` runs before ``then`` because of ``why``; both are names of steps."""

    first: str
    then: str
    why: str


@dataclass(frozen=True)
class Schedule:
    """An order of passes that keeps to what they declare.

    Attributes:
        steps: The passes in the order they run in.
        edges: What must run before what, for pictures.
        warnings: Pairs of steps that write one key with no order between them.
        assumed: Facts that must hold at entry though nobody has looked (entry unknown).
        facts_at_entry: What holds before the first step, assumed facts included.
        facts_after: What holds after each step, one set per step.
    """

    steps: tuple[Step, ...]
    edges: tuple[ScheduleEdge, ...]
    warnings: tuple[str, ...]
    assumed: tuple[str, ...]
    facts_at_entry: frozenset[str]
    facts_after: tuple[frozenset[str], ...]

    def to_json(self) -> list[dict[str, object]]:
        """The steps as a saved run holds them."""
        return [
            {"step": step.index, "pass": step.name, "because": list(step.because)}
            for step in self.steps
        ]


def schedule(
    passes: Sequence[Pass],
    entry_facts: Collection[str] | None,
    order: Literal["auto", "given"] = "auto",
    *,
    providers_of: Callable[[str], list[str]] = registry.providers_of,
) -> Schedule:
    """Put passes in the order that their declarations ask for, and prove it.

    Args:
        passes: As they are listed.
        entry_facts: Names of the facts that hold at entry. None: there is no model to look at, and
            what nobody provides is assumed.
        order: ``auto`` sorts, ``given`` keeps the listed order and refuses it where it is wrong.
        providers_of: Names the passes that provide a fact; asked for a message only.

    Raises:
        PipelineError: Passes conflict, a fact is missing, there is no order, or the given one is
            wrong. ManyErrors when several facts are missing.
    """
    if order not in _ORDERS:
        raise PipelineError(
            f"there is no order {order!r}", fix=did_you_mean(order, _ORDERS) or "auto or given"
        )
    listed = label_passes(passes)
    _refuse_conflicts(listed)
    unprovided = _unprovided(listed)
    at_entry = frozenset(unprovided if entry_facts is None else entry_facts)
    _refuse_missing(listed, at_entry, providers_of)
    ordered, edges = sort(listed) if order == "auto" else _given(listed)
    facts_after = _replay(ordered, at_entry)
    entry_word = "is assumed at entry" if entry_facts is None else "holds at entry"
    steps = tuple(
        Step(index, one.pass_, one.name, _because(one, listed, edges, entry_word))
        for index, one in enumerate(ordered, 1)
    )
    return Schedule(
        steps=steps,
        edges=tuple(ScheduleEdge(edge.first.name, edge.then.name, edge.why) for edge in edges),
        warnings=_ambiguous(ordered, edges) if order == "auto" else (),
        assumed=tuple(unprovided) if entry_facts is None else (),
        facts_at_entry=at_entry,
        facts_after=facts_after,
    )


def _refuse_conflicts(listed: Sequence[Listed]) -> None:
    for one in listed:
        for other in listed:
            if other.info.name in one.info.conflicts:
                raise PipelineError(
                    f"{one.name} and {other.name} cannot be in one pipeline",
                    why=f"{one.info.name} declares a conflict with {other.info.name}",
                    fix=f"drop one: !{one.info.name} or !{other.info.name}",
                )


def _unprovided(listed: Sequence[Listed]) -> list[str]:
    """Required facts that no listed pass provides, in the order they are first required."""
    found = {
        fact.name: None
        for one in listed
        for fact in sorted_facts(one.info.requires)
        if not providers(listed, one, fact)
    }
    return list(found)


def _refuse_missing(
    listed: Sequence[Listed], at_entry: frozenset[str], providers_of: Callable[[str], list[str]]
) -> None:
    breakers = _breakers(listed)
    findings: list[HpxError] = []
    for one in listed:
        for fact in sorted_facts(one.info.requires):
            if providers(listed, one, fact):
                continue
            if fact.name not in at_entry:
                why = "it does not hold at entry and no listed pass provides it"
            elif breaker := breakers(one, fact):
                why = f"{breaker.name} runs before it and invalidates it, and no listed pass"
                why += " provides it again"
            else:
                continue
            findings.append(_missing(one, fact, why, providers_of(fact.name)))
    if len(findings) > 1:
        raise ManyErrors(f"the pipeline lacks {len(findings)} required facts", findings)
    if findings:
        raise findings[0]


def _breakers(listed: Sequence[Listed]) -> Callable[[Listed, Fact], Listed | None]:
    """Who invalidates a fact and has to run before the one that requires it, if anybody."""
    found = [one for one in listed if one.info.invalidates]
    if not found:
        return lambda *_: None
    import networkx as nx

    graph = edges_graph(listed, declared_edges(listed))
    if not nx.is_directed_acyclic_graph(graph):
        return lambda *_: None  # the cycle is told instead

    def breaker(requirer: Listed, fact: Fact) -> Listed | None:
        for one in found:
            before = one is not requirer and nx.has_path(graph, one.index, requirer.index)
            if before and fact in one.info.invalidates:
                return one
        return None

    return breaker


def _missing(one: Listed, fact: Fact, why: str, able: list[str]) -> PipelineError:
    if able:
        fix = f"add {' or '.join(able)}, which provides it"
    else:
        fix = "no registered pass provides it: register one, or start from a model where it holds"
    return PipelineError(f"{one.name} requires {fact}", why=why, fix=fix)


def _given(listed: list[Listed]) -> tuple[list[Listed], list[Edge]]:
    edges = declared_edges(listed)
    if wrong := [edge for edge in edges if edge.first.index > edge.then.index]:
        raise PipelineError(
            "the given order is wrong",
            why=chain_text(wrong),
            fix="list them so, or let hpx sort them with order auto",
        )
    return listed, edges


def _replay(ordered: Sequence[Listed], at_entry: frozenset[str]) -> tuple[frozenset[str], ...]:
    facts = at_entry
    lost: dict[str, Listed] = {}
    after = []
    for one in ordered:
        for fact in sorted_facts(one.info.requires):
            if fact.name not in facts:
                raise _lost(one, fact, lost[fact.name])
        invalidated = {fact.name for fact in one.info.invalidates}
        lost.update(dict.fromkeys(invalidated & facts, one))
        facts = (facts - invalidated) | {fact.name for fact in one.info.provides}
        after.append(facts)
    return tuple(after)


def _lost(one: Listed, fact: Fact, breaker: Listed) -> PipelineError:
    return PipelineError(
        "the given order is wrong",
        why=f"{one.name} requires {fact}, which {breaker.name} invalidates before it",
        fix=f"list {breaker.name} after {one.name}, or a pass that provides {fact} between them",
    )


def _because(
    one: Listed, listed: Sequence[Listed], edges: Sequence[Edge], entry_word: str
) -> tuple[str, ...]:
    at_entry = [
        f"{fact} {entry_word}"
        for fact in sorted_facts(one.info.requires)
        if not providers(listed, one, fact)
    ]
    reasons = [edge.why for edge in edges if edge.then is one]
    return tuple(dict.fromkeys([*at_entry, *reasons]))


def _ambiguous(ordered: Sequence[Listed], edges: Sequence[Edge]) -> tuple[str, ...]:
    from networkx import has_path

    graph = edges_graph(ordered, edges)
    found = []
    for place, first in enumerate(ordered):
        for then in ordered[place + 1 :]:
            keys = sorted(first.info.writes & then.info.writes)
            if keys and not has_path(graph, first.index, then.index):
                found.append(
                    f"{first.name} and {then.name} both write {', '.join(keys)} and nothing orders "
                    "them: the list decided. Fix: declare before or after in one of them"
                )
    return tuple(found)
