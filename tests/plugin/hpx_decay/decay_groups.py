"""Pass ``decay-groups``: which parameters the optimizer decays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hpx.errors import did_you_mean
from hpx.facts import EXPERTS_STACKED, TIED
from hpx.graph import ModuleGraph, TensorNode
from hpx.lineage import Stack
from hpx.pipeline import Fact, Pass, PassInfo, register
from hpx.pipeline.context import PassContext
from hpx.pipeline.request import Request
from hpx.plan import Pattern

__all__ = ["DECAY_DECIDED", "DecayGroups"]


def _undecided(graph: ModuleGraph, request: Request) -> Iterator[str]:
    return (
        f"{graph.path(node.id)} is trained and has no decay decision"
        for node in graph.parameters()
        if node.spec.requires_grad and "decay" not in node.props
    )


DECAY_DECIDED: Final = Fact("decay-decided", _undecided)
"""For every trained parameter it is decided whether it decays."""


@register
@dataclass(frozen=True, kw_only=True)
class DecayGroups(Pass):
    """Decide for every trained parameter whether the optimizer decays it.

    1. Matrices decay, vectors (norms, biases) do not. A stack of expert biases is one of vectors.
    2. Embeddings do not decay, unless ``embeddings=true``; a tied head goes with its embedding.
    3. What a pattern of ``keep`` matches does not decay; a pattern that matches nothing is an
       error.
    4. Frozen parameters are left alone. Where no classes are known, as in a state dict,
       embeddings cannot be told from other matrices; that is reported.
    """

    info = PassInfo(
        name="decay-groups",
        requires={TIED, EXPERTS_STACKED},
        provides={DECAY_DECIDED},
        writes={"decay"},
        required=False,
    )

    embeddings: bool = False
    """Whether embeddings decay too."""
    keep: tuple[str, ...] = ()
    """Patterns of parameters that do not decay."""

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        """Sort the parameters by decision and reason; each group is one event."""
        patterns = {text: Pattern.parse(text) for text in self.keep}
        unused = set(patterns)
        groups: dict[tuple[bool, str], list[int]] = {}
        frozen: list[int] = []
        for node in graph.parameters():
            names = graph.paths(node.id)
            hits = [t for t, p in patterns.items() if any(p.matches(name) for name in names)]
            unused.difference_update(hits)
            if node.spec.requires_grad:
                groups.setdefault(self._decision(graph, node, hits), []).append(node.id)
            else:
                frozen.append(node.id)
        _refuse_unused(graph, ctx, unused)
        for (decays, why), nodes in groups.items():
            ctx.set(nodes, "decay", decays, why=why)
        if frozen:
            ctx.skip(frozen, key="decay", why="frozen: the optimizer does not hold it")
        if not graph.has_structure and not self.embeddings:
            ctx.problem(
                "no classes are known, so embeddings were taken for plain matrices",
                hint="name them: decay-groups{keep=[model.embed_tokens.weight]}",
            )

    def _decision(self, graph: ModuleGraph, node: TensorNode, hits: list[str]) -> tuple[bool, str]:
        num_dims = len(node.shape) - isinstance(node.lineage, Stack)
        owners = [node.parent, *(parent for parent, _ in node.more)]
        if hits:
            return False, f"matches keep={hits[0]}"
        if num_dims < 2:
            return False, "a vector"
        if not self.embeddings and any(_is_embedding(graph, owner) for owner in owners):
            return False, "an embedding"
        return True, "a matrix"


def _is_embedding(graph: ModuleGraph, module: int) -> bool:
    return graph.module(module).spec.cls.endswith("Embedding")


def _refuse_unused(graph: ModuleGraph, ctx: PassContext, unused: set[str]) -> None:
    for text in sorted(unused):
        near = did_you_mean(text, [graph.path(node.id) for node in graph.parameters()])
        raise ctx.error(f"keep '{text}' matches no parameter", fix=near or None)
