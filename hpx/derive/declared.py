"""What the model itself says about its parallel layout: the plans of transformers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, cast

from hpx.graph.graph import ModuleGraph
from hpx.roles.places import of_all_layers

__all__ = ["COLWISE", "ROWWISE", "Declared"]

COLWISE: Final = frozenset(["colwise", "colwise_rep", "colwise_gather_output", "packed_colwise"])
"""Styles that cut the outputs of a layer."""
ROWWISE: Final = frozenset(["rowwise", "rowwise_rep", "rowwise_split_input", "embedding_rowwise"])
"""Styles that cut its inputs."""


class Declared:
    """The plan that a model ships, asked by path.

    Args:
        graph: The graph; its hints carry the plan.
    """

    def __init__(self, graph: ModuleGraph) -> None:
        plan = cast(Mapping[str, str], graph.hints.get("tp_plan", {}))
        self._literal = {of_all_layers(pattern): style for pattern, style in plan.items()}
        embeddings = cast(Iterable[str | None], graph.hints.get("embeddings", (None, None)))
        self.tokens, self.head = tuple(embeddings)

    def style(self, path: str) -> str | None:
        """The style for a module or parameter, numbers in its path counting as wildcards."""
        return self._literal.get(of_all_layers(path)) if self._literal else None

    def colwise(self, path: str) -> bool:
        """Whether the model cuts the outputs of this layer, and leaves them cut."""
        return self.style(path) == "colwise"

    def rowwise(self, path: str) -> bool:
        """Whether the model cuts the inputs of this layer, and takes cut ones."""
        return self.style(path) == "rowwise"
