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
from hpx.lineage import sources as source_ids
from hpx.local_config import set_integer
from hpx.run import Run
from hpx.runtime.containers import put_containers
from hpx.runtime.journal import Journal
from hpx.runtime.localizing import localize
from hpx.runtime.materialize import Built, Replaced, Sources, attributes_of
from hpx.runtime.meshes import Meshes
from hpx.runtime.packed import guard_packed
from hpx.runtime.record import RECORD, Applied
from hpx.runtime.stream import install as install_stream
from hpx.runtime.stream import install_above
from hpx.runtime.ties import guard_ties

__all__ = ["Installer", "install"]

Installer = Callable[[nn.Module, Mapping[str, Any], Meshes, Journal], None]
"""What an ``attach`` event names: installs something on a module, through the journal."""


def install(
    model: nn.Module, run: Run, meshes: Meshes, sources: Sources, built: Built, journal: Journal
) -> Applied:
    """Put everything in place and leave the record on the root module."""
    applied = Applied(model, run, meshes)
    put_containers(run, meshes, sources, built, journal)
    gone = _put_parameters(run, sources, built, journal)
    gone += _stacked(run, built)
    applied.old_to_new = Replaced((old, new) for _, old, new in gone)
    kept = {node_id: attributes_of(old) for node_id, old, _ in gone}
    applied.attributes = {node_id: found for node_id, found in kept.items() if found}
    _set_attributes(model, run, journal)
    localize(model, run, meshes, journal)
    _attach(model, run, meshes, journal)
    guard_ties(model, run, journal)
    guard_packed(model, run, journal)
    journal.set_attribute(model, RECORD, applied)
    applied.handles = journal.handles
    return applied


_Gone = tuple[int, nn.Parameter, nn.Parameter]
"""A parameter that left the model: its entry id, itself, and what took its place."""


def _put_parameters(run: Run, sources: Sources, built: Built, journal: Journal) -> list[_Gone]:
    """Put every parameter that is no stack under each of its names; what stood there before."""
    gone: list[_Gone] = []
    for node in run.graph.parameters():
        if node.lineage is not None:
            continue
        parameter = built.parameters.get(node.id)
        if parameter is None:
            parameter = sources.parameter(node.id)
        for parent, name in ((node.parent, node.name), *node.more):
            owner = sources.owner(parent)
            found = owner._parameters.get(name)
            if found is not parameter:
                journal.set_parameter(owner, name, parameter)
                if found is not None:
                    gone.append((run.entry.module(parent).children[name], found, parameter))
    return gone


def _stacked(run: Run, built: Built) -> list[_Gone]:
    """The parameters that stacks were made of."""
    return [
        (source, old, built.parameters[node.id])
        for node in run.graph.parameters()
        if node.lineage is not None
        for source, old in zip(source_ids(node.lineage), built.originals[node.id], strict=True)
    ]


def _set_attributes(model: nn.Module, run: Run, journal: Journal) -> None:
    graph = run.graph
    for event in run.events:
        if event.kind != "set" or event.key is None or not event.key.startswith("attributes."):
            continue
        name = event.key.removeprefix("attributes.")
        for node_id in event.nodes:
            module = model.get_submodule(graph.registered_path(node_id))
            journal.set_attribute(module, *set_integer(module, name, cast(int, event.new)))


def _attach(model: nn.Module, run: Run, meshes: Meshes, journal: Journal) -> None:
    for event in run.events:
        if event.kind != "attach":
            continue
        wanted = cast(dict[str, Any], event.new)
        installer = _installer(wanted["function"], f"pass {event.pass_}")
        for node_id in event.nodes:
            module = model.get_submodule(run.graph.registered_path(node_id))
            installer(module, wanted["options"], meshes, journal)
            if installer is install_stream:
                install_above(model, run.graph.registered_path(node_id), journal)


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
