"""Matrices that hold q, k and v in one, told from the head counts beside them, not from names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.heads import HEAD_DIMS, KV_COUNTS, Q_COUNTS
from hpx.projections import is_projection, output_dim, role_of_name

if TYPE_CHECKING:
    from hpx.sharding import Decision

__all__ = ["Layer", "fused_heads", "layers_beside", "stands_apart"]

_WRAPPED: Final = "base_layer"


class Layer(NamedTuple):
    """A matrix of a layer, the name that the layer has in its module, and its widths."""

    node: TensorNode
    name: str
    gives: int
    takes: int


class _Counts(NamedTuple):
    query: int
    keys: int
    """Key and value heads; 0 where no count of their own is stored."""
    size: int
    """Of one head; 0 where it is not stored."""


def layers_beside(graph: ModuleGraph, node: TensorNode) -> tuple[ModuleNode, list[Layer]]:
    """The module that a weight's layer stands in, and the matrices of the layers in that module.

    A module that only wraps one layer counts as that layer.
    """
    top = graph.module(node.parent)
    while top.parent >= 0 and _only_wraps(graph, graph.module(top.parent), top):
        top = graph.module(top.parent)
    place = graph.module(top.parent) if top.parent >= 0 else top
    return place, list(_layers(graph, place))


def _layers(graph: ModuleGraph, place: ModuleNode) -> Iterator[Layer]:
    for name, child in place.children.items():
        node = graph.nodes[child]
        module: ModuleNode | None = node if isinstance(node, ModuleNode) else None
        while module is not None and "weight" not in module.children:
            inner = [c for c in graph.children(module.id) if isinstance(c, ModuleNode)]
            module = next((c for c in inner if _only_wraps(graph, module, c)), None)
        if module is None:
            continue
        weight = graph.nodes[module.children["weight"]]
        if (
            isinstance(weight, TensorNode)
            and weight.kind == "parameter"
            and len(weight.shape) == 2
            and "Embedding" not in module.spec.cls
        ):
            dim = output_dim(graph, weight)
            yield Layer(weight, name, weight.shape[dim], weight.shape[1 - dim])


def _only_wraps(graph: ModuleGraph, module: ModuleNode, child: ModuleNode) -> bool:
    """Whether a module stands for its child: nothing else in it holds parameters."""
    if child.name in (module.spec.wrapper, _WRAPPED):
        return True
    if module.spec.container in ("list", "dict") or module.parent < 0:
        return False
    return not any(
        True
        for other in graph.children(module.id)
        if other.id != child.id
        for _ in ([other] if isinstance(other, TensorNode) else graph.parameters(other.id))
    )


def stands_apart(graph: ModuleGraph, node: TensorNode) -> bool:
    """Whether a matrix is one of separate q, k and v: it is named so, or two others are like it."""
    _, layers = layers_beside(graph, node)
    own = next((layer for layer in layers if layer.node.id == node.id), None)
    if own is None:
        return False
    if role_of_name(own.name) in ("q", "k", "v"):
        return True
    others = [layer for layer in layers if layer.node.id != node.id]
    if {"k", "v"} <= {role_of_name(layer.name) for layer in others}:
        return True
    alike = [layer for layer in others if (layer.gives, layer.takes) == (own.gives, own.takes)]
    return len(alike) >= 2 and own.gives != own.takes


def fused_heads(
    graph: ModuleGraph, node: TensorNode, cuts: dict[int, int], decisions: Mapping[int, Decision]
) -> tuple[int, str] | None:
    """(dim, why) of a matrix that is cut on its outputs and has the rows of q, k and v, or k and v.

    Args:
        graph: The graph.
        node: The weight.
        cuts: Number of pieces by dim.
        decisions: The layouts of all parameters.
    """
    if len(node.shape) != 2 or (dim := output_dim(graph, node)) not in cuts:
        return None
    place, layers = layers_beside(graph, node)
    own = next((layer for layer in layers if layer.node.id == node.id), None)
    counts = _counts(place)
    if own is None or counts is None or role_of_name(own.name) is not None:
        return None
    direct = {layer.node.id for layer in layers}
    if any(is_projection(graph, p) for p in graph.parameters(place.id) if p.id not in direct):
        return None  # the attention is a module inside this one
    others = [layer for layer in layers if layer.node.id != node.id]
    after = [layer for layer in others if _is_rowwise(graph, layer, decisions)]
    beside = [layer for layer in others if layer not in after and layer.takes == own.takes]
    if any(layer.takes == own.gives for layer in after) and not _is_two(own, beside, counts):
        return None  # a plain pair
    why = _of_heads(own, beside, after, counts)
    return None if why is None else (dim, why)


def _of_heads(own: Layer, beside: list[Layer], after: list[Layer], counts: _Counts) -> str | None:
    roles = {role_of_name(layer.name) for layer in beside}
    if roles & {"k", "v"}:
        return None
    query, size = counts.query, counts.size
    size = size or (after[0].takes if after else own.takes) // query
    keys = counts.keys or query
    widths = {keys * size, query * size}
    if size and sum(layer.gives in widths for layer in beside) < 2:
        if _is_two(own, beside, counts._replace(size=size)):
            return f"rows {own.gives} = 2 * {keys} * {size}: looks like k and v in one"
        groups = [keys] if counts.keys else [n for n in range(1, query + 1) if query % n == 0]
        for number in groups:
            if own.gives == (query + 2 * number) * size and "q" not in roles:
                return (
                    f"rows {own.gives} = ({query} + 2*{number}) * {size}:"
                    " looks like q, k and v in one"
                )
    narrow = next((layer for layer in after if layer.takes < own.gives), None)
    if narrow is None or len(beside) > 1 or any(b.gives == narrow.takes for b in beside):
        return None
    return f"it gives {own.gives}, and {narrow.name} beside it takes {narrow.takes}"


def _is_two(own: Layer, beside: list[Layer], counts: _Counts) -> bool:
    """Whether a matrix has the rows of k and v, and what else reads the input is one q."""
    if not counts.size:
        return False
    readers = [b for b in beside if b.takes == own.takes and b.gives == counts.query * counts.size]
    queries = [b for b in readers if role_of_name(b.name) == "q"]
    keys = counts.keys or counts.query
    return own.gives == 2 * keys * counts.size and len(queries or readers) == 1


def _is_rowwise(graph: ModuleGraph, layer: Layer, decisions: Mapping[int, Decision]) -> bool:
    decision = decisions.get(layer.node.id)
    return decision is not None and decision.layout.dim("tp") == 1 - output_dim(graph, layer.node)


def _counts(place: ModuleNode) -> _Counts | None:
    found = dict(place.spec.attributes)
    query, keys, size = (
        next((found[name] for name in names if found.get(name, 0) > 0), 0)
        for names in (Q_COUNTS, KV_COUNTS, HEAD_DIMS)
    )
    return _Counts(query, keys, size) if query else None
