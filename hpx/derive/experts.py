"""Routed experts, and the routers beside them."""

from __future__ import annotations

from collections.abc import Iterator

from hpx.derive.types import Choice, Origin, cut
from hpx.experts import expert_containers, is_stacked_expert
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.mesh import MeshSpec, divisors
from hpx.plan import ShardingPlan
from hpx.roles.places import of_all_layers

__all__ = ["expert_choices"]

_EXPERTS = "routed experts"
_ROUTER = "router"


def expert_choices(
    graph: ModuleGraph, plan: ShardingPlan, mesh: MeshSpec, unstacked: str | None
) -> dict[int, Choice]:
    """A choice for every parameter of routed experts and of their routers.

    Args:
        graph: The graph with its experts stacked, if they could be.
        plan: What says which containers are stacked.
        mesh: The mesh.
        unstacked: Why experts could not be stacked; None if they could.
    """
    choices: dict[int, Choice] = {}
    for container in _containers(graph, plan, unstacked):
        size = _num_experts(graph, container)
        for node in graph.parameters(container.id):
            choices[node.id] = _expert(graph, node, size, mesh, unstacked)
        for node in _routers(graph, container, size):
            choices[node.id] = Choice.whole(
                "every rank routes its tokens over all experts", _ROUTER
            )
    return choices


def _containers(
    graph: ModuleGraph, plan: ShardingPlan, unstacked: str | None
) -> Iterator[ModuleNode]:
    seen: set[int] = set()
    looks = (
        expert_containers(graph, ShardingPlan()) if unstacked else expert_containers(graph, plan)
    )
    for found in looks:
        seen.add(found.id)
        yield graph.module(found.id)
    for node in graph.parameters():
        if node.lineage is not None and node.parent not in seen:
            seen.add(node.parent)
            yield graph.module(node.parent)


def _num_experts(graph: ModuleGraph, container: ModuleNode) -> int:
    for node in graph.parameters(container.id):
        if node.lineage is not None or (node.parent == container.id and len(node.shape) >= 3):
            return node.shape[0]
    return len(container.children)


def _expert(
    graph: ModuleGraph, node: TensorNode, size: int, mesh: MeshSpec, unstacked: str | None
) -> Choice:
    origin: Origin = "structure" if node.lineage is not None else "names"
    path = graph.path(node.id)
    plan = graph.hints.get("ep_plan")
    if isinstance(plan, dict) and of_all_layers(path) in plan:
        origin = "model"
    if unstacked is not None:
        return Choice.whole(f"the experts cannot be stacked: {unstacked}", _EXPERTS, origin)
    if not is_stacked_expert(graph, node):
        return Choice.whole("it belongs to all experts together", _EXPERTS, origin)
    if not mesh.has("ep"):
        why = f"the mesh has no ep axis, so every rank holds all {size} experts"
        return Choice.whole(why, _EXPERTS, origin)
    ep = mesh.size("ep")
    if size % ep:
        sizes = ", ".join(map(str, divisors(size)))
        why = f"ep={ep} cannot share {size} experts, {size} % {ep} = {size % ep}; an ep of"
        why = f"{why} {sizes} can"
        return Choice.whole(why, _EXPERTS, origin)
    return Choice(cut("ep", 0), f"{size // ep} of {size} experts per rank", origin, _EXPERTS)


def _routers(graph: ModuleGraph, container: ModuleNode, size: int) -> Iterator[TensorNode]:
    """Tensors beside the experts with one row an expert, and what stands in a module with such."""
    if container.parent < 0:
        return
    for sibling in graph.children(container.parent):
        if sibling.id == container.id:
            continue
        if isinstance(sibling, TensorNode):
            if sibling.kind == "parameter" and sibling.shape[:1] == (size,):
                yield sibling
            continue
        inner = list(graph.parameters(sibling.id))
        has_rows = any(len(node.shape) == 2 and node.shape[0] == size for node in inner)
        if has_rows and all(size in node.shape for node in inner):
            yield from inner
