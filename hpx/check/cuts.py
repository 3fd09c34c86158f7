"""What stands against cutting a parameter as the plan says, found before anything is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from hpx.check.expert_cuts import expert_cut_problem, split_containers
from hpx.check.findings import Finding
from hpx.check.fused import fused_problem
from hpx.check.per_head import is_norm
from hpx.check.placed import placed_problem
from hpx.check.quantised import KNOWN_CLASSES, block_problem, scale_of
from hpx.errors import HpxError, PlacementMismatchError
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import TensorNode
from hpx.heads import heads_of
from hpx.layout import Layout, is_even, per_rank_sizes
from hpx.mesh import MeshSpec, divisors
from hpx.packing import patterns_of
from hpx.plan import Pattern, ShardingPlan
from hpx.sharding import Decision

if TYPE_CHECKING:
    from hpx.pipeline.context import PassContext

__all__ = ["cut_problems", "unmatched_packed"]


def cut_problems(
    graph: ModuleGraph,
    ctx: PassContext,
    decisions: Mapping[int, Decision],
    *,
    uneven_allowed: bool,
) -> Iterator[Finding]:
    """What stands against the decisions, in the order of the tree.

    Args:
        graph: The graph, before any layout is set.
        ctx: Plan and mesh.
        decisions: A resolved layout for every parameter.
        uneven_allowed: Whether a dim may be cut in pieces of different sizes.
    """
    check = _Cuts(graph, ctx.mesh, decisions, ctx.plan, uneven_allowed)
    for node_id, decision in decisions.items():
        node = graph.tensor(node_id)
        if node.spec.placed is not None:
            problem = placed_problem(node, decision.layout, ctx.mesh)
            if problem is not None:
                what = "it is a DTensor already, and not as the plan says"
                kind = PlacementMismatchError
                yield Finding(node_id, what, *problem, decision.rule, kind, check="placed")
                continue
        cuts = _pieces(decision.layout, ctx.mesh)
        finding = check.first_problem(node, decision, cuts) if cuts else None
        if finding is not None:
            yield finding._replace(rule=decision.rule, check=finding.check or "fused")
    yield from split_containers(graph, ctx.mesh, decisions)


def _pieces(layout: Layout, mesh: MeshSpec) -> dict[int, int]:
    """Number of pieces by dim, for the dims that are really cut."""
    view = mesh.view_of(layout)
    cuts: dict[int, int] = {}
    for axis, dim in layout.shards:
        if view.size(axis) > 1:
            cuts[dim] = cuts.get(dim, 1) * view.size(axis)
    return cuts


class _Cuts:
    """Checks of one parameter that is cut; the first that speaks against it counts."""

    def __init__(
        self,
        graph: ModuleGraph,
        mesh: MeshSpec,
        decisions: Mapping[int, Decision],
        plan: ShardingPlan,
        uneven_allowed: bool,
    ) -> None:
        self.graph = graph
        self.mesh = mesh
        self.decisions = decisions
        self.packed = patterns_of(plan)
        self.uneven_allowed = uneven_allowed

    def first_problem(
        self, node: TensorNode, decision: Decision, cuts: dict[int, int]
    ) -> Finding | None:
        if node.spec.cls not in KNOWN_CLASSES:
            return Finding(
                node.id,
                f"cannot shard type {node.spec.cls.rsplit('.', 1)[-1]}",
                "where its elements stand is not known (a quantised or custom tensor)",
                "replicate it, or shard before quantising",
                check="tensor-type",
            )
        if len(node.shape) == 1 and is_norm(self.graph, node):
            return Finding(
                node.id,
                "a norm cannot be cut",
                "a rank would normalise over its own part alone",
                "replicate it",
                check="norms",
            )
        return (
            expert_cut_problem(self.graph, node, decision.layout)
            or self._blocks(node, cuts)
            or self._uneven(node, decision.layout)
            or fused_problem(self.graph, node, cuts, self.decisions, self.packed)
        )

    def _blocks(self, node: TensorNode, cuts: dict[int, int]) -> Finding | None:
        scale = scale_of(self.graph, node)
        why = block_problem(self.graph, node, scale, cuts) if scale is not None else None
        if why is None:
            return None
        what = "the cut goes through a quantised block"
        numbers = tuple((f"dim {dim} pieces", pieces) for dim, pieces in cuts.items())
        return Finding(node.id, what, why, check="quantised-blocks", numbers=numbers)

    def _uneven(self, node: TensorNode, layout: Layout) -> Finding | None:
        sizes = self.mesh.view_of(layout).sizes
        if is_even(node.shape, layout, sizes):
            return None
        axis, dim = next((a, d) for a, d in layout.shards if node.shape[d] % sizes[a])
        size, pieces = node.shape[dim], sizes[axis]
        if axis == "ep":
            return Finding(
                node.id,
                f"{size} experts cannot be shared by ep={pieces}",
                f"E = {size}, ep = {pieces}, {size} % {pieces} = {size % pieces}",
                f"use an ep of {', '.join(map(str, divisors(size)))}",
                check="divisibility",
                numbers=(("experts", size), ("ep", pieces)),
            )
        heads = heads_of(self.graph, node, dim)
        if heads is not None and heads.number % pieces:
            return Finding(
                node.id,
                f"heads cannot be cut by {axis}={pieces}",
                f"{heads.number} % {pieces} = {heads.number % pieces} ({heads.label})",
                f"use a {axis} of {', '.join(map(str, divisors(heads.common)))}",
                check="heads",
                numbers=(("heads", heads.number), (axis, pieces), ("common", heads.common)),
            )
        if self.uneven_allowed:
            return None
        each = per_rank_sizes(size, pieces)
        shown = ",".join(map(str, each)) if pieces <= 16 else f"{each[0]} .. {each[-1]}"
        return Finding(
            node.id,
            f"dim {dim} of {list(node.shape)} cannot be cut evenly by {axis}={pieces}",
            f"{size} % {pieces} = {size % pieces}, ranks would hold {shown}",
            f"use a {axis} of {', '.join(map(str, divisors(size)))},"
            " or shard-params{uneven=allow}",
            check="divisibility",
            numbers=(("dim", dim), ("size", size), (axis, pieces), ("largest", max(each))),
        )


def unmatched_packed(graph: ModuleGraph, ctx: PassContext) -> Iterator[HpxError]:
    """Entries under ``packed:`` that match no parameter."""
    if not ctx.plan.packed:
        return
    names = [name for node in graph.parameters() for name in graph.names(node.id)]
    for entry in ctx.plan.packed:
        pattern = Pattern.parse(entry.pattern)
        if not any(pattern.matches(name) for name in names):
            what = f"{entry.where}: packed '{entry.pattern}' matches no parameter"
            yield ctx.error(what, check="packed-parts")
