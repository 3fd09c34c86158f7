"""Pass ``shard-params``: every parameter gets the layout that the plan decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from hpx.check.cuts import cut_problems, unmatched_packed
from hpx.check.findings import grouped
from hpx.check.plan_report import report
from hpx.errors import HpxError, ManyErrors
from hpx.facts import EXPERTS_STACKED, HEADS_LOCAL, LOCALIZED, SHARDED, SOURCE_INFO, TIED
from hpx.graph import ModuleGraph
from hpx.layout import Layout
from hpx.pipeline import Pass, PassInfo, register
from hpx.pipeline.context import PassContext
from hpx.sharding import Choice, Decision, decide

__all__ = ["ShardParams"]


@register
@dataclass(frozen=True, kw_only=True)
class ShardParams(Pass):
    """Give every parameter the layout that its plan rule names.

    1. The first rule that matches a name wins; rules that match too are logged as tried.
    2. A bias without a rule follows its weight: cut with a colwise one, whole with a rowwise one;
       that of stacked experts is on ``ep`` with their weights.
    3. Parameters without a rule are an error, or replicated where the plan says so.
    4. Where no weight axis of a mesh is active, its parameters stay untouched; where one is, every
       parameter of that mesh gets a layout, replicated ones too.
    5. Refused, all together and before anything is set: rules that match nothing or never win, tied
       names with different rules, uneven cuts (unless ``uneven=allow``), cuts across fused parts or
       quantised blocks, norms that are cut, ``ep`` on anything but the expert dim or on a part of a
       container, parametrised modules, unknown tensor classes, DTensors that are placed
       differently.
    6. If tp is active and nothing is cut, that is an error, unless ``nothing=allow``; it is only
       pointed out where a rule says of each parameter that it is whole.
    7. Pointed out: an ``ep`` axis that cuts nothing, experts that stay whole beside it, uneven
       pieces, and a bias whose own rule contradicts its weight's.
    """

    info = PassInfo(
        name="shard-params",
        requires={TIED, EXPERTS_STACKED},
        provides={SHARDED},
        invalidates={HEADS_LOCAL, SOURCE_INFO, LOCALIZED},
        writes={"layout", "mesh"},
    )

    uneven: Literal["error", "allow"] = "error"
    """What to do where a dim does not divide: refuse, or cut by torch's chunk rule."""
    nothing: Literal["error", "allow"] = "error"
    """What to do where tp is active and no parameter is cut."""

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        """Decide everything, refuse what cannot be, then set layouts rule by rule."""
        choice = decide(graph, ctx)
        findings = [*choice.findings, *unmatched_packed(graph, ctx)]
        if not findings:
            allowed = self.uneven == "allow"
            problems = cut_problems(graph, ctx, choice.decisions, uneven_allowed=allowed)
            findings = grouped(ctx, problems)
        if self.nothing == "error":
            findings += _nothing_cut(ctx, choice, findings)
        if findings:
            raise ManyErrors.about("the plan", findings).located(f"pass {ctx.name}")
        _set_layouts(ctx, choice.decisions)
        for rule_index, nodes in choice.lost.items():
            rule = ctx.plan.params[rule_index]
            ctx.skip(nodes, key="layout", rule=rule, why=f"{rule} lost: an earlier rule matches")
        report(graph, ctx, choice.decisions)


def _nothing_cut(
    ctx: PassContext, choice: Choice, others: Sequence[HpxError]
) -> Iterator[HpxError]:
    """An error, or a problem where rules ask for it: silence and a default do not."""
    decisions = choice.decisions.values()
    if ctx.mesh.size("tp", 1) == 1 or any(d.layout.shards for d in decisions):
        return
    tp = ctx.mesh.size("tp")
    what = f"0 of {choice.num_parameters} parameters sharded, and tp is {tp}"
    numbers = (("parameters", choice.num_parameters), ("tp", tp))
    ruled = all(d.rule is not None and d.rule.source != "default" for d in decisions)
    if ruled and len(decisions) == choice.num_parameters and not others:
        hint = f"use tp=1: {tp} ranks would hold and compute the same"
        text = f"{what}: rules say of all that they are whole"
        ctx.problem(text, hint=hint, check="nothing-cut", numbers=numbers)
        return
    cutting = any(rule.layout.shards for rule in ctx.plan.params)
    yield ctx.error(
        what,
        why="no rule that cuts can be applied" if cutting else "no rule of the plan cuts anything",
        fix="add rules such as {tp: S(0)}, use tp=1, name each parameter in a rule that says"
        " replicate, or shard-params{nothing=allow}",
        check="nothing-cut",
        numbers=numbers,
    )


def _set_layouts(ctx: PassContext, decisions: dict[int, Decision]) -> None:
    """One event for each rule, layout and reason; weights before the biases that follow them."""
    groups: dict[Decision, list[int]] = {}
    for node_id, decision in decisions.items():
        groups.setdefault(decision, []).append(node_id)
    seq_of: dict[int, int] = {}
    for decision, nodes in sorted(groups.items(), key=lambda item: item[0].follows is not None):
        view = ctx.mesh.view_of(decision.layout)
        axis = "ep" if view.name == "expert" else "tp"
        if ctx.mesh.size(axis, 1) == 1:
            why = f"no active weight axis on the {view.name} mesh ({axis}=1): left as it is"
            ctx.skip(nodes, key="layout", rule=decision.rule, why=f"{decision.why}; {why}")
            continue
        cause = None if decision.follows is None else seq_of.get(decision.follows)
        seq = ctx.set(
            nodes, "layout", decision.layout, why=decision.why, rule=decision.rule, cause=cause
        )
        ctx.set(nodes, "mesh", view.name, why=_why_mesh(decision.layout), cause=seq)
        if decision.rule is not None:
            seq_of.setdefault(decision.rule.index, seq)


def _why_mesh(layout: Layout) -> str:
    if layout.dim("ep") is not None:
        return "its layout shards on ep, so it lives on the expert mesh"
    return "its layout does not shard on ep, so it lives on the dense mesh"
