"""What enters a region, as it is before: its code may add to a list or cache that it is given."""

from __future__ import annotations

import io
import pickle
from types import FunctionType
from typing import Any, Final, TypeVar

from torch import Tensor, nn

__all__ = ["kept"]

T = TypeVar("T")

_SAME: Final = (Tensor, nn.Module, FunctionType, type)


def kept(arguments: T) -> T:
    """A copy of arguments, with the same tensors, modules and functions in it.

    Args:
        arguments: Of a call. What is in them and cannot be pickled leaves them as they are.
    """
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    try:
        pickler.dump(arguments)
        stream.seek(0)
        made: T = _Unpickler(stream, pickler.same).load()
    except Exception:  # noqa: BLE001 - whatever an object of the model's own has inside
        return arguments
    return made


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self.same: list[object] = []

    def persistent_id(self, value: object) -> int | None:
        if not isinstance(value, _SAME):
            return None
        self.same.append(value)
        return len(self.same) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, same: list[object]) -> None:
        super().__init__(stream)
        self.same = same

    def persistent_load(self, index: Any) -> object:
        return self.same[index]
