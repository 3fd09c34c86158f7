"""What each kind of opcode does to inert values: all that stands for running something."""

from __future__ import annotations

from mmap import mmap
from typing import Final

from hpx.inert.errors import DamagedError
from hpx.inert.values import Bag, Name, Object, Opaque, Tensor

__all__ = ["add_items", "call", "make", "set_items", "set_state", "text_of"]

_LARGEST_KEY: Final = 1 << 48


def text_of(data: bytes | mmap, start: int, stop: int) -> str:
    """The text between two places; what is no UTF-8 shows as escapes.

    Raises:
        DamagedError: The data end before it does.
    """
    if stop > len(data):
        raise DamagedError("it ends in the middle")
    try:
        return str(data[start:stop], "utf-8")
    except UnicodeDecodeError:
        return str(data[start:stop], "utf-8", "backslashreplace")


def call(function: object, args: object) -> object:
    """What stands for a call.

    Raises:
        DamagedError: The arguments are no tuple.
    """
    if type(args) is not tuple:
        raise DamagedError("it calls with something that is no tuple")
    return function.call(args) if type(function) is Name else Object(function, args)


def make(cls: object, args: object) -> Object:
    """What stands for a new instance of a class."""
    if type(cls) is Name:
        cls.made = True
    return Object(cls, args)


def set_state(target: object, state: object) -> None:
    """What stands for setting the attributes of an instance."""
    if type(target) is Object:
        target.state = state
    elif type(target) is Tensor:
        target.extra = state
    elif type(target) is Name:
        target.patched = True


def add_items(target: object, items: list[object]) -> None:
    """What stands for extending a list, or adding to a set.

    Raises:
        DamagedError: The target takes no items.
    """
    if type(target) is list:
        target.extend(items)
    elif type(target) is Bag or type(target) is Object:
        target.items.extend(items)
    else:
        raise DamagedError(f"it adds to a {type(target).__name__}")


def set_items(target: object, items: list[object]) -> None:
    """What stands for filling a mapping with keys and values in turn.

    Raises:
        DamagedError: The target is no mapping, or a key has no value.
    """
    if len(items) % 2:
        raise DamagedError("it has a key without a value")
    if type(target) is dict:
        for number in range(0, len(items), 2):
            target[_key(items[number])] = items[number + 1]
    elif type(target) is Object:
        target.items.extend(zip(items[::2], items[1::2], strict=True))
    else:
        raise DamagedError(f"it sets items of a {type(target).__name__}")


def _key(key: object) -> object:
    if type(key) is str or key is None:
        return key
    return key if type(key) is int and abs(key) < _LARGEST_KEY else Opaque(key)
