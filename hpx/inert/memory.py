"""Which tensors of a file are one piece of memory, as `hpx.graph.storage` does for real ones."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Final

from hpx.errors import InputError, TooLargeError
from hpx.graph.overlap import View, overlap_error, overlaps
from hpx.inert.dtypes import ITEM_SIZES
from hpx.inert.values import Tensor

__all__ = ["Memory", "local_part"]

_MOST_COMPARED: Final = 1_000_000


class Memory:
    """Tensors by the storage that they stand on."""

    def __init__(self) -> None:
        # Nearly every storage has one tensor: for 100,000 of them nothing more is made.
        self._first: dict[str, tuple[int, Tensor]] = {}
        self._shared: dict[str, _Shared] = {}
        self._compared = 0
        # Nearly all tensors lie as others do: elements from the first to the last.
        self._reaches: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}

    def claim(
        self,
        number: int,
        tensor: Tensor,
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
            InputError: The tensor overlaps a part of an earlier one, or reaches behind the end of
                its storage.
            TooLargeError: So many tensors lie in between each other that comparing takes too long.
        """
        local = local_part(tensor)
        storage = local.storage
        if storage is None or local.strides is None:
            return None
        self.check(local, place, name_of)
        first = self._first.get(storage.key)
        if first is None:
            self._first[storage.key] = (number, tensor)
            return None
        shared = self._shared.get(storage.key)
        if shared is None:
            shared = self._shared[storage.key] = _Shared()
            shared.add(first[0], first[1])
        view = _view(local)
        same = shared.numbers.get(view)
        if same is not None:
            return same
        near = shared.near(view)
        self._compared += len(near)
        if self._compared > _MOST_COMPARED:
            raise TooLargeError(
                f"too many tensors lie in between each other, '{name_of(*place)}' among them",
                why=f"more than {_MOST_COMPARED:,} pairs on shared storages",
                fix="give each tensor its own memory (clone it) before saving",
            )
        for earlier in near:
            other, whole = shared.views[earlier], shared.tensors[earlier]
            if overlaps(view, other):
                named = (name_of(*place), name_of(earlier))
                raise overlap_error(view, other, named, (tensor.shape, whole.shape))
        shared.add(number, tensor)
        return None

    def check(self, tensor: Tensor, place: tuple[int, str], name_of: Callable[..., str]) -> None:
        """Refuse a tensor that reaches behind the end of its storage.

        Raises:
            InputError: It does.
        """
        local = local_part(tensor)
        storage, shape, strides = local.storage, local.shape, local.strides
        if storage is None or strides is None or 0 in shape:
            return
        reach = self._reaches.get((shape, strides))
        if reach is None:
            reach = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1
            self._reaches[shape, strides] = reach
        needed, there = local.offset + reach, storage.elements
        if local.dtype != storage.dtype:
            needed, there = needed * ITEM_SIZES[local.dtype], storage.bytes
        if needed > there:
            raise InputError(
                f"'{name_of(*place)}' {list(shape)} reaches behind the end of its storage",
                why=f"it needs {needed:,} elements or bytes there, and {there:,} are in the file",
                fix="get the file again: its header does not fit its contents",
            )


class _Shared:
    """The different views of one storage."""

    def __init__(self) -> None:
        self.numbers: Final[dict[View, int]] = {}
        self.views: Final[dict[int, View]] = {}
        self.tensors: Final[dict[int, Tensor]] = {}
        self._starts: Final[list[tuple[int, int]]] = []
        self._widest = 0

    def add(self, number: int, tensor: Tensor) -> None:
        view = _view(local_part(tensor))
        start, stop = view.extent
        self.numbers[view] = number
        self.views[number] = view
        self.tensors[number] = tensor
        insort(self._starts, (start, number))
        self._widest = max(self._widest, stop - start)

    def near(self, view: View) -> list[int]:
        """Those that can overlap a view, the first added first."""
        start, stop = view.extent
        begin = bisect_left(self._starts, (start - self._widest, -1))
        end = bisect_left(self._starts, (stop, -1))
        return sorted(number for _, number in self._starts[begin:end])


def local_part(tensor: Tensor) -> Tensor:
    """The tensor that has the memory: a DTensor's local part, else itself."""
    if tensor.storage is None and tensor.extra is not None:
        local = tensor.attribute("_local_tensor")
        if isinstance(local, Tensor):
            return local
    return tensor


def _view(tensor: Tensor) -> View:
    storage = tensor.storage
    start = storage.start if storage is not None else 0
    return View(tensor.shape, tensor.strides or (), start + tensor.offset, tensor.dtype)
