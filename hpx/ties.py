"""Which names are declared to be one parameter: by the plan, the model's map, or its config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, cast

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.plan import ShardingPlan

__all__ = ["DeclaredPair", "declared_pairs"]

_EMBEDDINGS: Final = frozenset(["embed_tokens", "wte", "word_embeddings", "tok_embeddings"])
_HEADS: Final = frozenset(["lm_head", "embed_out", "output", "score_head"])


class DeclaredPair(NamedTuple):
    """Two names that are to hold one parameter, and who says so."""

    names: tuple[str, str]
    source: Literal["plan", "model", "config"]
    where: str


def declared_pairs(graph: ModuleGraph, plan: ShardingPlan) -> list[DeclaredPair]:
    """All declared pairs, the plan's first. Pairs of the model whose ends it lacks are left out."""
    pairs = [DeclaredPair((pair.a, pair.b), "plan", _where(plan, pair.line)) for pair in plan.tied]
    pairs += [
        DeclaredPair(names, "model", "the model's tied-keys map")
        for names in _model_pairs(graph)
        if all(graph.find(name) is not None for name in names)
    ]
    if not pairs:
        pairs += _config_pair(graph)
    return pairs


def _where(plan: ShardingPlan, line: int | None) -> str:
    return f"{plan.file}:{line}" if plan.file and line else "tied of the plan"


def _model_pairs(graph: ModuleGraph) -> Iterator[tuple[str, str]]:
    for pair in cast(list[list[str]], graph.hints.get("tied", [])):
        yield pair[0], pair[1]


def _config_pair(graph: ModuleGraph) -> list[DeclaredPair]:
    """The embedding and the head, if the config ties them and there is one of each."""
    config = cast(dict[str, object], graph.hints.get("config", {}))
    if config.get("tie_word_embeddings") is not True:
        return []
    embeddings = [node for node in graph.parameters() if _is_matrix_of(graph, node, _EMBEDDINGS)]
    heads = [node for node in graph.parameters() if _is_matrix_of(graph, node, _HEADS)]
    if len(embeddings) != 1 or len(heads) != 1 or embeddings[0].shape != heads[0].shape:
        return []
    names = (graph.path(embeddings[0].id), graph.path(heads[0].id))
    return [DeclaredPair(names, "config", "tie_word_embeddings of the config")]


def _is_matrix_of(graph: ModuleGraph, node: TensorNode, names: frozenset[str]) -> bool:
    owner = graph.nodes[node.parent]
    return isinstance(owner, ModuleNode) and owner.name in names and len(node.shape) == 2
