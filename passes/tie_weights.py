"""Pass ``tie-weights``: names that are declared to be one parameter become one node."""

from __future__ import annotations

from dataclasses import dataclass

from hpx.facts import TIED
from hpx.graph import ModuleGraph, TensorNode
from hpx.pipeline import Pass, PassInfo, register
from hpx.pipeline.context import PassContext
from hpx.ties import DeclaredPair, declared_pairs, untied_config

__all__ = ["TieWeights"]


@register
@dataclass(frozen=True, kw_only=True)
class TieWeights(Pass):
    """Make one parameter of each pair of names that is declared tied, before any rule is matched.

    1. Pairs are declared by the plan's ``tied:``, by the model's own tied-keys map, or by
       ``tie_word_embeddings`` of its config with one embedding and one head of equal shape.
    2. What the model shares already is one node since the import; that is said in the log.
    3. A declared pair of which one end is missing or no parameter, or whose ends differ in shape,
       dtype, requires_grad, type or placement, is an error.
    4. A config that ties without saying what is no error: the log says that nothing was found.
    """

    info = PassInfo(name="tie-weights", provides={TIED}, writes={"structure"})

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        """Merge every declared pair."""
        for node in graph.parameters():
            if node.more:
                names = " = ".join(graph.paths(node.id))
                ctx.skip(node.id, why=f"one parameter in the model already: {names}")
        for pair in declared_pairs(graph, ctx.plan):
            _tie(graph, ctx, pair)
        if (reason := untied_config(graph)) is not None:
            ctx.note(reason)


def _tie(graph: ModuleGraph, ctx: PassContext, pair: DeclaredPair) -> None:
    first, second = (_end(graph, ctx, pair, name) for name in pair.names)
    if first.id == second.id:
        return
    for field in ("shape", "dtype", "requires_grad", "cls", "placed"):
        a, b = getattr(first.spec, field), getattr(second.spec, field)
        if a != b:
            raise ctx.error(
                f"cannot tie {pair.names[0]} and {pair.names[1]}",
                why=f"their {field} differ: {a} and {b} ({pair.where})",
                fix="correct the pair, or make the parameters equal",
                check="tied-ends",
            )
    # The earlier one in the tree keeps its place, in whatever order the pair names them.
    keep, drop = sorted((first, second), key=lambda node: node.id)
    why = f"declared tied by {pair.where}: {pair.names[0]} = {pair.names[1]}"
    ctx.alias(keep.id, drop.id, why=why)


def _end(graph: ModuleGraph, ctx: PassContext, pair: DeclaredPair, name: str) -> TensorNode:
    node = graph.get(name) if graph.find(name) is not None else None
    if isinstance(node, TensorNode) and node.kind == "parameter":
        return node
    near = graph.names_near(name)
    raise ctx.error(
        f"the tied pair names '{name}', and there is no such parameter",
        why=f"declared by {pair.where}",
        fix=f"the nearest names are {', '.join(near)}" if near else "correct the name",
        check="tied-ends",
    )
