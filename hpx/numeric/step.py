"""One training step, whole and sharded, on the same data: what should be equal."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree

from hpx.arguments import Arguments
from hpx.graph.nodes import TensorNode
from hpx.numeric.feeding import LossFunction, tensors_in
from hpx.numeric.measure import Key, Kind
from hpx.runtime.gather import current_parameter, kept_as, originals
from hpx.runtime.record import Applied

__all__ = ["Batch", "data_index", "in_parts", "sharded_step", "tie_as", "whole_step"]

_RATE: Final = 1e-2
_DECAY: Final = 0.1
_EPSILON: Final = 1e-6
"""Of AdamW. With its usual 1e-8 the step of a gradient that is nothing but rounding is not."""


@dataclass(frozen=True)
class Batch:
    """The data of one data parallel rank.

    Attributes:
        inputs: Arguments of the forward.
        loss: The loss of its output.
    """

    inputs: Arguments
    loss: LossFunction

    def given_to(self, model: nn.Module) -> Any:
        """What a model makes of the inputs: of a copy, as it may write to what it is given."""
        copied = copy.deepcopy(self.inputs)
        args, kwargs = _pytree.tree_map_only(Tensor, _no_leaf, copied)
        return model(*args, **kwargs)


def _no_leaf(tensor: Tensor) -> Tensor:
    """Such that it can be written to."""
    return tensor.clone() if tensor.requires_grad else tensor


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW on all that is trained."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(trained, lr=_RATE, weight_decay=_DECAY, eps=_EPSILON)


def tie_as(model: nn.Module, applied: Applied) -> None:
    """Tie in the unsharded model what only the plan ties."""
    entry = applied.run.entry
    for gone, kept in kept_as(applied.run).items():
        node = entry.tensor(kept)
        first = model.get_submodule(entry.registered_path(node.parent))._parameters[node.name]
        other = entry.tensor(gone)
        for parent, name in ((other.parent, other.name), *other.more):
            model.get_submodule(entry.registered_path(parent))._parameters[name] = first


def whole_step(
    model: nn.Module, applied: Applied, batches: Sequence[Batch], steps: int
) -> dict[Key, Tensor]:
    """Outputs, losses, gradients and new parameters of the unsharded model.

    Outputs, losses and gradients are those of the first step, parameters those after the last. The
    loss is the mean over the batches.
    """
    found: dict[Key, Tensor] = {}
    optimizer = optimizer_of(model)
    for step in range(steps):
        optimizer.zero_grad()
        for index, batch in enumerate(batches):
            output = batch.given_to(model)
            loss = batch.loss(output)
            (loss / len(batches)).backward()  # type: ignore[no-untyped-call]
            if step == 0:
                found |= {Key("output", name, index): x for name, x in tensors_in(output)}
                found[Key("loss", "", index)] = loss
        if step == 0:
            for name, parameter in _parameters(model, applied):
                gradient = parameter.grad
                found[Key("gradient", name)] = (
                    torch.zeros_like(parameter) if gradient is None else gradient.clone()
                )
        optimizer.step()
    found |= {Key("parameter", name): p for name, p in _parameters(model, applied)}
    return {key: value.detach() for key, value in found.items()}


def _parameters(model: nn.Module, applied: Applied) -> Iterator[tuple[str, nn.Parameter]]:
    entry = applied.run.entry
    for node in entry.parameters():
        owner = model.get_submodule(entry.registered_path(node.parent))
        parameter = owner._parameters[node.name]
        assert parameter is not None
        yield entry.path(node.id), parameter


def data_index(applied: Applied) -> tuple[int, int]:
    """Which of the data parallel ranks this is, and how many there are."""
    index, number = 0, 1
    coordinate = applied.meshes.coordinate("dense")
    for axis in _data_axes(applied):
        size = applied.meshes.spec.size(axis)
        index, number = index * size + coordinate[axis], number * size
    return index, number


def _data_axes(applied: Applied) -> list[str]:
    return [name for name in applied.meshes.spec.dense.sizes if name.startswith("dp")]


def sharded_step(
    applied: Applied,
    batch: Batch,
    steps: int,
    computed: nn.Module | None = None,
) -> dict[Key, Tensor]:
    """The same of the sharded model: its whole tensors, gathered; outputs of this rank's data.

    Args:
        applied: The sharded model.
        batch: The data of this data parallel rank.
        steps: How many steps.
        computed: What stands around the model and is called in its place.
    """
    model = applied.model
    index, number = data_index(applied)
    averaged = applied.data_parallel
    optimizer = optimizer_of(model)
    found: dict[Key, Tensor] = {}
    for step in range(steps):
        optimizer.zero_grad()
        with in_parts(applied):
            output = batch.given_to(model if computed is None else computed)
        with in_parts(applied):
            loss = batch.loss(output)
            (loss if averaged else loss / number).backward()  # type: ignore[no-untyped-call]
        if not averaged:
            _sum_over_data(applied)
        if step == 0:
            found = {Key("output", name, index): _whole(x) for name, x in tensors_in(output)}
            found[Key("loss", "", index)] = _whole(loss)
            found |= _named(applied, "gradient", _gradient)
        optimizer.step()
    found |= _named(applied, "parameter", _parameter)
    return {key: value.detach() for key, value in found.items()}


@contextmanager
def in_parts(applied: Applied) -> Iterator[None]:
    """Where a loss of scores that stay in columns is computed; anywhere, for whole ones.

    Args:
        applied: The sharded model.
    """
    if not _leaves_columns(applied):
        yield
        return
    from torch.distributed.tensor.parallel import loss_parallel

    context = loss_parallel()
    context.__enter__()
    try:
        yield
    finally:
        with suppress(KeyError):  # the model's own code was in such a context, and has left both
            context.__exit__(None, None, None)


def _leaves_columns(applied: Applied) -> bool:
    for event in applied.run.events:
        if event.kind == "attach" and isinstance(event.new, Mapping):
            options = event.new.get("options")
            if isinstance(options, Mapping) and options.get("output") == "columns":
                return True
    return False


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _named(
    applied: Applied, kind: Kind, whole: Callable[[Applied, TensorNode], Tensor]
) -> dict[Key, Tensor]:
    """Whole tensors under the names of the unsharded model, in its order."""
    entry = applied.run.entry
    by_node = {place.node: part.clone() for _, place, part in originals(applied, whole)}
    by_node |= {gone: by_node[kept] for gone, kept in kept_as(applied.run).items()}
    return {Key(kind, entry.path(node.id)): by_node[node.id] for node in entry.parameters()}


def _parameter(applied: Applied, node: TensorNode) -> Tensor:
    return _gathered(applied, node, current_parameter(applied, node).detach())


def _gradient(applied: Applied, node: TensorNode) -> Tensor:
    parameter = current_parameter(applied, node)
    found = parameter.grad
    return _gathered(applied, node, torch.zeros_like(parameter) if found is None else found)


def _gathered(applied: Applied, node: TensorNode, tensor: Tensor) -> Tensor:
    if isinstance(tensor, DTensor):
        return tensor.full_tensor()
    if node.layout is None or not node.layout.shards:
        return tensor
    mesh, placements = applied.meshes.of(node.layout)
    stride = torch.empty(node.shape, device="meta").stride()
    shape = torch.Size(node.shape)
    return DTensor.from_local(
        tensor, mesh, placements, run_check=False, shape=shape, stride=stride
    ).full_tensor()


def _sum_over_data(applied: Applied) -> None:
    trained = [parameter for parameter in applied.model.parameters() if parameter.requires_grad]
    for axis in _data_axes(applied):
        group = applied.meshes.sub(axis).get_group()
        if group.size() == 1:
            continue
        used = torch.tensor([parameter.grad is not None for parameter in trained]).int()
        dist.all_reduce(used, dist.ReduceOp.MAX, group)
        for parameter, anywhere in zip(trained, used.tolist(), strict=True):
            if not anywhere:  # AdamW leaves alone what has no gradient
                continue
            if parameter.grad is None:  # it is not on every rank: experts that got no token
                parameter.grad = torch.zeros_like(parameter)
            gradient = parameter.grad
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            dist.all_reduce(local.detach(), group=group)
