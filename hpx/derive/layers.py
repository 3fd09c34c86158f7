"""Linear layers as the derivation sees them: what they read and give, bias and adapters."""

from __future__ import annotations

from typing import Final, NamedTuple

from hpx.derive.names import POSITIONS, TOKENS
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.projections import is_only_layer, layer_weight, output_dim

__all__ = ["Adapter", "Layer", "has_convolution", "is_linear", "layer_at", "layers_in"]

_NOT_LINEAR: Final = "bilinear"


class Adapter(NamedTuple):
    """A low-rank matrix beside a weight: ``reads`` (LoRA's A), ``gives`` (B) or ``other``."""

    node: int
    side: str


class Layer(NamedTuple):
    """A linear layer.

    Attributes:
        module: The module that stands for it: its owner, or what wraps that (LoRA).
        name: The registered name of that module.
        weight: Its weight.
        bias: Its bias, if any.
        inputs: How many values it reads.
        outputs: How many it gives.
        out_dim: The dim of the weight that counts outputs.
        adapters: Matrices beside the weight.
    """

    module: int
    name: str
    weight: int
    bias: int | None
    inputs: int
    outputs: int
    out_dim: int
    adapters: tuple[Adapter, ...] = ()


def is_linear(module: ModuleNode) -> bool:
    """Whether the class of a module, where it is known, is one of linear layers."""
    name = module.spec.short_cls.lower()
    return (
        not name or name == "conv1d" or (name.endswith("linear") and not name.endswith(_NOT_LINEAR))
    ) and not module.spec.cls.endswith(".Conv1d")


def layer_at(graph: ModuleGraph, module: ModuleNode) -> Layer | None:
    """The linear layer that a module is or stands for."""
    weight = layer_weight(graph, module)
    if not isinstance(weight, TensorNode) or weight.kind != "parameter" or len(weight.shape) != 2:
        return None
    owner = _owner_of(graph, module)
    if not is_linear(owner) or (not owner.spec.cls and _is_table(owner)):
        return None
    out = 1 if owner.spec.short_cls == "Conv1D" else 0
    if not owner.spec.cls:
        out = output_dim(graph, weight)
    bias = owner.children.get("bias")
    adapters = () if owner.id == module.id else tuple(_adapters(graph, module, owner, weight, out))
    return Layer(
        *(module.id, module.name, weight.id, bias),
        *(weight.shape[1 - out], weight.shape[out], out, adapters),
    )


def has_convolution(graph: ModuleGraph, module: ModuleNode) -> bool:
    """Whether a convolution is among the children: it mixes channels in a way of its own."""
    return any(
        isinstance(child, ModuleNode)
        and child.spec.short_cls.lower().rstrip("123d") == "conv"
        and child.spec.short_cls != "Conv1D"
        for child in graph.children(module.id)
    )


def layers_in(graph: ModuleGraph, module_id: int) -> list[Layer]:
    """The linear layers among the children of a module, in order."""
    found = (
        layer_at(graph, child)
        for child in graph.children(module_id)
        if isinstance(child, ModuleNode) and child.children
    )
    return [layer for layer in found if layer is not None]


def _owner_of(graph: ModuleGraph, module: ModuleNode) -> ModuleNode:
    """The module that holds the weight, inside what wraps it."""
    while "weight" not in module.children:
        inner = module.children.get("base_layer") or module.children.get(module.spec.wrapper or "")
        if inner is None:
            layers = (c for c in graph.children(module.id) if isinstance(c, ModuleNode))
            inner = next(layer.id for layer in layers if is_only_layer(graph, layer))
        module = graph.module(inner)
    return module


def _is_table(owner: ModuleNode) -> bool:
    """Whether a matrix of which only the name is known is a table of embeddings."""
    return owner.name in TOKENS or owner.name in POSITIONS


def _adapters(
    graph: ModuleGraph, module: ModuleNode, owner: ModuleNode, weight: TensorNode, out: int
) -> list[Adapter]:
    outputs, inputs = weight.shape[out], weight.shape[1 - out]
    found: list[Adapter] = []
    for node in graph.parameters(module.id):
        if node.parent == owner.id:
            continue
        reads = len(node.shape) == 2 and node.shape[1] == inputs
        gives = len(node.shape) == 2 and node.shape[0] == outputs
        if reads and gives:  # a square adapter: its name tells
            parts = graph.path(node.id).split(".")
            reads, gives = "lora_A" in parts, "lora_B" in parts
        side = "reads" if reads and not gives else "gives" if gives and not reads else "other"
        found.append(Adapter(node.id, side))
    return found
