"""Which tensors of a file are one piece of memory, as `hpx.graph.storage` does for real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hpx.errors import InputError
from hpx.graph.claims import Claims
from hpx.graph.overlap import View
from hpx.inert.dtypes import ITEM_SIZES
from hpx.inert.values import Tensor

__all__ = ["Memory", "local_part"]


class Memory:
    """Tensors by the storage that they stand on."""

    def __init__(self) -> None:
        self._claims: Final[Claims[Tensor]] = Claims(_view)
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

        See `Claims.claim`.

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
        return self._claims.claim(storage.key, number, tensor, place, name_of)

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


def local_part(tensor: Tensor) -> Tensor:
    """The tensor that has the memory: a DTensor's local part, else itself."""
    if tensor.storage is None and tensor.extra is not None:
        local = tensor.attribute("_local_tensor")
        if isinstance(local, Tensor):
            return local
    return tensor


def _view(tensor: Tensor) -> View:
    local = local_part(tensor)
    start = local.storage.start if local.storage is not None else 0
    return View(local.shape, local.strides or (), start + local.offset, local.dtype)
