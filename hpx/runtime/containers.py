"""Put stacked expert containers in place of the model's own, and take them out again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from torch import nn

from hpx.errors import PassError
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import TensorNode
from hpx.graph.traits import unwrapped
from hpx.lineage import sources as source_ids
from hpx.run import Run
from hpx.runtime.experts import StackedExperts, stack_container
from hpx.runtime.gather import module_at
from hpx.runtime.journal import Journal
from hpx.runtime.materialize import Built, Sources
from hpx.runtime.meshes import Meshes

__all__ = ["put_containers", "take_containers_out"]


class _Stack(NamedTuple):
    """A container with its experts and stacked parameters, by node id."""

    container: int
    experts: tuple[int, ...]
    parameters: dict[str, tuple[str, TensorNode]]


def _stacks(run: Run) -> Iterator[_Stack]:
    """The containers of a run, in the order of the tree.

    Raises:
        PassError: A parameter is derived from others in a way that cannot be carried out.
    """
    found: dict[int, _Stack] = {}
    for node in run.graph.parameters():
        if node.lineage is None:
            continue
        owners = [_expert_of(run.entry, source, node.parent) for source in source_ids(node.lineage)]
        experts = tuple(expert for expert, _ in owners)
        inner = {path for _, path in owners}
        stack = found.setdefault(node.parent, _Stack(node.parent, experts, {}))
        if stack.experts != experts or len(inner) != 1 or len(set(experts)) != len(experts):
            raise _unknown(run, node)
        stack.parameters[node.name] = (inner.pop(), node)
    return iter(found.values())


def _expert_of(entry: ModuleGraph, source: int, container: int) -> tuple[int, str]:
    """The child of the container that holds a source, and the source's path inside it."""
    names: list[str] = []
    node = entry.nodes[source]
    while node.parent not in (container, -1):
        names.append(node.name)
        node = entry.nodes[node.parent]
    return node.id, ".".join(reversed(names))


def _unknown(run: Run, node: TensorNode) -> PassError:
    return PassError(
        "cannot carry out how this parameter is derived",
        where=run.graph.path(node.id),
        why="only stacks of one parameter of each expert of a container are known",
    )


def put_containers(
    run: Run, meshes: Meshes, sources: Sources, built: Built, journal: Journal
) -> None:
    """Replace every container whose experts are stacked, under each of its names."""
    for stack in _stacks(run):
        container = sources.owner(stack.container)
        first = next(node for _, node in stack.parameters.values())
        spread = first.layout is not None and first.layout.dim("ep") is not None
        exchange = stack_container(
            container,
            [sources.owner(expert) for expert in stack.experts],
            {
                name: (path, built.parameters[node.id])
                for name, (path, node) in stack.parameters.items()
            },
            ep=meshes.spec.size("ep") if spread else 1,
            ep_rank=meshes.coordinate("expert")["ep"] if spread else 0,
            where=run.graph.path(stack.container),
        )
        journal.call("stack experts", exchange.change, exchange.undo)
        node = run.entry.module(stack.container)
        for parent, name in ((node.parent, node.name), *node.more):
            owner = sources.owner(parent)
            journal.set_module(owner, name, exchange.module)
            journal.add_hook(owner.register_forward_pre_hook, exchange.module.slots.arm)
            journal.add_hook(
                owner.register_forward_hook, exchange.module.slots.disarm, always_call=True
            )


def take_containers_out(
    model: nn.Module, run: Run, parameters: Mapping[int, nn.Parameter], journal: Journal
) -> None:
    """Put the containers back, with the experts' own parameters (by entry id) in them."""
    for stack in _stacks(run):
        node = run.entry.module(stack.container)
        module = module_at(model, run.entry.registered_path(stack.container))
        assert isinstance(module, StackedExperts)
        exchange = module.unstack(
            {
                name: [parameters[source] for source in source_ids(parameter.lineage)]
                for name, (_, parameter) in stack.parameters.items()
                if parameter.lineage is not None
            }
        )
        journal.call("unstack experts", exchange.change, exchange.undo)
        for parent, name in ((node.parent, node.name), *node.more):
            owner = module_at(model, run.entry.registered_path(parent))
            journal.set_module(*_place(owner, name, module), exchange.module)


def _place(owner: nn.Module, name: str, module: nn.Module) -> tuple[nn.Module, str]:
    """Where a module stands: under its name, or in a wrapper that was put there since."""
    child = owner._modules.get(name)
    while child is not None and child is not module and unwrapped(child) is module:
        owner, name = child, next(iter(child._modules))
        child = owner._modules[name]
    return owner, name
