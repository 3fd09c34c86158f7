"""Which names are declared to be one parameter: by the plan, the model's map, or its config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, cast

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.plan import ShardingPlan

__all__ = ["DeclaredPair", "declared_pairs", "untied_config"]

_EMBEDDINGS: Final = frozenset(
    ["embed_tokens", "embed_in", "wte", "word_embeddings", "tok_embeddings", "embedding"]
)
_HEADS: Final = frozenset(["lm_head", "embed_out", "output", "proj_out", "output_projection"])


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
    return pairs + _config_pair(graph)


def _where(plan: ShardingPlan, line: int | None) -> str:
    return f"{plan.file}:{line}" if plan.file and line else "tied of the plan"


def _model_pairs(graph: ModuleGraph) -> Iterator[tuple[str, str]]:
    for pair in cast(list[list[str]], graph.hints.get("tied", [])):
        yield pair[0], pair[1]


def untied_config(graph: ModuleGraph) -> str | None:
    """Why a config's ``tie_word_embeddings`` ties nothing; None where it does or says nothing."""
    if not _config_ties(graph) or "tied" in graph.hints or _config_pair(graph):
        return None
    if any(node.more for node in graph.parameters()):
        return None
    return (
        "tie_word_embeddings of the config ties nothing: there is not one embedding and one head"
        " of its shape; declare the pair under tied: if there is one"
    )


def _config_ties(graph: ModuleGraph) -> bool:
    return cast(dict[str, object], graph.hints.get("config", {})).get("tie_word_embeddings") is True


def _config_pair(graph: ModuleGraph) -> list[DeclaredPair]:
    """The embedding and the head, if the config ties them and there is one of each."""
    if not _config_ties(graph):
        return []
    matrices = [node for node in graph.parameters() if len(node.shape) == 2]
    embeddings = [node for node in matrices if _named_as(graph, node, _EMBEDDINGS)]
    heads = [node for node in matrices if _named_as(graph, node, _HEADS)]
    if len(embeddings) != 1 or len(heads) != 1 or embeddings[0].shape != heads[0].shape:
        return []
    names = (graph.path(embeddings[0].id), graph.path(heads[0].id))
    if embeddings[0].id == heads[0].id:
        return []
    return [DeclaredPair(names, "config", "tie_word_embeddings of the config")]


def _named_as(graph: ModuleGraph, node: TensorNode, names: frozenset[str]) -> bool:
    """Whether one of a tensor's owners has one of the names."""
    owners = (graph.nodes[parent] for parent, _ in ((node.parent, node.name), *node.more))
    return any(isinstance(owner, ModuleNode) and owner.name in names for owner in owners)
