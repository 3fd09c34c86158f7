"""Refuse values that unfold without end: lists of ten lists of ten lists, each of them one list.

Nothing here walks such a value more than once, but whoever prints or copies it would never end, and
nobody makes one but to do harm.
"""

from __future__ import annotations

from typing import Final

from hpx.inert.errors import AbsurdError
from hpx.inert.values import Bag, Opaque

__all__ = ["check_weight"]

_HEAVIEST: Final = 1 << 32
_PLAIN: Final = (list, tuple, dict, Bag)


def check_weight(root: object) -> None:
    """Count the values below the plain containers of a value, shared ones as often as they occur.

    Instances count as one: models refer to their parts from many places.

    Raises:
        AbsurdError: There are billions of them.
    """
    weights: dict[int, int] = {}
    todo: list[tuple[object, list[object] | None]] = [(root, None)]
    while todo:
        value, inner = todo.pop()
        if inner is not None:
            weight = 1 + len(inner) + sum(weights[id(child)] for child in _nested(inner))
            if weight > _HEAVIEST:
                raise AbsurdError("its values unfold to billions: a memo bomb")
            weights[id(value)] = weight
        elif id(value) not in weights:
            weights[id(value)] = 0  # while it is open: a value inside itself ends there
            inner = _inner(value)
            todo.append((value, inner))
            todo.extend((child, None) for child in _nested(inner) if id(child) not in weights)


def _inner(value: object) -> list[object]:
    if type(value) is dict:
        keys = [key.value for key in value if type(key) is Opaque]
        return [*keys, *value.values()] if keys else list(value.values())
    if type(value) is Bag:
        return value.items
    return list(value) if type(value) is list or type(value) is tuple else []


def _nested(inner: list[object]) -> list[object]:
    return [child for child in inner if type(child) in _PLAIN]
