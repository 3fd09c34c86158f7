"""Slots of stacked parameters: what stands in an expert's modules in place of its parameters.

A stacked parameter ``[E, ...]`` is the only tensor that exists; a slot is a view of it. The table
of parameters of a module inside an expert is replaced by a `Slots`, a dictionary that takes its
values from the stacked parameters each time one is read. So a slot follows whatever happens to the
stacked parameter: conversion, FSDP's gathering, ``functional_call``, a loaded state dict.

Reading slots one by one would cost a gradient of the size of the whole stack for each of them. So
while a module that owns experts runs, the slots come from one ``unbind(0)`` (`SlotSource.arm`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, NoReturn, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hpx.errors import HpxError, NotRunnableError
from hpx.layout import chunk_range

__all__ = ["Exchange", "SlotSource", "Slots", "Tables", "exchange_tables", "slot_tables"]

Tables: TypeAlias = list[tuple[nn.Module, dict[str, Any]]]
"""Modules, and the tables of parameters that they are to have."""

Put = TypeVar("Put", bound=nn.Module)

_Unbound: TypeAlias = tuple[nn.Parameter, int, tuple[Tensor, ...]]


class SlotSource:
    """Hands out the slots of one container's stacked parameters.

    Args:
        parameters: The container's own table, so that a parameter that is put there later counts.
        names: The stacked ones in it.
        size: How many experts there are on all ranks together.
        ep: Over how many expert ranks they are spread; 1 if every rank has them all.
        ep_rank: Which of them this is.
        where: The container's path, for messages.
    """

    def __init__(
        self,
        parameters: dict[str, nn.Parameter | None],
        names: tuple[str, ...],
        size: int,
        ep: int = 1,
        ep_rank: int = 0,
        where: str = "",
    ) -> None:
        self.parameters = parameters
        self.names = names
        self.size = size
        self.ep = ep
        self.ep_rank = ep_rank
        self.where = where
        self.first, self.end = chunk_range(size, ep, ep_rank)
        self._owners: list[int] = []
        self._unbound: dict[tuple[str, bool], _Unbound] = {}

    @property
    def armed(self) -> bool:
        """Whether a module that owns the experts is running."""
        return bool(self._owners)

    def arm(self, owner: nn.Module, *_: object) -> None:
        """A forward pre-hook: from here on, all slots come from one unbind.

        A second entry of the same owner replaces the first, which was interrupted before its hook
        could run (or encloses this one, and then reads slots one by one when this one is done).
        """
        self._leave(id(owner))
        self._owners.append(id(owner))
        for name in self.names:
            self._all_slots(name)

    def disarm(self, owner: nn.Module, *_: object) -> None:
        """The forward hook that belongs to `arm`; register it with ``always_call=True``."""
        self._leave(id(owner))

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """As if no owner were running; what was unbound is dropped."""
        owners, self._owners = self._owners, []
        self._unbound.clear()
        try:
            yield
        finally:
            self._owners = owners

    def check_held(self, index: int) -> None:
        """Whether this rank holds an expert.

        Raises:
            NotRunnableError: Another rank does; it says which.
        """
        if self.first <= index < self.end:
            return
        held_by = next(
            rank
            for rank in range(self.ep)
            if chunk_range(self.size, self.ep, rank)[0] <= index
            and index < chunk_range(self.size, self.ep, rank)[1]
        )
        raise NotRunnableError(
            f"expert {index} is not on this rank",
            where=self.where or None,
            why=f"ep rank {held_by} of {self.ep} holds it; this is ep rank {self.ep_rank}, with "
            f"{_range_text(self.first, self.end)} of {self.size}, and nothing exchanges tokens",
            fix="keep the experts whole, without ep in their layout, until dispatch-experts exists",
        )

    def slot(self, name: str, index: int) -> Tensor:
        """Slot ``index``, counted over all ranks, of a stacked parameter.

        Raises:
            NotRunnableError: It is not on this rank, or FSDP keeps a part of it elsewhere now.
        """
        if not self._owners:
            local = self._local(name)
            return local.select(0, self._offset(name, index, len(local)))
        slots = self._all_slots(name)
        return slots[self._offset(name, index, len(slots))]

    def _all_slots(self, name: str) -> tuple[Tensor, ...]:
        parameter = self.parameters[name]
        assert parameter is not None
        # What is unbound without gradients stays without them, so the two are kept apart.
        key = (name, torch.is_grad_enabled())
        found = self._unbound.get(key)
        if found is None or found[0] is not parameter or found[1] != _version(parameter):
            found = (parameter, _version(parameter), self._local(name).unbind(0))
            self._unbound[key] = found
        return found[2]

    def _local(self, name: str) -> Tensor:
        parameter = self.parameters[name]
        assert parameter is not None
        if not isinstance(parameter, DTensor):
            return parameter
        local: Tensor = parameter.to_local(grad_placements=parameter.placements)
        return local

    def _offset(self, name: str, index: int, count: int) -> int:
        if count == self.size:  # a parameter that is whole on every rank
            return index
        self.check_held(index)
        if count != self.end - self.first:
            raise NotRunnableError(
                f"'{name}' has {count} slots here instead of {self.end - self.first}",
                where=self.where or None,
                why="FSDP holds the others while the module that it wraps is not running",
                fix="call that module, or read the values from its state dict",
            )
        return index - self.first

    def _leave(self, owner: int) -> None:
        if owner in self._owners:
            del self._owners[self._owners.index(owner) :]
        if not self._owners:
            self._unbound.clear()

    def __getstate__(self) -> dict[str, Any]:
        # A copy is not running, and what was unbound belongs to this one's parameters.
        return {**self.__dict__, "_owners": [], "_unbound": {}}


class Slots(dict[str, Any]):
    """The table of parameters of a module inside an expert; its values are slots.

    What is stored is the name of the stacked parameter (None where the module has none), and what
    is read is the slot; code that bypassed reading would find a text, not a wrong tensor.

    Args:
        source: Hands out the slots.
        index: Which expert.
        names: From the parameter's name in the module to the stacked parameter's.
    """

    __slots__ = ("index", "source")

    def __init__(self, source: SlotSource, index: int, names: Mapping[str, str | None]) -> None:
        super().__init__(names)
        self.source = source
        self.index = index

    def __getitem__(self, key: str) -> Tensor | None:
        name = dict.__getitem__(self, key)
        return None if name is None else self.source.slot(name, self.index)

    def __iter__(self) -> Iterator[str]:  # without it, dict(slots) would copy what is stored
        return dict.__iter__(self)

    def get(self, key: str, default: Any = None) -> Any:
        """The slot, or ``default``."""
        try:
            return self[key]
        except KeyError:
            return default

    def items(self) -> Any:
        """Names and slots, as a list."""
        return [(key, self[key]) for key in self]

    def values(self) -> Any:
        """The slots, as a list."""
        return [self[key] for key in self]

    def copy(self) -> dict[str, Any]:
        """A plain dictionary of the slots."""
        return dict(self.items())

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        where = self.source.where
        raise HpxError(
            f"the parameters of expert {self.index} cannot be replaced one by one",
            where=where or None,
            why="they are slots of stacked parameters",
            fix="change the stacked parameter, or call hpx.restore(model) first",
        )

    __setitem__ = __delitem__ = pop = popitem = clear = update = setdefault = __ior__ = _refuse

    def __reduce_ex__(self, _: object) -> tuple[Any, ...]:
        names = {key: dict.__getitem__(self, key) for key in self}
        return Slots, (self.source, self.index, names)


class Exchange(NamedTuple, Generic[Put]):
    """A module to put in place, and what changes in the experts with it.

    Whoever keeps it keeps the tables that were there, and their parameters.

    Attributes:
        module: The module to put in place of the container.
        change: Exchanges the experts' tables of parameters.
        undo: Puts back the tables that were there; right also when ``change`` did not finish.
    """

    module: Put
    change: Callable[[], None]
    undo: Callable[[], None]


def exchange_tables(module: Put, tables: Tables) -> Exchange[Put]:
    """The exchange that gives modules other tables of parameters."""
    before: Tables = [(inner, inner.__dict__["_parameters"]) for inner, _ in tables]

    def put(chosen: Tables) -> None:
        for inner, table in chosen:
            inner.__dict__["_parameters"] = table

    return Exchange(module, lambda: put(tables), lambda: put(before))


def slot_tables(experts: Iterable[nn.Module]) -> Iterator[tuple[nn.Module, Slots]]:
    """Every module of the experts that has slots, and its table."""
    for expert in experts:
        for module in expert.modules():
            if isinstance(module._parameters, Slots):
                yield module, module._parameters


def _range_text(first: int, end: int) -> str:
    return "no expert" if first == end else f"experts {first}-{end - 1}"


def _version(tensor: Tensor) -> int:
    # Inference tensors do not count; a compiler sees no change from outside while it traces.
    if torch.compiler.is_compiling() or tensor.is_inference():
        return -1
    return tensor._version
