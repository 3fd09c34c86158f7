"""Who stands where: regions, what a layer stands for, and which layers take whose outputs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Final

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.heads import attention_at
from hpx.plan.boundary import Boundary
from hpx.projections import is_projection, layer_weight, lora_layer, output_dim
from hpx.roles.types import Cut

__all__ = ["Places", "of_all_layers", "relative"]


def of_all_layers(path: str) -> str:
    """A path with ``*`` for numbers, so that the same of all layers is told once.

    >>> of_all_layers("h.0.mlp")
    'h.*.mlp'
    """
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


def relative(graph: ModuleGraph, node_id: int, module: int) -> str:
    """The name of a node inside a module, as ``get_submodule`` takes it."""
    inner, outer = graph.registered_path(node_id), graph.registered_path(module)
    return inner.removeprefix(outer).lstrip(".")


_HEADS: Final = frozenset(["lm_head", "embed_out", "output_projection"])


class Places:
    """Questions about places in one graph.

    Args:
        graph: The graph.
        regions: Ids of the regions.
        declared: The plan's entries by module.
    """

    def __init__(
        self, graph: ModuleGraph, regions: Collection[int], declared: Mapping[int, Boundary]
    ) -> None:
        self.graph = graph
        self.regions = frozenset(regions)
        self.declared = declared

    def above(self, node_id: int) -> Iterator[int]:
        """A module itself and those around it, innermost first."""
        if isinstance(self.graph.nodes[node_id], ModuleNode):
            yield node_id
        while (node_id := self.graph.nodes[node_id].parent) >= 0:
            yield node_id

    def region_of(self, module: int) -> int | None:
        """The region that a module is or stands in."""
        return next((one for one in self.above(module) if one in self.regions), None)

    def is_declared(self, module: int) -> bool:
        """Whether the plan takes care of a module, or of one around it."""
        return any(one in self.declared for one in self.above(module))

    def counts_heads(self, module: int, size: int) -> bool:
        """Whether a module is attention whose heads are cut, and has so many of them."""
        if self.region_of(module) is None:
            return False
        attention = attention_at(self.graph, module)
        return attention.q_is_cut and attention.num_heads == size

    def layer(self, owner: int) -> int:
        """The LoRA layer around the owner of a matrix, or the owner itself."""
        return lora_layer(self.graph, owner)

    def takes(self, row: Cut, column: Cut) -> bool:
        """Whether a rowwise layer takes the outputs of a colwise layer that is near it."""
        around = self.graph.nodes[column.layer].parent
        near = self.beside(row, around) or self.graph.nodes[row.layer].parent == around
        same = column.outputs == row.inputs
        return near and (same or is_projection(self.graph, self.graph.tensor(column.weight)))

    def beside(self, row: Cut, module: int) -> bool:
        """Whether a rowwise layer stands in a module, beside it, or in a module beside it."""
        place = self.graph.nodes[row.layer].parent
        if module < 0 or place < 0:
            return place == module
        around = self.graph.nodes[module].parent
        if around < 0:
            return place == module
        return place in (module, around) or self.graph.nodes[place].parent == around

    def whole_inputs(self, region: int) -> dict[int, str]:
        """Of the whole linear layers right inside a module: names by how many inputs they take."""
        found: dict[int, str] = {}
        for child in self.graph.children(region):
            weight = layer_weight(self.graph, child) if isinstance(child, ModuleNode) else None
            if (
                isinstance(weight, TensorNode)
                and len(weight.shape) == 2
                and (weight.layout is None or not weight.layout.shards)
                and not is_projection(self.graph, weight)
                and "Embedding" not in self.graph.module(weight.parent).spec.cls
            ):
                inputs = weight.shape[1 - output_dim(self.graph, weight)]
                found.setdefault(inputs, child.name)
        return found

    def is_head(self, cut: Cut, embedded: Collection[int]) -> bool:
        """Whether a colwise layer scores the tokens of a vocabulary.

        Args:
            cut: The layer.
            embedded: Ids of weights that are embeddings under another name.
        """
        name = self.graph.nodes[cut.layer].name
        return cut.weight in embedded or name in _HEADS or cut.outputs in self._vocabularies

    @cached_property
    def _vocabularies(self) -> set[int]:
        return {
            node.shape[0]
            for node in self.graph.parameters()
            if len(node.shape) == 2 and "Embedding" in self.graph.module(node.parent).spec.cls
        }

    def relative(self, node_id: int, module: int) -> str:
        """The name of a node inside a module, as ``get_submodule`` takes it."""
        return relative(self.graph, node_id, module)
