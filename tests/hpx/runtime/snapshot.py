"""Everything there is to know of a model, to show that it is as it was before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

Facts = dict[str, object]
"""What was found, by place; the objects themselves, so that no id is used twice."""


def snapshot(model: nn.Module) -> Facts:
    """Modules and their tables, hooks and attributes in order, and every bit of every tensor."""
    return dict(_facts(model))


def differences(before: Facts, after: Facts) -> list[str]:
    """The places at which two snapshots differ."""
    places = [place for place in before if place in after]
    if places != list(before) or len(before) != len(after):
        odd = sorted(before.keys() ^ after.keys())
        return [f"{place} came, went or moved" for place in odd or ["a place"]]
    return [place for place in places if not _same(before[place], after[place])]


def assert_same(before: Facts, model: nn.Module) -> None:
    found = differences(before, snapshot(model))
    assert not found, found[:10]


def _same(a: object, b: object) -> bool:
    if isinstance(a, bytes) or type(a) in (int, float, str, bool, torch.device, torch.dtype):
        return a == b
    return a is b


def _facts(model: nn.Module) -> Iterator[tuple[str, object]]:
    seen: set[int] = set()
    todo: list[tuple[str, nn.Module]] = [("model", model)]
    while todo:
        path, module = todo.pop()
        yield path, module
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield f"{path} class", type(module)
        for name, value in list(module.__dict__.items()):
            yield f"{path}.{name}", value
            if isinstance(value, dict):
                for key, item in value.items():
                    yield f"{path}.{name}[{key}]", item
                    if isinstance(item, Tensor):
                        yield from _tensor(f"{path}.{name}[{key}]", item)
        todo += [(f"{path}/{n}", m) for n, m in module._modules.items() if m is not None]


def _tensor(path: str, tensor: Tensor) -> Iterator[tuple[str, object]]:
    yield f"{path} requires_grad", tensor.requires_grad
    yield f"{path} grad", tensor.grad
    yield f"{path} hooks", tensor._backward_hooks
    for name, value in vars(tensor).items():
        yield f"{path} attribute {name}", value
    local: Any = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    local = local.detach()
    for what in ("dtype", "device"):
        yield f"{path} {what}", getattr(local, what)
    yield f"{path} shape and strides", f"{tuple(tensor.shape)} {local.stride()}"
    if not local.is_meta:
        yield f"{path} memory", local.data_ptr()
        yield f"{path} bits", bits(local)


def bits(tensor: Tensor) -> bytes:
    """The elements in order, as bytes: a NaN equals itself, and -0.0 is not 0.0."""
    flat = tensor.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).tolist())
