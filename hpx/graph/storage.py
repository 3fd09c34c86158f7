"""Which tensors are one piece of memory: equal views are ties, partial overlaps are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch

from hpx.errors import InputError

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
        for earlier, other in others:
            if _same_view(local, other):
                return earlier
            if _overlap(local, other):
                mine, theirs = _extent(local), _extent(other)
                raise InputError(
                    f"'{name_of(*place)}' {list(tensor.shape)} overlaps a part of"
                    f" '{name_of(earlier)}' {list(other.shape)}",
                    why=f"bytes {mine[0]}..{mine[1]} and {theirs[0]}..{theirs[1]} of one storage",
                    fix="give each its own memory (clone one), or tie them whole",
                )
        others.append((number, local))
        return None


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that holds the memory: a DTensor's local part, else itself."""
    local = getattr(tensor, "_local_tensor", None)
    return local if isinstance(local, torch.Tensor) else tensor


def _same_view(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        a.shape == b.shape
        and a.stride() == b.stride()
        and a.storage_offset() == b.storage_offset()
        and a.dtype == b.dtype
    )


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    (start, stop), (first, last) = _extent(a), _extent(b)
    if max(start, first) >= min(stop, last):
        return False
    # Columns or every other row of one matrix interleave without sharing an element.
    comparable = a.stride() == b.stride() and a.element_size() == b.element_size()
    return not comparable or _meet(a, b)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First and one past the last byte of the storage that the tensor can touch."""
    size = tensor.element_size()
    start = int(tensor.storage_offset()) * size
    if tensor.numel() == 0:
        return (start, start)
    reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (start, start + (reach + 1) * size)


def _meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two views of equal strides have an element in common.

    They do if index differences exist, each within its dim, whose strides add up to the difference
    of the offsets. The largest stride is settled first, which leaves few differences to go on with.
    """
    dims = sorted(zip(a.stride(), a.shape, b.shape, strict=True), reverse=True)
    gaps = {b.storage_offset() - a.storage_offset()}
    for k, (step, size_a, size_b) in enumerate(dims):
        if step == 0:
            break
        up = sum((m - 1) * s for s, m, _ in dims[k + 1 :])
        down = sum((n - 1) * s for s, _, n in dims[k + 1 :])
        gaps = {
            gap - step * index
            for gap in gaps
            for index in range(
                max(1 - size_b, -((up - gap) // step)), min(size_a - 1, (gap + down) // step) + 1
            )
        }
    return 0 in gaps
