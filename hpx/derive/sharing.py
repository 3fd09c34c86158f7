"""Attention layers of which one holds a bias of positions, and gives it to the others.

T5's first layer does. Such layers are cut together, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hpx.derive.types import Block
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.heads import attention_at
from hpx.roles.places import of_all_layers

__all__ = ["tied_blocks", "whole_with_others"]


def whole_with_others(graph: ModuleGraph, blocks: Iterable[Block]) -> Iterator[tuple[Block, str]]:
    """Cut attention that may be given the bias of one that stays whole, and why it stays whole too.

    Args:
        graph: The graph.
        blocks: The blocks that were found.
    """
    groups: dict[tuple[str, str], list[Block]] = {}
    for block in blocks:
        if block.kind == "attention":
            path = of_all_layers(graph.path(block.owner))
            groups.setdefault((path, graph.module(block.owner).spec.cls), []).append(block)
    for alike in groups.values():
        tables = {block.owner: _table(graph, block) for block in alike if len(alike) > 1}
        whole = [name for b in alike if (name := tables.get(b.owner)) and b.obstacle is not None]
        if not whole:
            continue
        for block in alike:
            if block.obstacle is None and tables[block.owner] is None:
                why = (
                    f"it has no bias of positions of its own, and that of all heads in {whole[0]},"
                    " which stays whole, may be given to it"
                )
                yield block, why


def tied_blocks(graph: ModuleGraph, blocks: Iterable[Block]) -> Iterator[tuple[Block, str]]:
    """Blocks of which a weight has a second owner elsewhere, where its partner is another one.

    Args:
        graph: The graph, with its ties made.
        blocks: The blocks that were found.
    """
    for block in blocks:
        for layer in (*block.columns, *block.rows):
            for parent, name in graph.nodes[layer.weight].more:
                if graph.nodes[parent].parent != block.owner:
                    other = graph.edge_path(parent, name)
                    yield block, f"{layer.name} is {other} too, and what reads that is not known"


def _table(graph: ModuleGraph, block: Block) -> str | None:
    """The name of a table of embeddings with one column a head in an attention module."""
    heads = None
    for child in graph.children(block.owner):
        weight = child.children.get("weight") if isinstance(child, ModuleNode) else None
        node = None if weight is None else graph.nodes[weight]
        if isinstance(node, TensorNode) and "Embedding" in graph.module(child.id).spec.cls:
            heads = heads or attention_at(graph, block.owner).num_heads
            if node.shape[1:] == (heads,):
                return graph.path(node.id)
    return None
