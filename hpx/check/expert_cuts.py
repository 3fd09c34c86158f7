"""Cuts on ``ep``: only dim 0 of stacked experts, and all parameters of a container alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from hpx.check.findings import Finding
from hpx.experts import is_stacked_expert
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import TensorNode
from hpx.layout import Layout
from hpx.mesh import MeshSpec

if TYPE_CHECKING:
    from hpx.sharding import Decision

__all__ = ["expert_cut_problem", "split_containers"]


def expert_cut_problem(graph: ModuleGraph, node: TensorNode, layout: Layout) -> Finding | None:
    """``ep`` cuts between experts: what it must not cut."""
    dim = layout.dim("ep")
    if dim is None:
        return None
    if not is_stacked_expert(graph, node):
        return Finding(
            node.id,
            "ep cuts stacked experts only, and this is none",
            f"its shape is {list(node.shape)}, and no [E, ...] parameters stand beside it",
            "shard it on tp, or replicate it",
            check="expert-dim",
        )
    if dim != 0:
        return Finding(
            node.id,
            f"ep cuts dim {dim}, and experts are whole on their rank",
            f"dim 0 of {list(node.shape)} counts the experts",
            "write {ep: S(0)}",
            check="expert-dim",
            numbers=(("dim", dim), ("experts", node.shape[0])),
        )
    return None


def split_containers(
    graph: ModuleGraph, mesh: MeshSpec, decisions: Mapping[int, Decision]
) -> Iterator[Finding]:
    """Parameters that stay whole beside experts cut on ``ep``: their slot i is another expert."""
    if mesh.size("ep", 1) == 1:
        return
    owners = dict.fromkeys(
        graph.nodes[node_id].parent
        for node_id, decision in decisions.items()
        if decision.layout.dim("ep") is not None
    )
    for owner in owners:
        for node in graph.children(owner):
            decision = decisions.get(node.id)
            if (
                isinstance(node, TensorNode)
                and decision is not None
                and decision.layout.dim("ep") is None
                and is_stacked_expert(graph, node)
            ):
                yield Finding(
                    node.id,
                    f"it is {decision.layout}, and the experts beside it are cut on ep",
                    "its slot i would be of another expert than theirs",
                    "give it {ep: S(0)} too",
                    decision.rule,
                    check="expert-sets",
                )
