"""Caches of a model's own code, which must not keep fake tensors.

A method under `functools.lru_cache` (BEiT's table of positions in transformers) belongs to the
class: what a proof computes would be given to the model itself afterwards.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CellType

from torch import nn

__all__ = ["forget"]

_DEPTH = 3


def forget(model: nn.Module) -> None:
    """Empty the caches of functions of the model's classes, and of the files that they are from.

    Args:
        model: The model; of torch's own classes nothing is emptied.
    """
    classes = {base for cls in _classes(model) for base in cls.__mro__}
    own = [cls for cls in classes if not cls.__module__.startswith(("torch.", "builtins"))]
    files = {cls.__module__ for cls in own} & sys.modules.keys()
    for place in (*own, *(sys.modules[name] for name in files)):
        for cache in _caches(list(vars(place).values()), _DEPTH):
            cache()


def _classes(model: nn.Module) -> set[type[nn.Module]]:
    """The classes of all modules; not by ``modules()``, which recurses as deep as they nest."""
    seen = {model}
    todo = [model]
    while todo:
        inside = [m for m in todo.pop()._modules.values() if m is not None and m not in seen]
        seen.update(inside)
        todo += inside
    return {type(module) for module in seen}


def _caches(values: Iterable[object], depth: int) -> Iterator[Callable[[], object]]:
    """What empties each cache: of a function, or of one that it wraps."""
    for held in values:
        value = getattr(held, "__func__", held)  # of a static or class method
        clear = getattr(value, "cache_clear", None) if callable(value) else None
        if callable(clear) and callable(getattr(value, "cache_info", None)):
            yield clear
        cells = getattr(value, "__closure__", None)
        if depth and isinstance(cells, tuple):
            yield from _caches(list(_contents(cells)), depth - 1)


def _contents(cells: Iterable[object]) -> Iterator[object]:
    for cell in cells:
        with contextlib.suppress(ValueError):  # an empty cell
            if isinstance(cell, CellType):
                yield cell.cell_contents
