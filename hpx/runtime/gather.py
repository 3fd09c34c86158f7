"""The way back: from a sharded model to the originals, by running lineages backwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from hpx.graph.nodes import TensorNode
from hpx.graph.traits import unwrapped
from hpx.layout import Range
from hpx.lineage import Place, Spot, invert
from hpx.run import Run
from hpx.runtime.record import Applied

__all__ = ["current_parameter", "full_tensor", "kept_as", "module_at", "originals", "part_at"]


def module_at(model: nn.Module, path: str) -> nn.Module:
    """The module with a registered name, inside wrappers that were put around it since.

    A checkpoint of activations is one: it has the name, and not what the module itself holds.
    """
    return unwrapped(model.get_submodule(path))


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
    owner = module_at(applied.model, graph.registered_path(node.parent))
    found = owner._parameters[node.name]
    assert found is not None
    return found


def full_tensor(applied: Applied, node: TensorNode) -> torch.Tensor:
    """The whole tensor of a parameter, gathered; every rank of its mesh has to take part."""
    parameter = current_parameter(applied, node).detach()
    if parameter.is_meta:
        return torch.empty(node.shape, dtype=parameter.dtype, device="meta")
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


def originals(
    applied: Applied, whole: Callable[[Applied, TensorNode], torch.Tensor] = full_tensor
) -> Iterator[tuple[TensorNode, Place, torch.Tensor]]:
    """The whole tensor of every original parameter, one at a time, with where it lies.

    The tensors may be views of what was gathered; whoever keeps one copies it.

    Args:
        applied: What was applied.
        whole: Gives the whole tensor of a parameter of the final graph.
    """
    entry = applied.run.entry
    for node in applied.run.graph.parameters():
        gathered = whole(applied, node)
        for place in invert(node.expression, lambda i: entry.tensor(i).shape):
            yield node, place, part_at(gathered, place.index)


def part_at(whole: torch.Tensor, index: Sequence[Spot]) -> torch.Tensor:
    """The original that lies there; a view, unless a dim has to be put back in order."""
    part = whole
    dim = 0
    for spot in index:
        if isinstance(spot, int):
            part = part.select(dim, spot)
            continue
        cuts = [part.narrow(dim, start, end - start) for start, end in _spans(spot)]
        part = cuts[0] if len(cuts) == 1 else torch.cat(cuts, dim)
        dim += 1
    return part


def _spans(spot: Range | tuple[Range, ...]) -> tuple[Range, ...]:
    first = spot[0]
    return (cast(Range, spot),) if isinstance(first, int) else cast(tuple[Range, ...], spot)
