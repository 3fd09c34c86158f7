"""What is wrong between a plan and a model, each finding with file, line and nearest names.

Nothing is raised here: every function returns a list of errors, so that a pass can tell several
findings together.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from hpx.errors import PlanError, nearest

if TYPE_CHECKING:
    from hpx.plan.matching import MatchResult
    from hpx.plan.pieces import Member
    from hpx.plan.plan import ShardingPlan
    from hpx.plan.rules import Rule

__all__ = [
    "Pointer",
    "conflicting_names",
    "fold_names",
    "never_winning",
    "plan_findings",
    "uncovered",
    "unmatched",
]

Pointer: TypeAlias = Callable[[str], str | None]
"""Given a pattern that matches nothing: what to write instead where stacking replaced its names."""

_NUMBER: Final = re.compile(r"(?<![^.])[0-9]+(?![^.])")
_MAX_LISTED: Final = 5
_MAX_WITH_NAMES: Final = 20


def plan_findings(
    plan: ShardingPlan, result: MatchResult, pointer: Pointer | None = None
) -> list[PlanError]:
    """Everything that is wrong with the rules of a plan for one model; empty if nothing is."""
    return [
        *unmatched(result, pointer),
        *never_winning(result),
        *conflicting_names(result),
        *uncovered(result, plan),
    ]


def unmatched(result: MatchResult, pointer: Pointer | None = None) -> list[PlanError]:
    """Rules, and alternatives of rules, that match no parameter.

    Args:
        result: What the rules match.
        pointer: Called with the pattern (of an alternative: with that alternative only); what it
            returns is named as the pattern to write, as stacking replaced the names.
    """
    samples = list(_fold(result.names).values()) if result.unmatched else []
    names = [group[0] for group in samples]
    return [
        _unmatched(result, index, member, pointer, names if number < _MAX_WITH_NAMES else [])
        for number, (index, member) in enumerate(result.unmatched)
    ]


def _unmatched(
    result: MatchResult,
    index: int,
    member: Member | None,
    pointer: Pointer | None,
    names: Sequence[str],
) -> PlanError:
    rule = result.rules[index]
    pattern, what = rule.pattern, f"rule {rule.pattern!r} matches no parameter"
    if member is not None:
        pattern = rule.parsed.only(member)
        written = rule.pattern[slice(*member.span)]
        what = f"alternative {written!r} of rule {rule.pattern!r} matches no parameter"
    stacked = pointer(pattern) if pointer else None
    if stacked is not None:
        why: str | None = "stacking replaced these names"
        ways = f"write {stacked!r}, or leave the experts apart with experts: []"
        return PlanError(what, where=rule.where, why=why, fix=ways)
    why, fix = None, _nearest_names(rule, pattern, names)
    other = result.others.get((index, member))
    if other is not None:
        inside = any(name.startswith(f"{other}.") for name in result.names)
        why = f"{other} is {'a module' if inside else 'no parameter'}"
        fix = f"write {pattern + '.**'!r} for all parameters inside" if inside else fix
    elif not result.winner:
        why = "the model has no parameters"
    return PlanError(what, where=rule.where, why=why, fix=fix)


def _nearest_names(rule: Rule, pattern: str, names: Sequence[str]) -> str | None:
    """The names that a pattern comes furthest on, and the one that looks most like it."""
    if not names:
        return None
    reached: dict[int, list[str]] = {}
    for name in names:
        progress = rule.parsed.progress(name)
        reached.setdefault(progress.matched if progress else 0, []).append(name)
    furthest = max(reached)
    close = nearest(pattern, names, n=2)
    if furthest:
        along = difflib.get_close_matches(pattern, reached[furthest], n=2, cutoff=0.0)
        close = list(dict.fromkeys([*close[:1], *along, *close[1:]]))[:3]
    return f"did you mean {', '.join(close)}?" if close else None


def never_winning(result: MatchResult) -> list[PlanError]:
    """Rules that match parameters, all of which earlier rules win."""
    return [
        PlanError(
            f"rule {result.rules[index].pattern!r} never wins",
            where=result.rules[index].where,
            why=f"all it matches is won before it by {_listed([str(result.rules[i]) for i in by])}",
            fix="move it up, or remove it",
        )
        for index, by in result.beaten.items()
    ]


def conflicting_names(result: MatchResult) -> list[PlanError]:
    """Tied parameters whose names are won by different rules."""
    found: list[PlanError] = []
    for node_id in result.conflicts:
        first: dict[int, str] = {}
        for name, index in result.winner[node_id]:
            if index is not None:
                first.setdefault(index, name)
        rules = [result.rules[index] for index in first]
        same = len({rule.layout for rule in rules}) == 1
        won = [
            f"{name} by {rule} with {rule.layout}"
            for rule, name in zip(rules, first.values(), strict=True)
        ]
        found.append(
            PlanError(
                f"tied names {_listed(list(first.values()))} are won by different rules",
                where=max(rules, key=lambda rule: rule.index).where,
                why="; ".join(won),
                fix="keep one of the rules"
                + (", their layouts are equal" if same else ", one parameter has one layout"),
            )
        )
    return found


def uncovered(
    result: MatchResult, plan: ShardingPlan, decided: Collection[int] = ()
) -> list[PlanError]:
    """One finding for all parameters without a rule, unless the plan has a default for them.

    Args:
        result: What the rules match.
        plan: The plan.
        decided: Ids of parameters that are decided without a rule of their own.
    """
    missing = [
        result.winner[node_id][0][0] for node_id in result.uncovered if node_id not in decided
    ]
    if plan.default != "error" or not missing:
        return []
    count = "1 parameter has" if len(missing) == 1 else f"{len(missing)} parameters have"
    return [
        PlanError(
            f"{count} no rule",
            where=plan.file,
            why=_listed(fold_names(missing)),
            fix="add rules for them, or write default: replicate",
        )
    ]


def fold_names(names: Iterable[str]) -> list[str]:
    """Names grouped by what they are but for numbers, each group with its size.

    >>> fold_names(["layers.0.w1", "layers.1.w1", "norm"])
    ['layers.[0-1].w1 x2', 'norm']
    """
    return [
        group[0] if len(group) == 1 else f"{_range_text(key, group)} x{len(group)}"
        for key, group in _fold(names).items()
    ]


def _fold(names: Iterable[str]) -> Mapping[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_NUMBER.sub("#", name), []).append(name)
    return groups


def _range_text(key: str, group: Sequence[str]) -> str:
    columns = iter(zip(*(map(int, _NUMBER.findall(name)) for name in group), strict=True))

    def numbers(_: re.Match[str]) -> str:
        column = next(columns)
        low, high = min(column), max(column)
        return str(low) if low == high else f"[{low}-{high}]"

    return re.sub(r"(?<![^.])#(?![^.])", numbers, key)


def _listed(items: Sequence[str]) -> str:
    shown = ", ".join(items[:_MAX_LISTED])
    return shown if len(items) <= _MAX_LISTED else f"{shown} and {len(items) - _MAX_LISTED} more"
