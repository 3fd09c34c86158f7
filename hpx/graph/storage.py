"""Which tensors are one piece of memory: equal views are ties, partial overlaps are refused."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hpx.errors import InputError

__all__ = ["Storages"]


class Storages:
    """Tensors by the memory they stand on; keeps the tensors, so no storage is ever used again."""

    def __init__(self) -> None:
        self._tensors: dict[int, list[tuple[int, torch.Tensor]]] = {}

    def add(self, number: int, tensor: torch.Tensor) -> None:
        """Remember a tensor under a number of the caller's choice."""
        key = _key(tensor)
        if key is not None:
            self._tensors.setdefault(key, []).append((number, tensor))

    def find(
        self, tensor: torch.Tensor, name: Callable[[], str], name_of: Callable[[int], str]
    ) -> int | None:
        """The number of the tensor that is this very view of this very memory, if there is one.

        Args:
            tensor: What to look for.
            name: Gives its name, for the error.
            name_of: Gives the name of a number that `add` was given, for the error.

        Raises:
            InputError: The tensor overlaps a part of one that was added.
        """
        key = _key(tensor)
        for number, other in self._tensors.get(key, ()) if key is not None else ():
            if _same_view(_local(tensor), _local(other)):
                return number
            if _overlap(_local(tensor), _local(other)):
                mine, theirs = _extent(_local(tensor)), _extent(_local(other))
                raise InputError(
                    f"'{name()}' {list(tensor.shape)} overlaps a part of '{name_of(number)}'"
                    f" {list(other.shape)}",
                    why=f"bytes {mine[0]}..{mine[1]} and {theirs[0]}..{theirs[1]} of one storage",
                    fix="give each its own memory (clone one), or tie them whole",
                )
        return None


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that holds the memory: a DTensor's local part, else itself."""
    local = getattr(tensor, "_local_tensor", None)
    return local if isinstance(local, torch.Tensor) else tensor


def _key(tensor: torch.Tensor) -> int | None:
    """What tells storages apart while they live; None for a sparse tensor, which has several."""
    local = _local(tensor)
    if local.layout is not torch.strided:
        return None
    # data_ptr() is 0 for every meta tensor; the storage object tells them apart.
    return int(local.untyped_storage()._cdata)


def _same_view(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        a.shape == b.shape
        and a.stride() == b.stride()
        and a.storage_offset() == b.storage_offset()
        and a.dtype == b.dtype
    )


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    (start, stop), (first, last) = _extent(a), _extent(b)
    if start >= last or first >= stop:
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
