"""The rules that lost for one parameter: beaten by an earlier one, or stopped on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from hpx.plan.pattern import Progress

if TYPE_CHECKING:
    from hpx.plan.plan import ShardingPlan
    from hpx.plan.rules import Rule

__all__ = ["Tried", "tried"]


class Tried(NamedTuple):
    """A rule that does not decide a parameter.

    Attributes:
        rule: The rule.
        matched: Whether its pattern matches, so that an earlier rule beat it.
        stopped_at: Where the pattern stopped matching, or which rule beat it.
        depth: How many segments of the pattern, ``**`` aside, matched.
    """

    rule: Rule
    matched: bool
    stopped_at: str
    depth: int

    def to_json(self) -> dict[str, object]:
        """``{rule, matched, stopped_at}``."""
        return {
            "rule": self.rule.to_json(),
            "matched": self.matched,
            "stopped_at": self.stopped_at,
        }


def tried(plan: ShardingPlan, names: Sequence[str]) -> list[Tried]:
    """The rules that lost for a parameter, closest first.

    Rules that match come first, in the plan's order; then those of which at least one segment
    matches, those that came furthest first. A rule that has nothing in common with the names is
    left out, and so is the rule that wins.

    Args:
        plan: The plan.
        names: All names of one parameter.
    """
    winner: Rule | None = None
    beaten: list[Tried] = []
    stopped: list[Tried] = []
    for rule in plan.params:
        progress = _furthest(rule, names)
        if progress is not None:
            if progress.matched:
                stopped.append(Tried(rule, False, _stopped_at(progress), progress.matched))
        elif winner is None:
            winner = rule
        else:
            depth = sum(not segment.any_depth for segment in rule.parsed.segments)
            beaten.append(Tried(rule, True, f"{winner} comes first", depth))
    stopped.sort(key=lambda entry: -entry.depth)
    return [*beaten, *stopped]


def _furthest(rule: Rule, names: Sequence[str]) -> Progress | None:
    """The progress on the name that it goes furthest on; None if it matches one."""
    best = Progress(0, "", None)
    for name in names:
        progress = rule.parsed.progress(name)
        if progress is None:
            return None
        if progress.matched >= best.matched:
            best = progress
    return best


def _stopped_at(progress: Progress) -> str:
    if progress.found is None:
        return f"the name ends where {progress.expected!r} is expected"
    if progress.ended:
        return f"the pattern ends before {progress.found!r}"
    return f"{progress.found!r} stands where {progress.expected!r} is expected"
