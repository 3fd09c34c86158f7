"""Load a state dict of the unsharded model into a sharded one, each rank its own part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from hpx.errors import HpxError
from hpx.graph.nodes import WRAPPER_PARTS, TensorNode
from hpx.lineage import pull, sources
from hpx.ranges import fold_names
from hpx.runtime.gather import current_parameter, kept_as
from hpx.runtime.materialize import local_ranges
from hpx.runtime.record import Applied, applied_to

__all__ = ["load_state_dict"]


def load_state_dict(model: nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> None:
    """Copy what a rank holds out of a state dict of the unsharded model.

    Names and order are those of the model before `hpx.apply`: separate experts go into their slots,
    and rows of packed projections to where their rank has them. Only what this rank needs is read,
    so the tensors may lie in files (``torch.load(..., mmap=True)``). Nothing is sent between ranks,
    and nothing is copied unless everything fits.

    Args:
        model: The model that `hpx.apply` changed, with memory (`hpx.to_empty` gives it some).
        state: Whole tensors by name, as `hpx.state_dict` gives them, and what modules add to it
            (``get_extra_state``).
        strict: Whether missing and unexpected names are an error. If not, what is missing stays as
            it is, and so does a stacked parameter of which a source is missing.

    Raises:
        HpxError: Nothing was applied to the model, it is on the meta device, `hpx.fully_shard` was
            called already, something is no whole tensor or has another shape, or, if ``strict``, a
            name is missing or unexpected.
    """
    applied = applied_to(model)
    if applied is None:
        raise HpxError(
            f"nothing was applied to this {type(model).__name__}", fix="use model.load_state_dict"
        )
    if applied.data_parallel or any(isinstance(m, FSDPModule) for m in model.modules()):
        raise HpxError(
            "FSDP holds a part of what a rank had", fix="load before hpx.fully_shard is called"
        )
    state = _Canonical(state)
    names = _names(applied)
    used: set[str] = set()
    missing: list[str] = []
    partial: dict[str, list[str]] = {}
    todo: list[tuple[Tensor, Tensor]] = []
    for node in applied.run.graph.parameters():
        found = {id_: _find(state, names[id_], used) for id_ in sources(node.expression)}
        missing += [names[id_][0] for id_, tensor in found.items() if tensor is None]
        if len(found) > 1 and any(tensor is None for tensor in found.values()):
            partial.setdefault(_coverage(applied, found), []).append(
                applied.run.graph.path(node.id)
            )
        if all(tensor is not None for tensor in found.values()):
            whole = {id_: tensor for id_, tensor in found.items() if tensor is not None}
            todo += _copies(applied, node, whole, names)
    for buffer, own in _buffers(model):
        value = _find(state, own, used)
        if value is None:
            missing.append(own[0])
        else:
            _check(own[0], value, buffer.shape)
            todo.append((buffer, value))
    extras = list(_extras(model))
    for _, own in extras:
        here = _here(state, own, used)
        missing += [] if here else own[:1]
    unexpected = [name for name in state if name not in used]
    if strict and (missing or unexpected):
        said = {"missing": missing, "unexpected": unexpected}
        raise HpxError(
            "the state dict is not that of the model",
            why="; ".join(
                [
                    *(f"{', '.join(fold_names(v)[:8])}: {k}" for k, v in partial.items()),
                    *(f"{k}: {', '.join(fold_names(v)[:8])}" for k, v in said.items() if v),
                ]
            ),
            fix="give the state dict of the unsharded model, or strict=False",
        )
    with torch.no_grad():
        for target, value in todo:
            target.copy_(value.reshape(target.shape))
    for module, own in extras:
        for name in _here(state, own, used)[:1]:
            module.set_extra_state(state[name])


class _Canonical(Mapping[str, Any]):
    """A state dict without the parts of wrappers in its names; no value is read before its time."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state
        self._names = {_without_wrappers(name): name for name in state}

    def __getitem__(self, name: str) -> Any:
        return self._state[self._names[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _without_wrappers(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPER_PARTS)


def _names(applied: Applied) -> dict[int, list[str]]:
    """The names of every original parameter, those of ties that were only declared too."""
    entry = applied.run.entry
    names = {node.id: entry.names(node.id) for node in entry.parameters()}
    for gone, kept in kept_as(applied.run).items():
        names[kept] = [*names[kept], *names[gone]]
    return names


def _coverage(applied: Applied, found: Mapping[int, Tensor | None]) -> str:
    """How much of a stacked parameter is there, in its sources and in their elements."""
    sizes = {id_: math.prod(applied.run.entry.tensor(id_).shape) for id_ in found}
    here = [id_ for id_, tensor in found.items() if tensor is not None]
    return (
        f"{len(here)} of {len(found)} sources found, "
        f"{sum(sizes[id_] for id_ in here):,} of {sum(sizes.values()):,} elements"
    )


def _find(state: Mapping[str, Any], names: list[str], used: set[str]) -> Tensor | None:
    here = _here(state, names, used)
    return _whole(here[0], state[here[0]]) if here else None


def _whole(name: str, value: object) -> Tensor:
    """The value of a name, which has to be a whole tensor that has values."""
    if isinstance(value, Tensor) and not (isinstance(value, DTensor) or value.is_meta):
        return value.detach()
    on_meta = isinstance(value, Tensor) and value.is_meta
    raise HpxError(
        "what the state dict has of it cannot be copied",
        where=name,
        why="it is on the meta device" if on_meta else f"it is a {type(value).__name__}",
        fix="give whole tensors, as the unsharded model saves them; of a sharded model, those of"
        " hpx.state_dict",
    )


def _here(state: Mapping[str, Any], names: list[str], used: set[str]) -> list[str]:
    """Those of some names that a state dict has."""
    here = [name for name in names if name in state]
    used.update(here)
    return here


def _copies(
    applied: Applied, node: TensorNode, whole: Mapping[int, Tensor], names: Mapping[int, list[str]]
) -> Iterator[tuple[Tensor, Tensor]]:
    """What is copied where, for one parameter of the sharded model."""
    for id_, tensor in whole.items():
        _check(names[id_][0], tensor, applied.run.entry.tensor(id_).shape)
    parameter = current_parameter(applied, node).detach()
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    if local.is_meta:
        raise HpxError(
            "it is on the meta device, where nothing can be kept",
            where=applied.run.graph.path(node.id),
            fix="give it memory: hpx.to_empty(model, device=...)",
        )
    for piece in pull(node.expression, local_ranges(node, applied.meshes)):
        part = whole[piece.node][tuple(slice(a, b) for a, b in piece.source)]
        yield local[tuple(slice(a, b) for a, b in piece.dest)], part


def _buffers(model: nn.Module) -> Iterator[tuple[Tensor, list[str]]]:
    """The buffers that a state dict has, each once with all of its names."""
    found: dict[int, tuple[Tensor, list[str]]] = {}  # by id() while the model is alive
    for path, module in model.named_modules(remove_duplicate=False):
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                found.setdefault(id(buffer), (buffer, []))[1].append(
                    _without_wrappers(f"{path}.{name}".lstrip("."))
                )
    return iter(found.values())


def _extras(model: nn.Module) -> Iterator[tuple[nn.Module, list[str]]]:
    """The modules that add something of their own to a state dict, with the names that it has."""
    found: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            found.setdefault(module, []).append(
                _without_wrappers(f"{path}._extra_state".lstrip("."))
            )
    return iter(found.items())


def _check(name: str, found: Tensor, wanted: tuple[int, ...] | torch.Size) -> None:
    if tuple(found.shape) != tuple(wanted):
        raise HpxError(
            "its shape in the state dict is another one",
            where=name,
            why=f"{list(found.shape)}, and the model has {list(wanted)}",
            fix="give whole tensors, as the unsharded model saves them",
        )
