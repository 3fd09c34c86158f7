"""What a person should look at in a plan that can be carried out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpx.errors import Numbers
from hpx.experts import expert_containers, is_stacked_expert
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import TensorNode
from hpx.layout import Layout, is_even, per_rank_sizes
from hpx.lineage import Stack
from hpx.ranges import fold_names, number_text
from hpx.sharding import Decision, bias_layout, weight_of

if TYPE_CHECKING:
    from hpx.pipeline.context import PassContext

__all__ = ["report"]


def report(graph: ModuleGraph, ctx: PassContext, decisions: Mapping[int, Decision]) -> None:
    """Report what a person should look at in decisions that stand."""
    mesh = ctx.mesh
    if mesh.size("ep", 1) > 1 and not any(
        d.layout.dim("ep") is not None for d in decisions.values()
    ):
        ctx.problem(
            f"the mesh has ep={mesh.size('ep')}, and no parameter is sharded on ep",
            hint="give expert weights {ep: S(0)}, or leave ep out of the mesh",
            check="report",
            numbers=(("ep", mesh.size("ep")),),
        )
    uneven: dict[tuple[str, Numbers], list[int]] = {}
    for node_id, decision in decisions.items():
        node = graph.tensor(node_id)
        sizes = mesh.view_of(decision.layout).sizes
        if not is_even(node.shape, decision.layout, sizes):
            uneven.setdefault(_sizes_text(node, decision.layout, sizes), []).append(node_id)
    for (text, numbers), nodes in uneven.items():
        hint = "pad the dim, or use a size that divides it"
        ctx.problem(text, nodes, hint=hint, check="report", numbers=numbers)
    _report_whole_experts(graph, ctx, decisions)
    _report_split_bias(graph, ctx, decisions)


def _report_whole_experts(
    graph: ModuleGraph, ctx: PassContext, decisions: Mapping[int, Decision]
) -> None:
    """Experts that no rule cuts, while others are cut on ep."""
    on_ep = {node_id for node_id, d in decisions.items() if d.layout.dim("ep") is not None}
    if ctx.mesh.size("ep", 1) == 1 or not on_ep:
        return
    named = {container.id for container in expert_containers(graph, ctx.plan) if container.stacked}
    whole = [
        node.id
        for node in graph.parameters()
        if node.id not in on_ep
        and (isinstance(node.lineage, Stack) or node.parent in named)
        and is_stacked_expert(graph, node)
    ]
    if whole:
        count = "1 expert parameter" if len(whole) == 1 else f"{len(whole)} expert parameters"
        ctx.problem(
            f"{count} not sharded on ep, while {len(on_ep)} are:"
            f" {', '.join(fold_names(map(graph.path, whole)))}",
            whole,
            hint="give them {ep: S(0)}",
            check="report",
            numbers=(("whole", len(whole)), ("on ep", len(on_ep))),
        )


def _sizes_text(node: TensorNode, layout: Layout, sizes: Mapping[str, int]) -> tuple[str, Numbers]:
    """How the pieces of an uneven dim differ, in words and as numbers."""
    axis, dim = next((a, d) for a, d in layout.shards if node.shape[d] % sizes[a])
    pieces = per_rank_sizes(node.shape[dim], sizes[axis])
    text = f"dim {dim} of size {node.shape[dim]} over {axis}={sizes[axis]} is uneven: "
    text += ",".join(map(str, pieces)) if len(pieces) <= 16 else f"{pieces[0]} .. {pieces[-1]}"
    empty = [index for index, piece in enumerate(pieces) if piece == 0]
    if empty:
        text += f"; {axis} rank {number_text(empty)} holds nothing"
    counted = (("dim", dim), ("size", node.shape[dim]), (axis, sizes[axis]))
    return text, (*counted, ("largest", max(pieces)), ("empty ranks", len(empty)))


def _report_split_bias(
    graph: ModuleGraph, ctx: PassContext, decisions: Mapping[int, Decision]
) -> None:
    """A bias whose own rule contradicts its weight's: the region's shapes would not fit."""
    for node_id, decision in decisions.items():
        bias = graph.tensor(node_id)
        weight = weight_of(graph, bias)
        if weight is None or weight.id not in decisions or decision.follows is not None:
            continue
        layout = decisions[weight.id].layout
        expected = bias_layout(graph, weight, layout)
        if expected is not None and expected != decision.layout:
            ctx.problem(
                f"{graph.path(node_id)} is {decision.layout}, and its weight {layout} asks for"
                f" {expected}",
                node_id,
                hint="remove the bias's rule: it follows its weight",
                check="report",
            )
