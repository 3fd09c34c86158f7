"""Tensors that belong to a weight and have to be cut as it is: scales, and the pair of LoRA."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from hpx.check.quantised import scale_of, scales_of, unsure_blocks
from hpx.check.subject import Subject, Told
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.layout import REPLICATED, Layout
from hpx.projections import output_dim

__all__ = ["lora_pairs", "scales"]

_FIRST: Final = re.compile(r"lora_(embedding_)?(a|down)", re.IGNORECASE)
_SECOND: Final = {"a": "b", "A": "B", "down": "up"}
_BASES: Final = ("base_layer", "base", "linear", "original", "original_layer", "wrapped")


# -- scales ------------------------------------------------------------------------------------


def scales(subject: Subject) -> Iterator[Told]:
    """The scales of a quantised weight are cut with it, wherever they have more than one value.

    A rank would else multiply its rows by the scales of another rank's, or fail on the shapes.
    """
    graph = subject.graph
    for node in graph.parameters():
        layout = node.layout
        if layout is None:
            continue
        for scale in scales_of(graph, node):
            yield from _unsure(subject, node, scale, layout)
            expected = _as_weight(graph, node, layout, scale)
            found = scale.layout or REPLICATED
            if expected.shards != found.shards:
                buffer = scale.kind != "parameter"
                yield Told(
                    "error",
                    scale.id,
                    f"it is {'a ' + scale.kind + ', whole on every rank' if buffer else found},"
                    f" and {node.name} {list(node.shape)} {layout} asks for {expected}"
                    f" of its {list(scale.shape)} scales",
                    "register it as a parameter, or replicate the weight"
                    if buffer
                    else f"give it {{{_rule(expected)}}}",
                )


def _rule(layout: Layout) -> str:
    return ", ".join(f"{axis}: S({dim})" for axis, dim in layout.shards) or "replicate"


def _unsure(
    subject: Subject, weight: TensorNode, scale: TensorNode, layout: Layout
) -> Iterator[Told]:
    """The size of the blocks that a cut relies on, where the shapes leave several."""
    sizes = subject.mesh.view_of(layout).sizes
    cuts = {dim: sizes[axis] for axis, dim in layout.shards if sizes[axis] > 1}
    if not cuts or scale.id != getattr(scale_of(subject.graph, weight), "id", None):
        return
    why = unsure_blocks(subject.graph, weight, scale, cuts)
    if why is not None:
        yield Told("warning", weight.id, why, "store block_size on its module, or replicate it")


def _as_weight(graph: ModuleGraph, weight: TensorNode, layout: Layout, scale: TensorNode) -> Layout:
    """The layout of scales that fits that of their weight."""
    if not layout.shards:
        return REPLICATED
    if len(scale.shape) == len(weight.shape):
        kept = tuple((axis, dim) for axis, dim in layout.shards if scale.shape[dim] > 1)
        return Layout(kept)
    if len(scale.shape) == 1:  # one value for each output, or for each expert
        for dim in dict.fromkeys((output_dim(graph, weight), 0)):
            if scale.shape[0] == weight.shape[dim]:
                return Layout(tuple((axis, 0) for axis, d in layout.shards if d == dim))
    return scale.layout or REPLICATED  # which dim is which is not known


# -- LoRA --------------------------------------------------------------------------------------


class _Adapter(NamedTuple):
    """The two small matrices of an adapter beside the matrix that they add to."""

    base: TensorNode
    first: TensorNode
    second: TensorNode


def lora_pairs(subject: Subject) -> Iterator[Told]:
    """LoRA's A and B are cut as their layer is.

    Of a colwise layer A is whole and B is cut on its outputs; of a rowwise one A is cut on its
    inputs and B is whole; of a whole layer both are whole.
    """
    if subject.tp == 1:
        return
    graph = subject.graph
    for adapter in _adapters(graph):
        base, first, second = adapter
        dim = _tp(base)
        table = "Embedding" in graph.module(base.parent).spec.cls
        out = 1 if table else output_dim(graph, base)
        inner = next((d for d in (1, 0) if first.shape[d] == base.shape[1 - out]), 1)
        outer = next((d for d in (0, 1) if second.shape[d] == base.shape[out]), 0)
        kind = "whole" if dim is None else "colwise" if dim == out else "rowwise"
        wanted = {"whole": (None, None), "colwise": (None, outer), "rowwise": (inner, None)}[kind]
        for node, which, expected in ((first, "A", wanted[0]), (second, "B", wanted[1])):
            if _tp(node) != expected:
                is_, should = _text(_tp(node)), _text(expected)
                yield Told(
                    "error",
                    node.id,
                    f"LoRA's {which} is {is_} on a {kind} layer, where it has to be {should}",
                    f"give it {'replicate' if expected is None else f'{{tp: S({expected})}}'}",
                )


def _tp(node: TensorNode) -> int | None:
    return None if node.layout is None else node.layout.dim("tp")


def _text(dim: int | None) -> str:
    return "R" if dim is None else f"S({dim})"


def _adapters(graph: ModuleGraph) -> Iterator[_Adapter]:
    for layer in graph.modules():
        for name, child in layer.children.items():
            found = _FIRST.fullmatch(name)
            if found is None:
                continue
            partner = f"{name[: found.start(2)]}{_SECOND.get(found[2], found[2])}"
            other = layer.children.get(partner)
            base = _base(graph, layer)
            if other is None or base is None:
                continue
            seconds = dict(_matrices(graph, other))
            for key, first in _matrices(graph, child):
                second = seconds.get(key)
                if second is not None:
                    yield _Adapter(base, first, second)


def _base(graph: ModuleGraph, layer: ModuleNode) -> TensorNode | None:
    """The matrix that an adapter adds to: the layer's own, or that of the layer it wraps."""
    owners = [layer]
    for name in _BASES:
        child = layer.children.get(name)
        inner = graph.nodes[child] if child is not None else None
        if isinstance(inner, ModuleNode):
            owners.append(inner)
    for owner in owners:
        weight = owner.children.get("weight")
        node = graph.nodes[weight] if weight is not None else None
        if isinstance(node, TensorNode) and len(node.shape) == 2:
            return node
    return None


def _matrices(graph: ModuleGraph, node_id: int) -> Iterator[tuple[str, TensorNode]]:
    """(adapter, matrix) of one side: a parameter, a layer, or a table of either."""
    node = graph.nodes[node_id]
    if isinstance(node, TensorNode):
        if len(node.shape) == 2:
            yield "", node
        return
    for inner in graph.parameters(node_id):
        if len(inner.shape) == 2:
            path = graph.path(inner.id).removeprefix(graph.path(node_id)).strip(".")
            yield path.removesuffix("weight").rstrip("."), inner
