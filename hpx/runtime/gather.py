"""The way back: from a sharded model to the originals, by running lineages backwards."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from hpx.graph.nodes import TensorNode
from hpx.lineage import Source, invert
from hpx.run import Run
from hpx.runtime.record import Applied

__all__ = ["current_parameter", "full_tensor", "kept_as", "original_state", "originals"]


def kept_as(run: Run) -> dict[int, int]:
    """Entry nodes that were merged into another one: their id to that of the one that stayed."""
    merged: dict[int, int] = {}
    for event in run.events:
        if event.kind == "alias" and isinstance(event.old, int):
            merged[event.old] = event.nodes[0]
    for gone in merged:
        kept = merged[gone]
        while kept in merged:
            kept = merged[kept]
        merged[gone] = kept
    return merged


def current_parameter(applied: Applied, node: TensorNode) -> nn.Parameter:
    """What the model holds for a parameter of the final graph now."""
    graph = applied.run.graph
    owner = applied.model.get_submodule(graph.registered_path(node.parent))
    found = owner._parameters[node.name]
    assert found is not None
    return found


def full_tensor(applied: Applied, node: TensorNode) -> torch.Tensor:
    """The whole tensor of a parameter, gathered; every rank of its mesh has to take part."""
    parameter = current_parameter(applied, node).detach()
    if isinstance(parameter, DTensor):
        return parameter.full_tensor()
    if node.layout is None or not node.layout.shards:
        return parameter
    mesh, placements = applied.meshes.of(node.layout)
    placed = DTensor.from_local(
        parameter,
        mesh,
        placements,
        run_check=False,
        shape=torch.Size(node.shape),
        stride=torch.empty(node.shape, device="meta").stride(),
    )
    return placed.full_tensor()


def originals(applied: Applied) -> Iterator[tuple[int, torch.Tensor, bool]]:
    """(entry id, whole tensor, requires_grad) of every original parameter, one at a time.

    The tensors may be views of what was gathered; whoever keeps one copies it.
    """
    entry = applied.run.entry
    for node in applied.run.graph.parameters():
        whole = full_tensor(applied, node)
        trained = current_parameter(applied, node).requires_grad
        places = invert(node.lineage or Source(node.id), lambda i: entry.tensor(i).shape)
        for place in places:
            index = tuple(k if isinstance(k, int) else slice(*k) for k in place.index)
            yield place.node, whole[index], trained


def original_state(applied: Applied) -> dict[str, torch.Tensor]:
    """The state dict of the model as it was before: its names, its order, whole tensors."""
    entry = applied.run.entry
    whole = {node_id: tensor.clone() for node_id, tensor, _ in originals(applied)}
    merged = kept_as(applied.run)
    state: dict[str, torch.Tensor] = {}
    # As torch does, a shared module is written under each of its names.
    todo: list[tuple[int, str]] = [(entry.root, "")]
    while todo:
        module_id, prefix = todo.pop()
        below: list[tuple[int, str]] = []
        for name, child in entry.module(module_id).children.items():
            node = entry.nodes[child]
            if not isinstance(node, TensorNode):
                below.append((child, f"{prefix}{name}."))
            elif node.kind == "parameter":
                state[prefix + name] = whole[merged.get(child, child)]
            elif node.kind == "buffer" and node.spec.persistent:
                owner = applied.model.get_submodule(entry.registered_path(module_id))
                state[prefix + name] = _buffer(owner, name)
        todo.extend(reversed(below))
    return state


def _buffer(owner: nn.Module, name: str) -> torch.Tensor:
    buffer = owner._buffers[name]
    assert buffer is not None
    return buffer.detach().clone()
