"""Copies of modules on fake tensors; the originals stay as they are."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

__all__ = ["copy_with", "fake_copy"]


def fake_copy(
    model: nn.Module, mode: FakeTensorMode, alike: Iterable[list[nn.Module]]
) -> nn.Module:
    """A copy of a model whose tensors are fake, on the CPU.

    Args:
        model: The model.
        mode: The mode of the fake tensors.
        alike: Groups of equal modules, such as the experts of a layer: one copy serves for each.
    """
    return copy_with(model, mode, lambda tensor: tuple(tensor.shape), alike)


def copy_with(
    module: nn.Module,
    mode: FakeTensorMode,
    shape_of: Callable[[Tensor], tuple[int, ...]],
    alike: Iterable[list[nn.Module]] = (),
) -> nn.Module:
    """A copy of a module whose tensors are fake and have the shapes that ``shape_of`` says."""
    groups = [group for group in alike if len(group) > 1]
    left_out = {id(one) for group in groups for one in group[1:]}
    memo: dict[int, Any] = {}
    with mode:
        for tensor in _tensors(module, left_out):
            if id(tensor) not in memo:
                memo[id(tensor)] = _fake(tensor, shape_of(tensor))
        for first, *others in groups:
            made = copy.deepcopy(first, memo)
            memo.update((id(one), made) for one in others)
        made_whole: nn.Module = copy.deepcopy(module, memo)
    return made_whole


def _fake(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    made = torch.empty(shape, dtype=tensor.dtype)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made


def _tensors(module: nn.Module, left_out: set[int]) -> Iterator[Tensor]:
    """Every tensor of a module and of those below it: registered ones, and plain attributes."""
    todo = [module]
    seen: set[int] = set()
    while todo:
        one = todo.pop()
        if id(one) in seen or id(one) in left_out:
            continue
        seen.add(id(one))
        for value in one.__dict__.values():
            yield from _inside(value, 2)
        todo.extend(child for child in one._modules.values() if child is not None)


def _inside(value: object, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        for item in value.values():
            yield from _inside(item, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for item in value:
            yield from _inside(item, depth - 1)
