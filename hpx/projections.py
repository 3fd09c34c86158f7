"""Which matrices are q, k, v or fused projections, by name, and which of their dims is which."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, Node, TensorNode

__all__ = [
    "Role",
    "is_only_layer",
    "is_projection",
    "is_projection_name",
    "layer_weight",
    "lora_layer",
    "output_dim",
    "role_of",
    "role_of_name",
]

Role: TypeAlias = Literal["q", "k", "v", "qkv", "kv"]


_ATTENTION: Final = r"(?:self_|cross_)?att(?:n|ention)_"
_BEFORE: Final = rf"(?:{_ATTENTION})?(?:w_?|to_|lin_|linear_|c_)?"
_AFTER: Final = r"(?:_?(?:proj|lin|linear|layer|net|b_proj|proj_weight))?"
_NAMES: Final[tuple[tuple[Role, str], ...]] = (
    ("q", f"{_BEFORE}(?:q|query){_AFTER}"),
    ("k", f"{_BEFORE}(?:k|key){_AFTER}"),
    ("v", f"{_BEFORE}(?:v|value){_AFTER}"),
    ("kv", f"{_BEFORE}(?:kv|key_value){_AFTER}"),
    ("qkv", rf"(?:\w+_)?{_BEFORE}(?:qkv|query_key_value){_AFTER}"),
    ("qkv", rf"c_attn|att_proj|w_pack|in_proj(?:_weight)?|{_ATTENTION}in(?:_proj)?"),
)
_PATTERNS: Final = tuple((role, re.compile(names, re.IGNORECASE)) for role, names in _NAMES)


@lru_cache(maxsize=4096)
def role_of_name(name: str) -> Role | None:
    """The role that a module or parameter of this name usually has in an attention module."""
    return next((role for role, names in _PATTERNS if names.fullmatch(name)), None)


def is_projection_name(name: str) -> bool:
    """Whether a module or parameter of this name is usually a q, k, v or fused projection.

    >>> [is_projection_name(name) for name in ("q_proj", "Wqkv", "to_k", "key", "o_proj", "fc1")]
    [True, True, True, True, False, False]
    """
    return role_of_name(name) is not None


def output_dim(graph: ModuleGraph, node: TensorNode) -> int:
    """The dim of a projection's weight (or bias) that indexes its outputs.

    Where only names are known, a bias as long as dim 1 tells a transposed (``Conv1D``) weight.
    """
    owner = graph.nodes[node.parent]
    if len(node.shape) != 2 or not isinstance(owner, ModuleNode):
        return 0
    if owner.spec.cls:
        return 1 if owner.spec.short_cls == "Conv1D" else 0
    bias = owner.children.get("bias")
    shape = graph.tensor(bias).shape if bias is not None and node.name == "weight" else ()
    return 1 if shape == node.shape[1:] and node.shape[0] != node.shape[1] else 0


def role_of(graph: ModuleGraph, node: TensorNode) -> tuple[int, Role | None] | None:
    """(attention module, role) of a projection's weight; the role is None where no name tells."""
    if len(node.shape) != 2:
        return None
    role = role_of_name(node.name)
    if role is not None:
        return node.parent, role
    owner = graph.module(node.parent)
    while owner.parent >= 0 and (
        _only_wraps(graph.module(owner.parent), owner.name) or is_only_layer(graph, owner)
    ):
        owner = graph.module(owner.parent)
    if node.name != "weight" or owner.parent < 0 or "Embedding" in owner.spec.cls:
        return None
    return owner.parent, role_of_name(owner.name)


def is_projection(graph: ModuleGraph, node: TensorNode) -> bool:
    """Whether a weight is a q, k, v or fused projection, by its name."""
    found = role_of(graph, node)
    return found is not None and found[1] is not None


def _only_wraps(module: ModuleNode, child: str) -> bool:
    """Whether a module stands for its child: wrappers do, and LoRA's layers."""
    return child in (module.spec.wrapper, "base_layer")


def is_only_layer(graph: ModuleGraph, module: ModuleNode) -> bool:
    """Whether a module is all that has parameters in a ``Sequential``, which then is that layer."""
    if module.parent < 0 or graph.module(module.parent).spec.container != "sequential":
        return False
    grand = graph.module(module.parent)
    if grand.parent < 0 or role_of_name(grand.name) is None:
        return False
    return all(
        child.id == module.id or not _has_parameters(graph, child.id)
        for child in graph.children(grand.id)
    )


def lora_layer(graph: ModuleGraph, owner: int) -> int:
    """The LoRA layer that the owner of a matrix belongs to, or the owner itself."""
    above = graph.nodes[owner].parent
    for _ in range(3):  # lora_A, a ModuleDict, stands in the layer, and a Linear in it
        if above < 0:
            break
        if "base_layer" in graph.module(above).children:
            return above
        above = graph.nodes[above].parent
    return owner


def _has_parameters(graph: ModuleGraph, module: int) -> bool:
    return next(iter(graph.parameters(module)), None) is not None


def _stands_for(graph: ModuleGraph, module: ModuleNode, name: str, child: int) -> bool:
    node = graph.nodes[child]
    is_layer = isinstance(node, ModuleNode) and is_only_layer(graph, node)
    return is_layer or _only_wraps(module, name)


def layer_weight(graph: ModuleGraph, module: ModuleNode) -> Node | None:
    """The weight of a layer, through what only wraps it."""
    while "weight" not in module.children:
        inner = [c for name, c in module.children.items() if _stands_for(graph, module, name, c)]
        node = graph.nodes[inner[0]] if inner else None
        if not isinstance(node, ModuleNode):
            return None
        module = node
    return graph.nodes[module.children["weight"]]
