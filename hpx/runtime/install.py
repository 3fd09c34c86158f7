"""Change the model as a run says, through a journal: the only place where a model changes.

Parameters under all their names, expert containers, integer attributes, then what passes attached:
hooks for local tensors, and whatever a third party's pass asks for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import nn

from hpx.errors import PassError
from hpx.run import Run
from hpx.runtime.containers import put_containers
from hpx.runtime.journal import Journal
from hpx.runtime.localizing import localize
from hpx.runtime.materialize import Built, Sources
from hpx.runtime.meshes import Meshes
from hpx.runtime.record import RECORD, Applied

__all__ = ["Installer", "install"]

Installer = Callable[[nn.Module, Mapping[str, Any], Meshes, Journal], None]
"""What an ``attach`` event names: installs something on a module, through the journal."""


def install(
    model: nn.Module, run: Run, meshes: Meshes, sources: Sources, built: Built, journal: Journal
) -> Applied:
    """Put everything in place and leave the record on the root module."""
    applied = Applied(model, run, meshes, built.old_to_new)
    put_containers(run, meshes, sources, built, journal)
    _put_parameters(run, sources, built, journal)
    _set_attributes(model, run, journal)
    localize(model, run, meshes, journal)
    _attach(model, run, meshes, journal)
    journal.set_attribute(model, RECORD, applied)
    applied.handles = journal.handles
    return applied


def _put_parameters(run: Run, sources: Sources, built: Built, journal: Journal) -> None:
    """Every parameter that is no stack, under each of its names."""
    for node in run.graph.parameters():
        if node.lineage is not None:
            continue
        parameter = built.parameters.get(node.id)
        if parameter is None:
            parameter = sources.parameter(node.id)
        for parent, name in ((node.parent, node.name), *node.more):
            owner = sources.owner(parent)
            if owner._parameters.get(name) is not parameter:
                journal.set_parameter(owner, name, parameter)


def _set_attributes(model: nn.Module, run: Run, journal: Journal) -> None:
    graph = run.graph
    for event in run.events:
        if event.kind != "set" or event.key is None or not event.key.startswith("attributes."):
            continue
        name = event.key.removeprefix("attributes.")
        for node_id in event.nodes:
            module = model.get_submodule(graph.registered_path(node_id))
            journal.set_attribute(module, name, event.new)


def _attach(model: nn.Module, run: Run, meshes: Meshes, journal: Journal) -> None:
    for event in run.events:
        if event.kind != "attach":
            continue
        wanted = cast(dict[str, Any], event.new)
        installer = _installer(wanted["function"], f"pass {event.pass_}")
        for node_id in event.nodes:
            module = model.get_submodule(run.graph.registered_path(node_id))
            installer(module, wanted["options"], meshes, journal)


def _installer(name: str, where: str) -> Installer:
    """The function that an event names.

    Raises:
        PassError: It cannot be imported.
    """
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise PassError(f"cannot install {name}", where=where, why=str(error)) from None
    return cast(Installer, found)
