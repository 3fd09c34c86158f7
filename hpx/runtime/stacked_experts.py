"""The class of an expert container whose parameters are stacked; see `hpx.runtime.experts`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

from torch import Tensor, nn

from hpx.errors import HpxError
from hpx.runtime.slots import Exchange, SlotSource, Tables, exchange_tables, slot_tables

__all__ = ["OWN_NAMES", "Kept", "StackedExperts", "blank"]

OWN_NAMES: Final = ("slots", "unstack")
"""What a `StackedExperts` adds to the names of the container's class."""

_CHANGING: Final = (
    *("__setitem__", "__delitem__", "__iadd__", "__add__", "append", "extend", "insert"),
    *("pop", "clear", "update"),
)


class StackedExperts(nn.Module):
    """What all containers with stacked experts have in common; made by `stack_container`.

    ``experts[i]`` takes the index over all ranks, and raises `NotRunnableError` for an expert of
    another expert rank; ``len``, iteration, slices (as a list) and access by the child's name
    (``experts["expert_3"]``, ``experts.expert_3``, ``get_submodule("experts.3")``) work as before.
    ``train`` and ``eval`` reach all experts, ``apply`` those that this rank holds.

    A container that has ``slots`` or ``unstack`` of its own is refused by `stack_container`.
    """

    _hpx: Kept

    @property
    def slots(self) -> SlotSource:
        """Hands out slots; its `arm` and `disarm` are hooks for the module that owns this one."""
        return self._hpx.source

    def unstack(self, parameters: Mapping[str, Sequence[nn.Parameter]]) -> Exchange[nn.Module]:
        """The way back to a container of the original class, whose experts own their parameters.

        Args:
            parameters: For each stacked name, one parameter for every expert.
        """
        kept = self._hpx
        module = kept.base.__new__(kept.base)
        module.__dict__.update(self.__dict__)
        del module.__dict__["_hpx"]
        module.__dict__["_modules"] = {name: self._child(name) for name in kept.order}
        own = {name: p for name, p in self._parameters.items() if name not in kept.source.names}
        module.__dict__["_parameters"] = own
        whole: Tables = []
        for inner, slots in slot_tables(kept.experts):
            names = {key: dict.__getitem__(slots, key) for key in slots}
            table = {
                key: None if name is None else parameters[name][slots.index]
                for key, name in names.items()
            }
            whole.append((inner, table))
        return exchange_tables(module, whole)

    # -- the experts as children -------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._listed())

    def __iter__(self) -> Iterator[Any]:
        return map(self._usable, self._listed())

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if key not in self._hpx.order:
                raise KeyError(key)
            return self._usable(key)
        size = len(self._hpx.experts)
        if isinstance(key, slice):
            return [self._expert(index) for index in range(*key.indices(size))]
        index = operator.index(key)
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of range for {size} experts")
        return self._expert(index % size)

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            return key in self._hpx.order
        return any(key is self._child(name) for name in self._hpx.order)

    def __getattr__(self, name: str) -> Any:
        kept = self.__dict__.get("_hpx")
        if kept is not None and name in kept.index:
            return self._expert(kept.index[name])
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        kept = self.__dict__.get("_hpx")
        if kept is not None and name in kept.index:
            self._refuse()
        super().__setattr__(name, value)

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """The children in the module tree; while the model runs, the experts too, as before."""
        if not self.slots.armed:
            yield from super().named_children()
            return
        for name in self._hpx.order:
            yield name, self._usable(name)

    def _listed(self) -> Sequence[str]:
        return self._hpx.order if isinstance(self, _LISTS) else tuple(self._hpx.index)

    def _child(self, name: str) -> nn.Module | None:
        index = self._hpx.index.get(name)
        return self._modules[name] if index is None else self._hpx.experts[index]

    def _usable(self, name: str) -> Any:
        index = self._hpx.index.get(name)
        return self._modules[name] if index is None else self._expert(index)

    def _expert(self, index: int) -> nn.Module:
        if self._hpx.spread:
            self.slots.check_held(index)
        return self._hpx.experts[index]

    def _held(self) -> list[nn.Module]:
        first, end = (self.slots.first, self.slots.end) if self._hpx.spread else (0, None)
        return self._hpx.experts[first:end]

    # -- what reaches a module's children ----------------------------------------------------

    def train(self, mode: bool = True) -> Any:
        """Set the mode of the container and of all experts."""
        with self.slots.at_rest():
            super().train(mode)
        for expert in self._hpx.experts:
            expert.train(mode)
        return self

    def apply(self, fn: Callable[[nn.Module], None]) -> Any:
        """Call a function with every module, the experts held here among them."""
        with self.slots.at_rest():
            for expert in self._held():
                expert.apply(fn)
            return super().apply(fn)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        with self.slots.at_rest():
            return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    # -- the rest ----------------------------------------------------------------------------

    def __repr__(self) -> str:
        return nn.Module.__repr__(self)

    def extra_repr(self) -> str:
        """One line: how many experts, which of them are here, and the stacked parameters."""
        source = self.slots
        here = f", {source.first}-{source.end - 1} here" if self._hpx.spread else ""
        stacked = ((name, self.get_parameter(name)) for name in source.names)
        shapes = (f"{name} {tuple(parameter.shape)}" for name, parameter in stacked)
        return f"{len(self._hpx.experts)} experts{here}: {', '.join(shapes)}"

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise HpxError(
            "stacked experts cannot be added, removed or replaced",
            where=self.slots.where or None,
            why="each is a slot of the stacked parameters",
            fix="call hpx.restore(model) first",
        )

    def __reduce_ex__(self, _: object) -> tuple[Any, ...]:
        state = self.__getstate__()  # type: ignore[no-untyped-call]
        return blank, (self._hpx.base,), state


class Kept:
    """What a `StackedExperts` knows beyond its class's own: kept outside of the module tree."""

    def __init__(
        self,
        base: type[nn.Module],
        experts: list[nn.Module],
        order: tuple[str, ...],
        index: dict[str, int],
        source: SlotSource,
    ) -> None:
        self.base = base
        self.experts = experts
        self.order = order
        self.index = index
        self.source = source

    @property
    def spread(self) -> bool:
        """Whether each expert rank has some of the experts."""
        return self.source.ep > 1


class _Running(StackedExperts):
    """A container with a forward of its own: it owns its experts itself."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The forward of the container's class."""
        self.slots.arm(self)
        try:
            return super().forward(*args, **kwargs)
        finally:
            self.slots.disarm(self)


class _Keyed(StackedExperts):
    """What a ``ModuleDict`` has besides."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self._hpx.order)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str) or key not in self._hpx.order:
            raise KeyError(key)
        return self._usable(key)

    def keys(self) -> Any:
        """Names of all children, in the original order."""
        return dict.fromkeys(self._hpx.order).keys()

    def values(self) -> Any:
        """All children, in the original order."""
        return [self._usable(name) for name in self._hpx.order]

    def items(self) -> Any:
        """Names and children, in the original order."""
        return [(name, self._usable(name)) for name in self._hpx.order]


def _no_forward(self: StackedExperts, *_: object, **__: object) -> NoReturn:
    raise NotImplementedError(f"{type(self).__name__} has no forward: its experts run one by one")


_LISTS: Final = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_MADE: Final[dict[type[nn.Module], type[StackedExperts]]] = {}


def blank(base: type[nn.Module]) -> StackedExperts:
    """A container without content, also for copies and pickles."""
    if base not in _MADE:
        _MADE[base] = _stacked_class(base)
    kind = _MADE[base]
    return kind.__new__(kind)


def _stacked_class(base: type[nn.Module]) -> type[StackedExperts]:
    kinds: list[type[nn.Module]] = []
    if issubclass(base, nn.ModuleDict):
        kinds.append(_Keyed)
    refused = {name: StackedExperts._refuse for name in _CHANGING if hasattr(base, name)}
    body: dict[str, Any] = {**refused, "__module__": __name__, "__doc__": base.__doc__}
    if base.forward is not nn.Module.forward:
        kinds.append(_Running)
    else:
        # torch's fully_shard takes a list only if its class has a forward.
        body["forward"] = _no_forward
    bases = (*(kinds or [StackedExperts]), base)
    made: type[StackedExperts] = type(f"Stacked{base.__name__}", bases, body)
    return made
