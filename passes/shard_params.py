"""Pass ``shard-params``: every parameter gets the layout that the plan decides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from hpx.errors import HpxError, ManyErrors
from hpx.facts import EXPERTS_STACKED, HEADS_LOCAL, LOCALIZED, SHARDED, SOURCE_INFO, TIED
from hpx.graph import ModuleGraph, TensorNode
from hpx.layout import Layout, is_even, per_rank_sizes
from hpx.pipeline import Pass, PassInfo, register
from hpx.pipeline.context import PassContext
from hpx.ranges import number_text
from hpx.sharding import Decision, bias_layout, decide, refusals

__all__ = ["ShardParams"]


@register
@dataclass(frozen=True, kw_only=True)
class ShardParams(Pass):
    """Give every parameter the layout that its plan rule names.

    1. The first rule that matches a name wins; rules that match too are logged as tried.
    2. A bias without a rule follows its weight: cut with a colwise one, whole with a rowwise one.
    3. Parameters without a rule are an error, or replicated where the plan says so.
    4. Where no weight axis of a mesh is active, its parameters stay untouched; where one is, every
       parameter of that mesh gets a layout, replicated ones too.
    5. Refused, all together and before anything is set: rules that match nothing or never win,
       tied names with different rules, uneven cuts (unless ``uneven=allow``), cuts across fused
       parts or quantised blocks, parametrised modules, unknown tensor classes, DTensors that are
       placed differently.
    6. If tp is active and nothing is cut, that is an error, unless ``nothing=allow``.
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
        findings = list(choice.findings)
        if not findings:
            findings = list(refusals(graph, ctx, choice, uneven_allowed=self.uneven == "allow"))
        if not findings and self.nothing == "error":
            findings = list(_nothing_cut(graph, ctx, choice.decisions))
        if findings:
            raise ManyErrors(
                f"{len(findings)} problem(s) with the plan; nothing was changed", findings
            ).located(f"pass {ctx.name}")
        _set_layouts(ctx, choice.decisions)
        for rule_index, nodes in choice.lost.items():
            rule = ctx.plan.params[rule_index]
            ctx.skip(nodes, key="layout", rule=rule, why=f"{rule} lost: an earlier rule matches")
        _report(graph, ctx, choice.decisions)


def _nothing_cut(
    graph: ModuleGraph, ctx: PassContext, decisions: dict[int, Decision]
) -> Iterator[HpxError]:
    if ctx.mesh.size("tp", 1) > 1 and not any(d.layout.shards for d in decisions.values()):
        yield ctx.error(
            f"0 of {len(decisions)} parameters sharded, and tp is {ctx.mesh.size('tp')}",
            why="no rule of the plan cuts anything",
            fix="add rules such as {tp: S(0)}, use tp=1, or shard-params{nothing=allow}",
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


def _report(graph: ModuleGraph, ctx: PassContext, decisions: dict[int, Decision]) -> None:
    mesh = ctx.mesh
    if mesh.size("ep", 1) > 1 and not any(
        d.layout.dim("ep") is not None for d in decisions.values()
    ):
        ctx.problem(
            f"the mesh has ep={mesh.size('ep')}, and no parameter is sharded on ep",
            hint="give expert weights {ep: S(0)}, or leave ep out of the mesh",
        )
    uneven: dict[str, list[int]] = {}
    for node_id, decision in decisions.items():
        node = graph.tensor(node_id)
        sizes = mesh.view_of(decision.layout).sizes
        if not is_even(node.shape, decision.layout, sizes):
            uneven.setdefault(_sizes_text(node, decision.layout, sizes), []).append(node_id)
    for text, nodes in uneven.items():
        ctx.problem(text, nodes, hint="pad the dim, or use a size that divides it")
    _report_split_bias(graph, ctx, decisions)


def _sizes_text(node: TensorNode, layout: Layout, sizes: dict[str, int]) -> str:
    axis, dim = next((a, d) for a, d in layout.shards if node.shape[d] % sizes[a])
    pieces = per_rank_sizes(node.shape[dim], sizes[axis])
    text = f"dim {dim} of size {node.shape[dim]} over {axis}={sizes[axis]} is uneven: "
    text += ",".join(map(str, pieces)) if len(pieces) <= 16 else f"{pieces[0]} .. {pieces[-1]}"
    empty = [index for index, piece in enumerate(pieces) if piece == 0]
    return f"{text}; {axis} rank {number_text(empty)} holds nothing" if empty else text


def _report_split_bias(
    graph: ModuleGraph, ctx: PassContext, decisions: dict[int, Decision]
) -> None:
    """A bias whose own rule contradicts its weight's: the region's shapes would not fit."""
    for node_id, decision in decisions.items():
        node = graph.tensor(node_id)
        weight = graph.module(node.parent).children.get("weight") if node.name == "bias" else None
        if weight not in decisions or decision.follows is not None or weight is None:
            continue
        expected = bias_layout(graph, graph.tensor(weight), decisions[weight].layout)
        if expected is not None and expected != decision.layout:
            ctx.problem(
                f"{graph.path(node_id)} is {decision.layout}, and its weight"
                f" {decisions[weight].layout} asks for {expected}",
                node_id,
                hint="remove the bias's rule: it follows its weight",
            )
