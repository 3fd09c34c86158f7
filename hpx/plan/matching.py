"""Which rule wins for which parameter: one walk down the tree with all patterns at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode
from hpx.plan.automaton import RuleSet, State
from hpx.plan.pieces import Member
from hpx.plan.rules import Rule

__all__ = ["MatchResult", "Winner", "match_parameters"]

Winner: TypeAlias = tuple[str, int | None]
"""A name of a parameter, and the index of the first rule that matches it."""


@dataclass(frozen=True)
class MatchResult:
    """What the rules of a plan match in a graph.

    Attributes:
        rules: The rules, in order.
        winner: By parameter id, every name with the index of the rule that wins for it.
        losers: By parameter id, the other rules that match one of its names; none, no entry.
        unmatched: Rules that match no parameter, with None, and alternatives that do not.
        beaten: By index of a rule that matches and never wins, the rules that win before it.
        conflicts: Ids of parameters whose names are won by different rules.
        others: By unmatched rule or alternative, a module, buffer or tensor that it does match.
    """

    rules: tuple[Rule, ...]
    winner: Mapping[int, tuple[Winner, ...]]
    losers: Mapping[int, tuple[int, ...]]
    unmatched: tuple[tuple[int, Member | None], ...]
    beaten: Mapping[int, tuple[int, ...]]
    conflicts: tuple[int, ...]
    others: Mapping[tuple[int, Member | None], str]

    def rule(self, node_id: int) -> Rule | None:
        """The rule that decides a parameter; None if no rule matches any of its names."""
        found = [index for _, index in self.winner[node_id] if index is not None]
        return self.rules[min(found)] if found else None

    @property
    def uncovered(self) -> tuple[int, ...]:
        """Ids of the parameters that no rule matches under any name."""
        return tuple(
            node_id
            for node_id, names in self.winner.items()
            if all(index is None for _, index in names)
        )

    @property
    def names(self) -> Iterator[str]:
        """Every name of every parameter."""
        return (name for names in self.winner.values() for name, _ in names)


def match_parameters(graph: ModuleGraph, rules: Sequence[Rule]) -> MatchResult:
    """Match all rules against all parameters, each under all of its names.

    Names are canonical: the part that a wrapper adds may stand in a pattern, but need not.

    Args:
        graph: The graph as it is now.
        rules: The rules, in order; the first that matches a name wins for it.
    """
    ruleset = RuleSet([rule.parsed for rule in rules])
    walk = _Walk(ruleset)
    walk.run(graph)
    return walk.result(tuple(rules))


_Todo: TypeAlias = tuple[int, State, str, tuple[int, ...]]


class _Walk:
    """Carries states down the tree and notes what they accept."""

    def __init__(self, ruleset: RuleSet) -> None:
        self.ruleset = ruleset
        self.winner: dict[int, tuple[Winner, ...]] = {}
        self.losers: dict[int, tuple[int, ...]] = {}
        self.conflicts: list[int] = []
        self.alternatives: set[tuple[int, ...]] = set()
        self.others: dict[tuple[int, ...], str] = {}

    def run(self, graph: ModuleGraph) -> None:
        nodes, winner = graph.nodes, self.winner
        # A shared module is walked under each of its names. The last item holds the shared modules
        # above, so that one that contains itself ends.
        todo: list[_Todo] = [(graph.root, self.ruleset.start(), "", (graph.root,))]
        while todo:
            node_id, state, prefix, shared = todo.pop()
            node = nodes[node_id]
            assert isinstance(node, ModuleNode)
            wrapped = node.spec.wrapper
            first = len(todo)
            for name, child_id in node.children.items():
                child = nodes[child_id]
                if name == wrapped:
                    following, path = self.ruleset.through(state, name), prefix[:-1]
                else:
                    following, path = state[name], prefix + name
                accepted = following.accepted
                if isinstance(child, ModuleNode):
                    if accepted and following.alternatives not in self.others:
                        self.others[following.alternatives] = path
                    if not child.more:
                        todo.append((child_id, following, f"{path}." if path else "", shared))
                    elif child_id not in shared:
                        todo.append((child_id, following, f"{path}.", (*shared, child_id)))
                elif child.kind != "parameter":
                    self.others.setdefault(following.alternatives, path)
                elif child_id in winner:
                    self._add_name(child_id, path, following)
                else:
                    winner[child_id] = ((path, accepted[0] if accepted else None),)
                    self.alternatives.add(following.alternatives)
                    if len(accepted) > 1:
                        self.losers[child_id] = accepted[1:]
            if len(todo) - first > 1:
                todo[first:] = reversed(todo[first:])

    def _add_name(self, node_id: int, path: str, state: State) -> None:
        """Note one more name of a parameter."""
        accepted = state.accepted
        self.alternatives.add(state.alternatives)
        names = (*self.winner[node_id], (path, accepted[0] if accepted else None))
        winners = {index for _, index in names if index is not None}
        lost = {*self.losers.pop(node_id, ()), *accepted} - winners
        self.winner[node_id] = names
        if lost:
            self.losers[node_id] = tuple(sorted(lost))
        if len(winners) > 1 and node_id not in self.conflicts:
            self.conflicts.append(node_id)

    def result(self, rules: tuple[Rule, ...]) -> MatchResult:
        unmatched = self._unmatched()
        return MatchResult(
            rules=rules,
            winner=self.winner,
            losers=self.losers,
            unmatched=unmatched,
            beaten=self._beaten(),
            conflicts=tuple(self.conflicts),
            others=self._others_of(unmatched),
        )

    def _unmatched(self) -> tuple[tuple[int, Member | None], ...]:
        matched: dict[int, set[Member]] = {}
        for number in {number for numbers in self.alternatives for number in numbers}:
            index, alternative = self.ruleset.alternatives[number]
            matched.setdefault(index, set()).update(alternative.members)
        found: list[tuple[int, Member | None]] = []
        for index, pattern in enumerate(self.ruleset.patterns):
            if index not in matched:
                found.append((index, None))
                continue
            missing = [m for m in pattern.members if m not in matched[index]]
            found += [(index, m) for m in missing if not any(_inside(m, n) for n in missing)]
        return tuple(found)

    def _beaten(self) -> dict[int, tuple[int, ...]]:
        matched = [
            sorted({self.ruleset.alternatives[number][0] for number in numbers})
            for numbers in self.alternatives
            if numbers
        ]
        winning = {first for first, *_ in matched}
        beaten: dict[int, set[int]] = {}
        for first, *others in matched:
            for index in others:
                if index not in winning:
                    beaten.setdefault(index, set()).add(first)
        return {index: tuple(sorted(beaten[index])) for index in sorted(beaten)}

    def _others_of(
        self, unmatched: tuple[tuple[int, Member | None], ...]
    ) -> dict[tuple[int, Member | None], str]:
        found: dict[tuple[int, Member | None], str] = {}
        for numbers, path in self.others.items():
            for index, alternative in map(self.ruleset.alternatives.__getitem__, numbers):
                for key in unmatched:
                    if key[0] == index and (key[1] is None or key[1] in alternative.members):
                        found.setdefault(key, path)
        return found


def _inside(inner: Member, outer: Member) -> bool:
    return inner != outer and (outer.span[0] <= inner.group[0] and inner.group[1] <= outer.span[1])
