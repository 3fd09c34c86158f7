"""Decide for every parameter of a graph: blocks first, then the ends, then what is left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hpx.derive.attention import attention_in
from hpx.derive.declared import Declared
from hpx.derive.ends import end_choices
from hpx.derive.experts import expert_choices
from hpx.derive.layers import Layer, is_linear, layers_in
from hpx.derive.mlp import mlp_in, mlp_of_cousins
from hpx.derive.sharing import tied_blocks, whole_with_others
from hpx.derive.types import Block, Choice, cut
from hpx.derive.untold import TORCH_ATTENTION, untold_heads
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.layout import REPLICATED
from hpx.mesh import MeshSpec
from hpx.plan import ShardingPlan

__all__ = ["Decider"]

_NO_TP: Final = "the mesh has no tp axis"


class Decider:
    """The choices for one graph on one mesh.

    Args:
        graph: The graph as ``shard-params`` sees it: tied, experts stacked.
        mesh: The mesh.
        plan: What was asked for so far.
        unstacked: Why experts could not be stacked; None if they could.

    Attributes:
        blocks: Blocks by the parameters that they hold.
        choices: The choice for every parameter.
    """

    def __init__(
        self, graph: ModuleGraph, mesh: MeshSpec, plan: ShardingPlan, unstacked: str | None
    ) -> None:
        self.graph = graph
        self.mesh = mesh
        self.tp = mesh.size("tp", 1)
        self.has_tp = mesh.has("tp")
        self.declared = Declared(graph)
        self.found: list[Block] = []
        self.blocks: dict[int, Block] = {}
        self.choices: dict[int, Choice] = expert_choices(graph, plan, mesh, unstacked)
        self._blocks_of_layers()
        if self.has_tp:
            self.choices |= {
                node: choice
                for node, choice in end_choices(
                    graph, self.declared, self.tp, self.blocks.keys()
                ).items()
                if node not in self.choices
            }
        self.attention = {block.owner for block in self.found if block.kind == "attention"}
        for block, why in (*whole_with_others(graph, self.found), *tied_blocks(graph, self.found)):
            block.obstacle = block.obstacle or why
        for block in self.found:
            self.settle(block)
        for node in graph.parameters():
            if node.id not in self.choices:
                self.choices[node.id] = self._rest(node)

    # -- blocks --------------------------------------------------------------------------------

    def _blocks_of_layers(self) -> None:
        modules = [m for m in self.graph.modules() if m.children and not self._is_expert(m)]
        for module in modules:
            block = attention_in(self.graph, module, self.declared, self.tp)
            if block is not None:
                self._claim(block)
        streams = self._streams()
        for module in modules:
            taken = self._taken()
            block = mlp_in(self.graph, module, self.declared, self.tp, taken, streams)
            if block is None:
                block = mlp_of_cousins(self.graph, module, self.tp, taken)
            if block is not None:
                self._claim(block)

    def _streams(self) -> set[int]:
        """Widths of streams: what attention gives, and what tables look up."""
        widths = {row.outputs for block in self.found for row in block.rows}
        for module in self.graph.modules():
            weight = module.children.get("weight")
            if weight is not None and "Embedding" in module.spec.short_cls:
                widths.update(self.graph.tensor(weight).shape[1:2])
        return widths

    def _is_expert(self, module: ModuleNode) -> bool:
        """Whether a module stands in a container of experts, by its parameters."""
        first = next(self.graph.parameters(module.id), None)
        return first is not None and first.id in self.choices and module.id != self.graph.root

    def _taken(self) -> set[int]:
        return {*self.blocks, *self.choices}

    def _claim(self, block: Block) -> None:
        self.found.append(block)
        for layer in (*block.columns, *block.rows, *block.inner):
            for node in (layer.weight, layer.bias, *(a.node for a in layer.adapters)):
                if node is not None:
                    self.blocks[node] = block
        self.blocks.update(dict.fromkeys((*block.vectors, *block.tables), block))

    def demote(self, block: Block, why: str) -> None:
        """Leave a block whole after all."""
        block.obstacle = why
        self.settle(block)
        for node in self._inside(block):
            if node.id not in self.blocks:
                self.choices[node.id] = self._rest(node)

    def settle(self, block: Block) -> None:
        """Make the choices for the parameters of a block."""
        if not self.has_tp:
            block.obstacle = block.obstacle or _NO_TP
        if block.obstacle is not None:
            self._whole(block, block.obstacle)
            return
        for layer in block.columns:
            self._column(block, layer)
        for layer in block.rows:
            self._row(block, layer)
        for layer in block.inner:
            why = "the latent vector is shared by all heads; gradients are summed over tp"
            self._set(block, layer.weight, None, why)
            self._set(block, layer.bias, None, why)
            for adapter in layer.adapters:
                self._set(block, adapter.node, None, why)
        for node in block.vectors:
            shape = self.graph.tensor(node).shape
            self._set(block, node, shape.index(max(shape)), "one value a head, cut with the heads")
        for node in block.tables:
            self._set(block, node, 1, "one column a head, cut with the heads")
        for inner in self._inside(block):
            if inner.id not in self.blocks and inner.id not in self.choices:
                self.choices[inner.id] = self._beside(inner, block)

    def _whole(self, block: Block, why: str) -> None:
        for layer in (*block.columns, *block.rows, *block.inner):
            for node in (layer.weight, layer.bias, *(a.node for a in layer.adapters)):
                self._set(block, node, None, why)
        for node in (*block.vectors, *block.tables):
            self._set(block, node, None, why)

    def _column(self, block: Block, layer: Layer) -> None:
        self._set(block, layer.weight, layer.out_dim, block.column_reason)
        self._set(block, layer.bias, 0, "goes with the outputs of its weight")
        for node, side in layer.adapters:
            if side == "gives":
                self._set(block, node, 0, "LoRA's B gives what its layer gives: column parallel")
            else:
                self._set(block, node, None, "LoRA's A reads the whole stream")

    def _row(self, block: Block, layer: Layer) -> None:
        self._set(block, layer.weight, 1 - layer.out_dim, block.row_reason)
        self._set(block, layer.bias, None, "added once, after the sum over tp")
        for node, side in layer.adapters:
            if side == "reads":
                self._set(block, node, 1, "LoRA's A reads what its layer reads: row parallel")
            else:
                self._set(block, node, None, "LoRA's B gives to the whole stream")

    def _set(self, block: Block, node: int | None, dim: int | None, why: str) -> None:
        if node is not None:
            layout = REPLICATED if dim is None else cut("tp", dim)
            self.choices[node] = Choice(layout, why, block.origin, block.heading)

    def _inside(self, block: Block) -> Iterator[TensorNode]:
        if block.kind == "attention":
            yield from self.graph.parameters(block.owner)

    def _beside(self, node: TensorNode, block: Block) -> Choice:
        owner = self.graph.module(node.parent)
        if "norm" in (owner.spec.short_cls or owner.name).lower():
            latent = {layer.inputs for layer in block.columns} - {block.rows[0].outputs}
            if node.shape[:1] and node.shape[0] in latent:
                why = "norm of the latent vector; its gradient is summed over tp"
                return Choice.whole(why, block.heading)
            why = f"one norm of {node.shape[0]} for all heads; its gradient is summed over tp"
            return Choice.whole(why, block.heading)
        return Choice.whole("read by all heads; its gradient is summed over tp", block.heading)

    # -- what is left --------------------------------------------------------------------------

    def _rest(self, node: TensorNode) -> Choice:
        owner = self.graph.module(node.parent)
        cls = owner.spec.short_cls
        name = (cls or owner.name).lower()
        if len(node.shape) <= 1 and ("norm" in name or name in ("ln", "ln_f", "ln_1", "ln_2")):
            return Choice.whole("a norm, whole on every rank", "norms")
        if not self.has_tp:
            return Choice.whole(_NO_TP, "other")
        role = "an unknown role"
        if "Embedding" in cls and node.name == "weight" and len(node.shape) == 2:
            return Choice.whole("a table that is no vocabulary", "embedding and head")
        mixer = self._mixer(owner)
        if mixer is not None:
            return Choice.whole(mixer, "unknown")
        if "MultiheadAttention" in cls:
            why = TORCH_ATTENTION
        elif node.name in ("weight", "bias") and is_linear(owner) and len(node.shape) <= 2 and cls:
            why = untold_heads(self.graph, owner, self.attention) or (
                "a linear layer without a partner: no layer is known that takes its outputs cut"
            )
        elif "conv" in name:
            why = f"{role}: how a {cls or owner.name} meets cut channels is not known"
        elif owner.id == self.graph.root or cls:
            why = f"{role}: what {cls or 'the model'} does with '{node.name}' is not known"
        else:
            why = f"{role}: only its name is known"
        return Choice.whole(why, "unknown")

    def _mixer(self, owner: ModuleNode) -> str | None:
        """Why the layers of a module that is more than attention or an mlp stay whole."""
        for module in (owner, self.graph.nodes.get(owner.parent)):
            if not isinstance(module, ModuleNode) or module.spec.container is not None:
                continue
            bare = [
                child.name
                for child in self.graph.children(module.id)
                if isinstance(child, TensorNode)
                and child.kind == "parameter"
                and child.name not in ("weight", "bias")
            ]
            convs = [
                child.name
                for child in self.graph.children(module.id)
                if isinstance(child, ModuleNode) and "conv" in child.spec.short_cls.lower()
            ]
            if (bare or convs) and len(layers_in(self.graph, module.id)) >= 2:
                parts = [*convs, *bare]
                what = f"{', '.join(parts)} {'do' if len(parts) > 1 else 'does'}"
                return (
                    f"{module.spec.short_cls or module.name} is neither attention nor feed-forward:"
                    f" what {what} between its matrices is not known"
                )
        return None
