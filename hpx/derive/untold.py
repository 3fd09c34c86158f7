"""Layers of a module that counts heads, where nothing tells which of them are q, k, v and o."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from hpx.derive.layers import layer_at
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, Node
from hpx.heads import KV_COUNTS, Q_COUNTS

__all__ = ["TORCH_ATTENTION", "untold_heads"]

TORCH_ATTENTION: Final = "torch's MultiheadAttention computes with its whole weights"

_MAX_NAMES = 6


def untold_heads(graph: ModuleGraph, owner: ModuleNode, known: Collection[int]) -> str | None:
    """Why a layer near a count of heads stays whole; None if no heads are counted there.

    Args:
        graph: The graph.
        owner: The layer.
        known: Modules of which the attention was found.
    """
    module = graph.nodes.get(owner.parent)
    for _ in range(2):
        if not isinstance(module, ModuleNode):
            return None
        counts = [
            f"{name} = {value}"
            for name, value in module.spec.attributes
            if name in (*Q_COUNTS, *KV_COUNTS) and value > 1
        ]
        if counts and module.id not in known:
            whole = "MultiheadAttention" in module.spec.cls
            return TORCH_ATTENTION if whole else _text(graph, module, counts)
        module = graph.nodes.get(module.parent)
    return None


def _text(graph: ModuleGraph, module: ModuleNode, counts: list[str]) -> str | None:
    names: list[str] = []
    wrapped: list[str] = []
    for child in graph.children(module.id):
        if not isinstance(child, ModuleNode) or not child.children:
            continue
        if _is_a_layer(graph, child):
            names.append(child.name)
        elif any(_is_a_layer(graph, inner) for inner in graph.children(child.id)):
            names.append(child.name)
            wrapped.append(f"{child.name} is a {child.spec.short_cls or 'module'} around a layer")
    if len(names) < 2:
        return None
    shown = ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
    why = "; ".join(wrapped[:_MAX_NAMES]) or "neither shapes nor names tell"
    return (
        f"{module.spec.short_cls or module.name} counts heads ({', '.join(counts)}), and which of"
        f" {shown} are q, k, v and o is not known: {why}; to cut them, give all of them rules"
    )


def _is_a_layer(graph: ModuleGraph, node: Node) -> bool:
    return (
        isinstance(node, ModuleNode)
        and bool(node.children)
        and node.spec.cls != ""
        and layer_at(graph, node) is not None
    )
