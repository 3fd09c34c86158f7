"""Give a model back as it was: the original names, order and values, gathered from all ranks."""

from __future__ import annotations

import torch
from torch import nn

from hpx.errors import HpxError
from hpx.graph.nodes import ModuleNode
from hpx.lineage import sources
from hpx.runtime.containers import take_containers_out
from hpx.runtime.gather import kept_as, original_state, originals
from hpx.runtime.journal import Fault, Journal
from hpx.runtime.record import RECORD, Applied, applied_to
from hpx.runtime.vote import vote

__all__ = ["restore", "state_dict"]


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
    if applied.data_parallel:
        raise HpxError(
            "fully_shard was called after hpx.apply, and torch cannot take it back",
            fix="use hpx.state_dict(model), and load it into a fresh model",
        )
    parameters = _whole_parameters(applied)
    journal = Journal(fault)
    try:
        error = _attempt(applied, parameters, journal)
        vote(error, applied.meshes)
    except BaseException:
        journal.rollback()
        raise
    journal.commit()
    return model


def state_dict(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state dict of the unsharded model: its names, its order, whole tensors on every rank.

    Every rank has to call it. The model stays as it is.

    Raises:
        HpxError: Nothing was applied to the model.
    """
    return original_state(_applied(model))


def _applied(model: nn.Module) -> Applied:
    applied = applied_to(model)
    if applied is None:
        raise HpxError(
            f"nothing was applied to this {type(model).__name__}",
            fix="give the module that hpx.apply was called with",
        )
    return applied


def _whole_parameters(applied: Applied) -> dict[int, nn.Parameter]:
    """New parameters by entry id; those that never left the model are not among them."""
    graph = applied.run.graph
    kept = {node.id for node in graph.parameters() if node.layout is None and node.lineage is None}
    found: dict[int, nn.Parameter] = {}
    for node_id, whole, trained in originals(applied):
        if node_id not in kept:
            found[node_id] = nn.Parameter(whole.clone(), requires_grad=trained)
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
    merged = kept_as(applied.run)
    stacked = {
        source
        for node in applied.run.graph.parameters()
        if node.lineage is not None
        for source in sources(node.lineage)
    }
    copies: dict[int, nn.Parameter] = {}
    for node in entry.parameters():
        parameter = None if node.id in stacked else parameters.get(node.id)
        if parameter is None and node.id in merged:
            parameter = _twin(parameters, merged[node.id], copies, node.id)
        if parameter is None:
            continue
        for parent_id, name in ((node.parent, node.name), *node.more):
            owner = model.get_submodule(entry.registered_path(parent_id))
            journal.set_parameter(owner, name, parameter)
    _restore_attributes(applied, journal)
    journal.remove_attribute(model, RECORD)


def _twin(
    parameters: dict[int, nn.Parameter],
    kept: int,
    copies: dict[int, nn.Parameter],
    node_id: int,
) -> nn.Parameter | None:
    """A parameter of its own for a name that was tied by declaration only."""
    first = parameters.get(kept)
    if first is None:
        return None
    if node_id not in copies:
        copies[node_id] = nn.Parameter(first.detach().clone(), requires_grad=first.requires_grad)
    return copies[node_id]


def _restore_attributes(applied: Applied, journal: Journal) -> None:
    entry = applied.run.entry
    for node in applied.run.graph.modules():
        if not isinstance(node, ModuleNode) or node.id not in entry.nodes:
            continue
        before = dict(entry.module(node.id).spec.attributes)
        for name, value in node.attributes.items():
            if before.get(name) != value and name in before:
                module = applied.model.get_submodule(entry.registered_path(node.id))
                journal.set_attribute(module, name, before[name])
