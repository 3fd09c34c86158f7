"""Which replicated parameters are read where activations are cut: their gradients are partial.

A region is a module with a colwise and a rowwise matrix among its own children, or with q, k or v
cut on heads: there every rank sees other heads or channels. What else the module reads there (head
norms, latent projections, norms inside an mlp) gets a partial gradient on each rank. A module
around another region (a decoder layer that holds ``fc1`` and ``fc2`` itself beside its attention)
is none: its norms read the whole stream.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.projections import is_only_layer, is_projection, lora_layer, output_dim

__all__ = ["modules_around", "partial_gradients", "regions"]


def regions(graph: ModuleGraph) -> list[int]:
    """Ids of the modules inside which activations are cut on tp, in the order of the tree."""
    kinds: dict[int, set[str]] = {}
    for node in graph.parameters():
        kind = _cut_kind(graph, node)
        owner = _layer_above(graph, node) if kind is not None else None
        if owner is not None and kind is not None:
            # q, k and v are a region by themselves: the matrix that takes them may stand elsewhere.
            kinds.setdefault(owner, set()).add(kind)
            if kind == "colwise" and is_projection(graph, node):
                kinds[owner].add("rowwise")
    found = [owner for owner, has in kinds.items() if has == {"colwise", "rowwise"}]
    around = modules_around(graph, found)
    return [owner for owner in found if owner not in around]


def modules_around(graph: ModuleGraph, nodes: Iterable[int]) -> set[int]:
    """The modules that contain one of some nodes."""
    found: set[int] = set()
    for node in nodes:
        above = graph.nodes[node].parent
        while above >= 0 and above not in found:
            found.add(above)
            above = graph.nodes[above].parent
    return found


def _layer_above(graph: ModuleGraph, weight: TensorNode) -> int | None:
    """The module that computes with a layer: the one around it, or the owner of a bare matrix."""
    owner = graph.module(weight.parent)
    if weight.name != "weight":
        return owner.id
    if "Embedding" in owner.spec.cls or owner.parent < 0:
        return None
    if is_only_layer(graph, owner):
        owner = graph.module(owner.parent)
    layer = lora_layer(graph, owner.id)
    above = graph.nodes[layer].parent
    return layer if above < 0 else above


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
