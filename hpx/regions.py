"""Which replicated parameters are read where activations are cut: their gradients are partial.

A region is a module with a colwise and a rowwise matrix among its own children: between the two,
every rank sees other heads or channels. What else the module reads there (head norms, latent
projections, norms inside an mlp) gets a partial gradient on each rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.heads import output_dim

__all__ = ["partial_gradients", "regions"]


def regions(graph: ModuleGraph) -> Iterator[int]:
    """Ids of the modules between whose colwise and rowwise children activations are cut on tp."""
    for node in graph.modules():
        kinds = {
            kind
            for child in graph.children(node.id)
            for weight in _weights(graph, child.id)
            if (kind := _cut_kind(graph, weight)) is not None
        }
        if kinds == {"colwise", "rowwise"}:
            yield node.id


def _weights(graph: ModuleGraph, child_id: int) -> Iterator[TensorNode]:
    child = graph.nodes[child_id]
    if isinstance(child, TensorNode):
        yield child
    elif "weight" in child.children and "Embedding" not in child.spec.cls:
        weight = graph.nodes[child.children["weight"]]
        if isinstance(weight, TensorNode):
            yield weight


def _cut_kind(graph: ModuleGraph, weight: TensorNode) -> str | None:
    dim = weight.layout.dim("tp") if weight.layout is not None else None
    if dim is None or len(weight.shape) != 2:
        return None
    return "colwise" if dim == output_dim(graph, weight) else "rowwise"


def partial_gradients(graph: ModuleGraph) -> set[int]:
    """Ids of whole parameters inside a region whose gradient has to be summed over tp.

    A rowwise bias is not among them: it is added once, after the region's reduction.
    """
    found: set[int] = set()
    for region in regions(graph):
        for node in graph.parameters(region):
            if node.layout is None or node.layout.shards:
                continue
            if not _is_rowwise_bias(graph, node):
                found.add(node.id)
    return found


def _is_rowwise_bias(graph: ModuleGraph, node: TensorNode) -> bool:
    owner = graph.nodes[node.parent]
    if node.name != "bias" or not isinstance(owner, ModuleNode):
        return False
    weight = owner.children.get("weight")
    sibling = graph.nodes[weight] if weight is not None else None
    return isinstance(sibling, TensorNode) and _cut_kind(graph, sibling) == "rowwise"
