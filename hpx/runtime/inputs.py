"""The inputs of a module's forward, found by name or by position as the caller gives them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from hpx.errors import HpxError, NotRunnableError, did_you_mean
from hpx.runtime.collectives import copy_to_region
from hpx.runtime.sequence import gather_for_region

__all__ = ["Inputs"]

_ALSO_READ: Final = ("key_value_states", "encoder_hidden_states")
"""Inputs of attention, besides the first, that its projections read."""
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Inputs:
    """Which inputs of a module are meant.

    Args:
        module: The module.
        name: What messages call it.
        declared: ``"R"`` for each input that is read inside, ``"none"`` for each to leave alone;
            None for the first input of the forward.

    Raises:
        HpxError: The forward has no input of a declared name.
    """

    def __init__(self, module: nn.Module, name: str, declared: Mapping[str, str] | None) -> None:
        self.name = name
        parameters = list(inspect.signature(module.forward).parameters.values())
        by_position = [p.name for p in parameters if p.kind in _POSITIONAL]
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
        by_position = by_position or ["0"]  # a forward of *args
        self.position = {key: index for index, key in enumerate(by_position)}
        for key in declared or ():
            if key not in self.position and not takes_any:
                keyword_only = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
                if key not in keyword_only:
                    raise HpxError(
                        f"its forward has no input '{key}'",
                        where=name,
                        why=f"it takes {', '.join([*by_position, *keyword_only])}",
                        fix=did_you_mean(key, [*by_position, *keyword_only]) or None,
                    )
        self.first = by_position[0]
        if declared is None:
            self.wanted: tuple[str, ...] = (self.first,)
            self.optional: tuple[str, ...] = _ALSO_READ
            self.left: frozenset[str] = frozenset()
        else:
            self.wanted = tuple(key for key, layout in declared.items() if layout != "none")
            self.optional = ()
            self.left = frozenset(key for key, layout in declared.items() if layout == "none")
        self.at = {index: key for key, index in self.position.items()}

    def changed(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], change: Callable[[Tensor], Tensor]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with the wanted inputs changed.

        Raises:
            NotRunnableError: One of them is not given.
        """
        given = list(args)
        for key in self.wanted:
            index = self.position.get(key, -1)
            if 0 <= index < len(given):
                given[index] = _on_tensors(given[index], change)
            elif key in kwargs:
                kwargs = {**kwargs, key: _on_tensors(kwargs[key], change)}
            else:
                raise NotRunnableError(
                    f"{self.name} is called without its input '{key}'",
                    why="that input is declared to enter the region; it was given "
                    f"{len(args)} by position and {', '.join(kwargs) or 'none'} by name",
                    fix="call it with that input, or declare others under boundaries: in the plan",
                )
        return tuple(given), kwargs

    def value(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The first of the wanted inputs; None if it is not given."""
        key = self.wanted[0] if self.wanted else self.first
        index = self.position.get(key, -1)
        return args[index] if 0 <= index < len(args) else kwargs.get(key)

    def copied(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], group: ProcessGroup
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with the wanted inputs copied into the region.

        Raises:
            NotRunnableError: One of them is not given; or another one needs a gradient, and nobody
                has said whether the region reads it.
        """
        copied = _Once(lambda x: copy_to_region(x, group))
        return self._with_others(*self.changed(args, kwargs, copied), copied)

    def gathered(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], group: ProcessGroup, length: int
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with the wanted inputs gathered from parts of a sequence into the region.

        What another sequence gives (the states of an encoder) is whole, and copied in.

        Raises:
            NotRunnableError: As `copied`; or the first one does not have the positions of a rank;
                or which of the two sequences another one belongs to cannot be told.
        """
        first = self.value(args, kwargs)

        def enter(x: Tensor) -> Tensor:
            if x is first or _is_beside(x, first):
                return gather_for_region(x, group, self.name, length)
            return copy_to_region(x, group)

        entered = _Once(enter)

        def told_apart(x: Tensor) -> Tensor:
            if x is not first and _is_beside(x, first):
                raise NotRunnableError(
                    f"another input of {self.name} is {list(x.shape)}, as a rank's part of its"
                    " stream is",
                    why="whether it is such a part, or all of another sequence, cannot be told",
                    fix="give the other sequence another length, or insert-collectives{sp=false}",
                )
            return entered(x)

        return self._with_others(*self.changed(args, kwargs, entered), told_apart)

    def whole(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], change: Callable[[Tensor], Tensor]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with everything changed that has as many positions as the first input.

        Raises:
            NotRunnableError: The first input is not given.
        """
        first = self.value(args, kwargs)
        changed = _Once(lambda x: change(x) if x is first or _is_beside(x, first) else x)
        args, kwargs = self.changed(args, kwargs, changed)
        skip = {*self.left, *_ALSO_READ}
        args = tuple(
            value if self.at.get(index) in skip else _on_tensors(value, changed)
            for index, value in enumerate(args)
        )
        return args, {
            key: value if key in skip else _on_tensors(value, changed)
            for key, value in kwargs.items()
        }

    def _with_others(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], change: Callable[[Tensor], Tensor]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same with those inputs changed that attention reads as well."""
        for key in self.optional:
            index = self.position.get(key, -1)
            if 0 <= index < len(args):
                args = (*args[:index], _on_tensors(args[index], change), *args[index + 1 :])
            elif kwargs.get(key) is not None:
                kwargs = {**kwargs, key: _on_tensors(kwargs[key], change)}
        if torch.is_grad_enabled():
            self._check_others(args, kwargs)
        return args, kwargs

    def _check_others(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look for inputs that need a gradient, and of which nobody has said what becomes of them.

        Raises:
            NotRunnableError: There is one.
        """
        settled = (*self.wanted, *self.optional, *self.left)
        for index, value in enumerate(args):
            if not isinstance(value, int | None) and _needs_gradient(value):
                self._check(self.at.get(index, str(index)), settled)
        for key, value in kwargs.items():
            if not isinstance(value, int | None) and _needs_gradient(value):
                self._check(key, settled)

    def _check(self, key: str, settled: tuple[str, ...]) -> None:
        if key not in settled:
            raise NotRunnableError(
                f"input '{key}' of {self.name} needs a gradient",
                why="whether it is read before or after the sum over the region is not known, and "
                "its gradient would be wrong in one of the cases",
                fix=f"declare it under boundaries: in the plan: input: {{{self.first}: R,"
                f" {key}: R}} if the cut weights read it, {key}: none if not",
            )


class _Once:
    """A change of tensors; one that is given twice is changed, and its gradient summed, once."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        self.change = change
        self.done: dict[int, Tensor] = {}

    def __call__(self, x: Tensor) -> Tensor:
        found = self.done.get(id(x))
        if found is None:
            found = self.change(x)
            self.done[id(x)] = self.done[id(found)] = found
        return found


def _is_beside(x: Tensor, first: object) -> bool:
    """Whether a tensor is of the same part of a sequence as the first input."""
    return (
        isinstance(first, Tensor)
        and x.dim() == 3
        and x.is_floating_point()
        and x.shape[:2] == first.shape[:2]
    )


def _on_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(_on_tensors(item, change) for item in value)
    return value


def _needs_gradient(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.requires_grad
    return isinstance(value, tuple | list) and any(_needs_gradient(item) for item in value)
