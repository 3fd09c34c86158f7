"""The two ends of a model: embeddings, and the layer that scores the vocabulary."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from hpx.derive.declared import COLWISE, ROWWISE, Declared
from hpx.derive.layers import Layer, layer_at
from hpx.derive.names import HEAD, POSITIONS, TOKENS
from hpx.derive.types import Choice, Origin, cut
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.mesh import divisors

__all__ = ["ENDS", "end_choices"]

ENDS: Final = "embedding and head"
"""The group of a plan file that they stand in."""
_ROWS = "vocab parallel, every rank looks up its own rows"
_SCORES = "vocab parallel, every rank scores its own rows"


def end_choices(
    graph: ModuleGraph, declared: Declared, tp: int, taken: Collection[int]
) -> dict[int, Choice]:
    """A choice for every embedding, and for every head with its bias.

    Args:
        graph: The graph.
        declared: The model's own plan.
        tp: How many ranks would share the vocabulary.
        taken: Weights that belong to blocks.
    """
    layers = [
        (module, layer)
        for module in graph.modules()
        if module.children
        and (layer := layer_at(graph, module)) is not None
        and layer.weight not in taken
    ]
    tables = list(_tables(graph))
    outside = [(module, layer) for module, layer in layers if not _is_repeated(graph, module.id)]
    tokens = _token_tables(graph, declared, tables, [layer for _, layer in outside])
    choices: dict[int, Choice] = {}
    for module, node in tables:
        origin = tokens.get(node.id)
        if origin is None:
            rows = node.shape[0]
            by: Origin = "names" if module.name in POSITIONS else "structure"
            why = f"a table of {rows} rows that is no vocabulary, read whole by every rank"
            choices[node.id] = Choice.whole(why, ENDS, by)
        else:
            choices[node.id] = _by_rows(node, 0, _ROWS, origin, tp)
    vocabularies = {graph.tensor(node).shape[0] for node in tokens}
    for layer, origin in _heads(graph, declared, vocabularies, set(tokens), outside):
        known = choices.get(layer.weight)
        if known is None:
            weight = graph.tensor(layer.weight)
            known = choices[layer.weight] = _by_rows(weight, layer.out_dim, _SCORES, origin, tp)
        if layer.bias is not None:
            text = "goes with the rows of its weight"
            layout = cut("tp", 0) if known.layout.shards else known.layout
            reason = text if known.layout.shards else known.reason
            choices.setdefault(layer.bias, Choice(layout, reason, origin, ENDS))
    return choices


def _is_repeated(graph: ModuleGraph, module: int) -> bool:
    """Whether a module stands in one of several layers: no end of the model does."""
    while (module := graph.nodes[module].parent) >= 0:
        around = graph.module(module)
        numbered = all(name.isdigit() for name in around.children)
        if around.spec.container == "list" or (not around.spec.cls and numbered):
            return len(around.children) > 1
    return False


def _by_rows(node: TensorNode, dim: int, why: str, origin: Origin, tp: int) -> Choice:
    rows = node.shape[dim]
    if rows % tp:
        sizes = ", ".join(str(s) for s in divisors(rows) if s <= 64)
        text = f"{rows} rows cannot be shared by tp={tp}, {rows} % {tp} = {rows % tp}; a tp of"
        return Choice.whole(f"{text} {sizes} can", ENDS, origin)
    return Choice(cut("tp", dim), why, origin, ENDS)


def _tables(graph: ModuleGraph) -> Iterator[tuple[ModuleNode, TensorNode]]:
    for module in graph.modules():
        weight = module.children.get("weight")
        node = graph.nodes[weight] if weight is not None else None
        if not isinstance(node, TensorNode) or len(node.shape) != 2 or node.parent != module.id:
            continue
        by_class = "Embedding" in module.spec.short_cls
        by_name = not module.spec.cls and (module.name in TOKENS or module.name in POSITIONS)
        if by_class or by_name:
            yield module, node


def _token_tables(
    graph: ModuleGraph,
    declared: Declared,
    tables: list[tuple[ModuleNode, TensorNode]],
    layers: list[Layer],
) -> dict[int, Origin]:
    """Embeddings of a vocabulary: the model says so, a head has as many rows, or the name tells."""
    found: dict[int, Origin] = {}
    stated = graph.find(declared.tokens) if declared.tokens else None
    rows = {(x.inputs, x.outputs) for x in layers}
    for module, node in tables:
        if module.spec.short_cls.endswith("Bag"):
            continue  # it takes the mean of a bag, of which a rank would look up a part
        if module.id == stated or declared.style(graph.path(module.id)) in ROWWISE:
            found[node.id] = "model"
        elif module.name in POSITIONS:
            continue
        elif node.more or (node.shape[1], node.shape[0]) in rows:
            found[node.id] = "structure"
        elif module.name in TOKENS:
            found[node.id] = "names"
    return found


def _heads(
    graph: ModuleGraph,
    declared: Declared,
    vocabularies: set[int],
    tokens: set[int],
    layers: list[tuple[ModuleNode, Layer]],
) -> Iterator[tuple[Layer, Origin]]:
    stated = graph.find(declared.head) if declared.head else None
    for module, layer in layers:
        style = declared.style(graph.path(module.id))
        if module.id == stated or (module.name in HEAD and style in COLWISE):
            yield layer, "model"
        elif layer.weight in tokens or layer.outputs in vocabularies - {layer.inputs}:
            yield layer, "structure"
        elif module.name in HEAD:
            yield layer, "names"
