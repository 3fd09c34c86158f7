"""Which tensors are one piece of memory: equal views are ties, partial overlaps are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch

from hpx.graph.overlap import View, overlap_error, overlaps

__all__ = ["Storages"]

_PLAIN: Final = (torch.nn.Parameter, torch.Tensor)


class Storages:
    """Tensors by the memory they stand on; keeps the tensors, so no storage is ever used again."""

    def __init__(self) -> None:
        # Nearly every storage has one tensor: for 45,000 of them no list is made.
        self._first: dict[int, torch.Tensor] = {}
        self._numbers: dict[int, int] = {}
        self._others: dict[int, list[tuple[int, torch.Tensor]]] = {}

    def all_new(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether plain tensors stand each on memory of its own, none of it met before."""
        keys = [tensor.untyped_storage()._cdata for tensor in tensors]
        return len(set(keys)) == len(keys) and self._first.keys().isdisjoint(keys)

    def add(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> None:
        """Remember plain tensors that `all_new` has looked at."""
        keys = [tensor.untyped_storage()._cdata for tensor in tensors]
        self._first.update(zip(keys, tensors, strict=True))
        self._numbers.update(zip(keys, numbers, strict=True))

    def claim(
        self,
        number: int,
        tensor: torch.Tensor,
        place: tuple[int, str],
        name_of: Callable[..., str],
    ) -> int | None:
        """Find the tensor that is this very view of this very memory, or remember this one.

        Args:
            number: What the tensor is remembered under if it is the first.
            tensor: What to look for.
            place: Owner and name of the tensor; for the error, ``name_of`` makes a name of it.
            name_of: Gives the name of a number or a place, for the error.

        Returns:
            The number of the earlier tensor; None where there is none.

        Raises:
            InputError: The tensor overlaps a part of an earlier one.
        """
        local = tensor if tensor.__class__ in _PLAIN else _local(tensor)
        if local.layout is not torch.strided:
            return None  # a sparse tensor has several storages, and is never a tie
        # data_ptr() is 0 for every meta tensor; the storage object tells them apart.
        key: int = local.untyped_storage()._cdata
        first = self._first.get(key)
        if first is None:
            self._first[key] = local
            self._numbers[key] = number
            return None
        others = self._others.setdefault(key, [(self._numbers[key], first)])
        view = _view(local)
        for earlier, other in others:
            theirs = _view(other)
            if view == theirs:
                return earlier
            if overlaps(view, theirs):
                named = (name_of(*place), name_of(earlier))
                shapes = (tuple(tensor.shape), tuple(other.shape))
                raise overlap_error(view, theirs, named, shapes)
        others.append((number, local))
        return None


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that holds the memory: a DTensor's local part, else itself."""
    local = getattr(tensor, "_local_tensor", None)
    return local if isinstance(local, torch.Tensor) else tensor


def _view(tensor: torch.Tensor) -> View:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return View(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), dtype)
