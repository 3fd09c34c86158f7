"""Expert containers whose parameters are stacked, and which still work as they did.

`stack_container` makes, from a container of experts, the module that takes its place: it owns the
stacked parameters, and still indexes, iterates and runs. How, and why so:

- **A new module in place of the container**, of a class made from the container's own, so that a
  forward of its own, ``isinstance(experts, nn.ModuleList)``, other children, buffers, attributes
  and hooks stay. It is put in place with one ``set_module``, and one ``set_module`` takes it back:
  the old container is not touched, so nothing of it has to be repaired.
- **The experts are the model's own modules**, not copies: their classes, attributes, hooks and
  state are theirs, and who holds one, by whatever way, computes with the stacked parameters. Only
  their tables of parameters are exchanged, for `Slots`; the way back puts the same table objects
  in again. They stand outside of the module tree, so that names, state dict and optimizers see
  the stacked parameters and nothing else.

Until it is done nothing changes: `Exchange` holds the change and the way back for a journal.

    exchange = stack_container(old, experts, {"gate_proj": ("gate_proj.weight", parameter)})
    journal.call("stack experts", exchange.change, exchange.undo)
    journal.set_module(parent, "experts", exchange.module)      # under each name that it has
    source = exchange.module.slots
    journal.add_hook(owner.register_forward_pre_hook, source.arm)
    journal.add_hook(owner.register_forward_hook, source.disarm, always_call=True)

One limit: code that reads ``experts._modules`` itself does not find the experts there.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from hpx.errors import HpxError
from hpx.runtime.slots import Exchange, Slots, SlotSource, Tables, exchange_tables
from hpx.runtime.stacked_experts import OWN_NAMES, Kept, StackedExperts, blank

__all__ = ["Exchange", "SlotSource", "StackedExperts", "stack_container"]


def stack_container(
    container: nn.Module,
    experts: Sequence[nn.Module],
    stacked: Mapping[str, tuple[str, nn.Parameter]],
    *,
    ep: int = 1,
    ep_rank: int = 0,
    where: str = "",
) -> Exchange[StackedExperts]:
    """Make the module that takes the place of a container of experts.

    Args:
        container: A ``ModuleList``, ``ModuleDict`` or any module whose children are the experts.
        experts: Those children, in numeric order.
        stacked: By stacked name, the parameter's path inside an expert and the stacked parameter:
            a plain one with all experts, or a DTensor that is cut on dim 0 or replicated.
        ep: Over how many expert ranks the experts are spread; 1 if the stacked parameters are
            whole on every rank.
        ep_rank: This rank's coordinate among them.
        where: The container's path, for messages.

    Raises:
        HpxError: The experts hold parameters in a way that slots cannot take the place of.
    """
    base = type(container)
    if isinstance(container, StackedExperts):
        raise HpxError("the experts are stacked already", where=where or None)
    numbers = {id(expert): index for index, expert in enumerate(experts)}
    order = tuple(container._modules)
    found = {n: numbers[id(m)] for n, m in container._modules.items() if id(m) in numbers}
    index = dict(sorted(found.items(), key=operator.itemgetter(1)))
    plan = _plan(experts[0], {path: name for name, (path, _) in stacked.items()}, where)

    _refuse_names(container, stacked, where)
    module = blank(base)
    own = module.__dict__
    own.update(container.__dict__)
    own["_modules"] = {n: m for n, m in container._modules.items() if n not in index}
    table = dict(container._parameters)
    table.update({name: parameter for name, (_, parameter) in stacked.items()})
    own["_parameters"] = table
    source = SlotSource(table, tuple(stacked), len(experts), ep, ep_rank, where)
    own["_hpx"] = Kept(base, list(experts), order, index, source)

    tables: Tables = []
    for number, expert in enumerate(experts):
        for steps, names in plan:
            inner: Any = expert
            for step in steps:
                inner = inner._modules[step]
            tables.append((inner, Slots(source, number, names)))
    return exchange_tables(module, tables)


def _refuse_names(container: nn.Module, stacked: Iterable[str], where: str) -> None:
    kind = type(container).__name__
    for name in stacked:
        if hasattr(type(container), name) or name in OWN_NAMES:
            raise HpxError(
                f"cannot stack parameters as '{name}'",
                where=where or None,
                why=f"'{name}' is an attribute of a {kind} with stacked experts",
                fix="rename the module inside the experts, or leave the container out of experts:",
            )
    for name in OWN_NAMES:
        if hasattr(container, name):
            raise HpxError(
                f"cannot stack the experts of a {kind} that has an attribute '{name}'",
                where=where or None,
                why="the container needs that name itself when its experts are stacked",
                fix="rename the attribute, or leave the container out of the plan's experts:",
            )


def _plan(
    expert: nn.Module, stacked: Mapping[str, str], where: str
) -> list[tuple[list[str], dict[str, str | None]]]:
    """Which tables of an expert are to be exchanged: the way to each module, and its names."""
    plan: list[tuple[list[str], dict[str, str | None]]] = []
    for path, module in expert.named_modules():
        prefix = f"{path}." if path else ""
        names: dict[str, str | None] = {}
        for key, parameter in module._parameters.items():
            name = stacked.get(prefix + key)
            if name is None and parameter is not None:
                raise HpxError(f"no stacked parameter for '{prefix}{key}'", where=where or None)
            names[key] = name
        if any(names.values()):
            plan.append((path.split(".") if path else [], names))
        _refuse_hidden(module, path, where)
    return plan


def _refuse_hidden(module: nn.Module, path: str, where: str) -> None:
    # Such as the flat weights of an LSTM: they would go on with the old values.
    for name, value in module.__dict__.items():
        held = value.values() if isinstance(value, dict) else value
        if name == "_parameters" or not isinstance(value, (dict, list, tuple)):
            continue
        if any(isinstance(item, nn.Parameter) for item in held):
            raise HpxError(
                f"the experts keep parameters in '{path + '.' if path else ''}{name}' as well",
                where=where or None,
                why=f"a {type(module).__name__} would go on with their old values",
                fix="leave the container out of the plan's experts:",
            )
