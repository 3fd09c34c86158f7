"""Pass ``build-source-info``: how each parameter is placed, kept so that a layout is never lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hpx.facts import SHARDED, SOURCE_INFO
from hpx.graph import ModuleGraph, TensorNode
from hpx.pipeline import Pass, PassInfo, register
from hpx.pipeline.context import PassContext
from hpx.regions import partial_gradients

__all__ = ["BuildSourceInfo"]


@register
@dataclass(frozen=True, kw_only=True)
class BuildSourceInfo(Pass):
    """Record placements, mesh and gradient reductions of every parameter that has a layout.

    1. ``source``: mesh view, its weight axis (``tp`` or ``ep``), that axis's size, the placement.
       Never the axes of FSDP.
    2. ``reduce``: the weight axes over which the gradient has to be summed: ``tp`` for a parameter
       that is whole but read between a colwise and a rowwise matrix; none for all others.
    3. A layout that cuts on anything but its view's weight axis is refused.
    4. Parameters that share a data-parallel group and differ in dtype or requires_grad are counted
       and reported.
    """

    info = PassInfo(
        name="build-source-info",
        requires={SHARDED},
        provides={SOURCE_INFO},
        # The integers that a region reads are settled first, so one record describes all of it.
        after={"update-heads"},
        writes={"source", "reduce"},
    )

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        """Write one record for each distinct placement."""
        partial = partial_gradients(graph)
        records: dict[tuple[str, str], list[int]] = {}
        whole: list[int] = []
        for node in graph.parameters():
            if node.layout is None:
                continue
            axis = _weight_axis(ctx, node)
            records.setdefault((axis, node.layout.placement(axis)), []).append(node.id)
            if node.id not in partial:
                whole.append(node.id)
        for (axis, placement), nodes in records.items():
            size = ctx.mesh.size(axis, 1)
            view = "expert" if axis == "ep" else "dense"
            record = {"mesh": view, "axis": axis, "size": size, "placements": [placement]}
            ctx.set(nodes, "source", record, why=f"{placement} on {axis} of the {view} mesh")
        if whole:
            ctx.set(whole, "reduce", (), why="each rank has the whole gradient of what it holds")
        if partial:
            why = "whole, but read where activations are cut on tp: each rank has a part"
            ctx.set(sorted(partial), "reduce", ("tp",), why=why)
        _census(graph, ctx)


def _weight_axis(ctx: PassContext, node: TensorNode) -> str:
    assert node.layout is not None
    axis = "ep" if node.mesh == "expert" else "tp"
    others = [name for name, _ in node.layout.shards if name != axis]
    if others:
        raise ctx.error(
            f"its layout {node.layout} cuts on {', '.join(others)}",
            node=node.id,
            why=f"a parameter of the {node.mesh} mesh is cut on {axis} alone",
        )
    return axis


def _census(graph: ModuleGraph, ctx: PassContext) -> None:
    """Report parameters that would share one flat data-parallel group and do not match."""
    if not any(ctx.mesh.size(axis, 1) > 1 for axis in ("dp", "dp_shard", "dp_replicate")):
        return
    for view in ("dense", "expert"):
        nodes = [node for node in graph.parameters() if (node.mesh or "dense") == view]
        dtypes = Counter(node.spec.dtype for node in nodes)
        if len(dtypes) > 1:
            counts = ", ".join(f"{dtype} x{count}" for dtype, count in dtypes.most_common())
            rare = dtypes.most_common()[-1][0]
            ctx.problem(
                f"parameters of the {view} mesh have {len(dtypes)} dtypes: {counts}",
                [node.id for node in nodes if node.spec.dtype == rare],
                hint="one data-parallel group needs one dtype; cast them, or wrap them apart",
                check="census",
                numbers=tuple(dtypes.most_common()),
            )
        frozen = [node.id for node in nodes if not node.spec.requires_grad]
        if frozen and len(frozen) < len(nodes):
            ctx.problem(
                f"{len(frozen)} of {len(nodes)} parameters of the {view} mesh are frozen",
                frozen,
                level="info",
                hint="frozen and trainable parameters of one module share a data-parallel group",
                check="census",
                numbers=(("frozen", len(frozen)), ("parameters", len(nodes))),
            )
