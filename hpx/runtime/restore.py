"""Give a model back as it was: the original names, order and values, gathered from all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from hpx.errors import HpxError
from hpx.graph.nodes import TensorNode
from hpx.heads import CONFIG
from hpx.lineage import Source, sources
from hpx.local_config import whole_config
from hpx.runtime.containers import take_containers_out
from hpx.runtime.gather import current_parameter, full_tensor, kept_as, module_at, originals
from hpx.runtime.journal import Fault, Journal
from hpx.runtime.materialize import attributes_of, give_attributes
from hpx.runtime.record import RECORD, Applied, applied_to
from hpx.runtime.vote import vote

__all__ = ["restore", "restore_from", "state_dict"]

_COMPILED: Final = "_orig_mod"
"""What torch.compile calls a layer inside its wrapper; a checkpoint's part is in no state dict."""


def restore(model: nn.Module, *, fault: Fault | None = None) -> nn.Module:
    """Undo `hpx.apply`, keeping the values that the parameters have now.

    Every rank has to call it. Parameters are new objects (an optimizer has to be made anew), and
    gradients are dropped. Names that were declared tied and were two parameters before are two
    again, with equal values.

    Args:
        model: The model that `hpx.apply` changed.
        fault: Called before each change of the model, for tests of the transaction.

    Returns:
        The model.

    Raises:
        HpxError: Nothing was applied to it, or a rank failed; then it is still sharded everywhere.
    """
    applied = _applied(model)
    if applied.data_parallel or any(isinstance(m, FSDPModule) for m in model.modules()):
        raise HpxError(
            "fully_shard was called after hpx.apply, and torch cannot take it back",
            fix="use hpx.state_dict(model), and load it into a fresh model",
        )
    restore_from(applied, fault=fault)
    return model


def restore_from(
    applied: Applied,
    whole: Callable[[Applied, TensorNode], torch.Tensor] = full_tensor,
    *,
    fault: Fault | None = None,
) -> None:
    """Restore a model from whole tensors, wherever they come from."""
    parameters = _whole_parameters(applied, whole)
    journal = Journal(fault)
    try:
        error = _attempt(applied, parameters, journal)
        vote(error, applied.meshes)
    except BaseException:
        journal.rollback()
        raise
    journal.commit()


def state_dict(model: nn.Module) -> dict[str, Any]:
    """The state dict of the unsharded model: its names, its order, whole tensors on every rank.

    Every rank has to call it. The original parameters are put in place for as long as
    ``model.state_dict()`` runs, so that whatever a module adds to it is there; the model is then as
    it was. Tensors are copies.

    Raises:
        HpxError: Nothing was applied to the model.
    """
    applied = _applied(model)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # so that its own hooks find nothing to do
    parameters = _whole_parameters(applied)
    fresh = {parameter.untyped_storage().data_ptr() for parameter in parameters.values()}
    journal = Journal()
    try:
        _put_back(applied, parameters, journal)
        state: dict[str, Any] = model.state_dict()
    finally:
        journal.rollback()
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            is_fresh = not value.is_meta and value.untyped_storage().data_ptr() in fresh
            state[name] = value.detach() if is_fresh else value.detach().clone()
    return _own_names(applied, state)


def _own_names(applied: Applied, state: dict[str, Any]) -> dict[str, Any]:
    """The state dict without the part that torch.compile puts into names, if it is new in them."""
    known = any(node.name == _COMPILED for node in applied.run.entry.modules())
    if known or not any(_COMPILED in name.split(".") for name in state):
        return state
    return {
        ".".join(part for part in name.split(".") if part != _COMPILED): value
        for name, value in state.items()
    }


def _applied(model: nn.Module) -> Applied:
    applied = applied_to(model)
    if applied is None:
        raise HpxError(
            f"nothing was applied to this {type(model).__name__}",
            fix="give the module that hpx.apply was called with",
        )
    return applied


def _whole_parameters(
    applied: Applied, whole: Callable[[Applied, TensorNode], torch.Tensor] = full_tensor
) -> dict[int, nn.Parameter]:
    """New parameters by entry id; those that never left the model are not among them."""
    found: dict[int, nn.Parameter] = {}
    for node, place, tensor in originals(applied, whole):
        current = current_parameter(applied, node)
        untouched = node.layout is None and isinstance(node.expression, Source)
        if untouched and not isinstance(current, DTensor):  # which FSDP makes of it
            continue
        made = nn.Parameter(tensor.clone(), requires_grad=current.requires_grad)
        stacked = node.lineage is not None
        attributes = applied.attributes.get(place.node, {}) if stacked else attributes_of(current)
        give_attributes(made, attributes)
        found[place.node] = made
    return found


def _attempt(
    applied: Applied, parameters: dict[int, nn.Parameter], journal: Journal
) -> BaseException | None:
    try:
        _put_back(applied, parameters, journal)
    except BaseException as error:  # noqa: BLE001  the other ranks have to hear of an interrupt too
        return error
    return None


def _put_back(applied: Applied, parameters: dict[int, nn.Parameter], journal: Journal) -> None:
    model, entry = applied.model, applied.run.entry
    for handle in applied.handles:
        journal.remove_hook(handle)
    take_containers_out(model, applied.run, parameters, journal)
    stacked = {
        source
        for node in applied.run.graph.parameters()
        if node.lineage is not None
        for source in sources(node.lineage)
    }
    twins = _twins(applied, parameters)
    for node in entry.parameters():
        parameter = None if node.id in stacked else parameters.get(node.id, twins.get(node.id))
        if parameter is None:
            continue
        for parent_id, name in ((node.parent, node.name), *node.more):
            owner = module_at(model, entry.registered_path(parent_id))
            journal.set_parameter(owner, name, parameter)
    _restore_attributes(applied, journal)
    journal.remove_attribute(model, RECORD)


def _twins(applied: Applied, parameters: Mapping[int, nn.Parameter]) -> dict[int, nn.Parameter]:
    """Parameters of their own for names that were tied by declaration only, by entry id."""
    twins: dict[int, nn.Parameter] = {}
    for gone, kept in kept_as(applied.run).items():
        first = parameters.get(kept)
        if first is None:  # it stayed where it was
            first = current_parameter(applied, applied.run.graph.tensor(kept))
        twins[gone] = nn.Parameter(first.detach().clone(), requires_grad=first.requires_grad)
        give_attributes(twins[gone], applied.attributes.get(gone, {}))
    return twins


def _restore_attributes(applied: Applied, journal: Journal) -> None:
    entry = applied.run.entry
    for node in applied.run.graph.modules():
        if node.id not in entry.nodes:
            continue
        before = dict(entry.module(node.id).spec.attributes)
        for name, value in node.attributes.items():
            if before.get(name) != value and name in before:
                module = module_at(applied.model, entry.registered_path(node.id))
                if name.startswith(CONFIG):
                    journal.set_attribute(module, "config", whole_config(module.config))
                else:
                    journal.set_attribute(module, name, before[name])
