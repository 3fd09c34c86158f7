"""Which tensors are one piece of memory: equal views are ties, partial overlaps are refused."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, Protocol, TypeVar

from hpx.errors import TooLargeError
from hpx.graph.overlap import View, overlap_error, overlaps

__all__ = ["Claims"]

_MOST_COMPARED: Final = 1_000_000


class _Shaped(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


T = TypeVar("T", bound=_Shaped)


class Claims(Generic[T]):
    """Tensors, real or described, by the storage that they stand on; it keeps them.

    Args:
        view_of: How a tensor lies in its storage.
    """

    def __init__(self, view_of: Callable[[T], View]) -> None:
        self._view_of: Final = view_of
        # Nearly every storage has one tensor: for 100,000 of them nothing more is made.
        self._first: dict[Hashable, tuple[int, T]] = {}
        self._shared: dict[Hashable, _Shared] = {}
        self._compared = 0

    def all_new(self, storages: list[int]) -> bool:
        """Whether these storages differ, and none of them was met before."""
        return len(set(storages)) == len(storages) and self._first.keys().isdisjoint(storages)

    def add(self, storages: Iterable[int], tensors: Iterable[T], numbers: Iterable[int]) -> None:
        """Remember tensors on storages that `all_new` has looked at."""
        self._first.update(zip(storages, zip(numbers, tensors, strict=True), strict=True))

    def claim(
        self,
        storage: Hashable,
        number: int,
        tensor: T,
        place: tuple[int, str],
        name_of: Callable[..., str],
    ) -> int | None:
        """Find the tensor that is this very view of this very memory, or remember this one.

        Args:
            storage: What the tensor stands on.
            number: What the tensor is remembered under if it is the first.
            tensor: What to look for.
            place: Owner and name of the tensor; for the error, ``name_of`` makes a name of it.
            name_of: Gives the name of a number or a place, for the error.

        Returns:
            The number of the earlier tensor; None where there is none.

        Raises:
            InputError: The tensor overlaps a part of an earlier one.
            TooLargeError: So many tensors lie in between each other that comparing takes too long.
        """
        first = self._first.get(storage)
        if first is None:
            self._first[storage] = (number, tensor)
            return None
        shared = self._shared.get(storage)
        if shared is None:
            shared = self._shared[storage] = _Shared()
            shared.add(first[0], self._view_of(first[1]), first[1].shape)
        view = self._view_of(tensor)
        same = shared.numbers.get(view)
        if same is not None:
            return same
        near = shared.near(view)
        self._compared += len(near)
        if self._compared > _MOST_COMPARED:
            raise TooLargeError(
                f"too many tensors lie in between each other, '{name_of(*place)}' among them",
                why=f"more than {_MOST_COMPARED:,} pairs on shared storages",
                fix="give each tensor its own memory (clone it)",
            )
        for earlier in near:
            other, shape = shared.views[earlier]
            if overlaps(view, other):
                named = (name_of(*place), name_of(earlier))
                raise overlap_error(view, other, named, (tuple(tensor.shape), tuple(shape)))
        shared.add(number, view, tensor.shape)
        return None


class _Shared:
    """The different views of one storage."""

    def __init__(self) -> None:
        self.numbers: Final[dict[View, int]] = {}
        self.views: Final[dict[int, tuple[View, tuple[int, ...]]]] = {}
        """Each with the shape of the whole tensor, of which it may be one rank's piece."""
        self._starts: Final[list[tuple[int, int]]] = []
        self._widest = 0

    def add(self, number: int, view: View, shape: tuple[int, ...]) -> None:
        start, stop = view.extent
        self.numbers[view] = number
        self.views[number] = (view, shape)
        insort(self._starts, (start, number))
        self._widest = max(self._widest, stop - start)

    def near(self, view: View) -> list[int]:
        """Those that can overlap a view, the first added first."""
        start, stop = view.extent
        begin = bisect_left(self._starts, (start - self._widest, -1))
        end = bisect_left(self._starts, (stop, -1))
        return sorted(number for _, number in self._starts[begin:end])
