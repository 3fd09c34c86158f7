"""Which tensors of a module are one piece of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch

from hpx.graph.claims import Claims
from hpx.graph.overlap import View

__all__ = ["Storages"]

_PLAIN: Final = (torch.nn.Parameter, torch.Tensor)


class Storages:
    """Tensors by the memory they stand on; keeps the tensors, so no storage is ever used again."""

    def __init__(self) -> None:
        self._claims: Final[Claims[torch.Tensor]] = Claims(_view)

    def all_new(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether plain tensors stand each on memory of its own, none of it met before."""
        return self._claims.all_new([_storage(tensor) for tensor in tensors])

    def add(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> None:
        """Remember plain tensors that `all_new` has looked at."""
        self._claims.add(map(_storage, tensors), tensors, numbers)

    def claim(
        self,
        number: int,
        tensor: torch.Tensor,
        place: tuple[int, str],
        name_of: Callable[..., str],
    ) -> int | None:
        """Find the tensor that is this very view of this very memory, or remember this one.

        See `Claims.claim`.
        """
        local = _local(tensor)
        if local.layout is not torch.strided:
            return None  # a sparse tensor has several storages, and is never a tie
        return self._claims.claim(_storage(local), number, tensor, place, name_of)


def _storage(tensor: torch.Tensor) -> int:
    # data_ptr() is 0 for every meta tensor; the storage object tells them apart.
    key: int = tensor.untyped_storage()._cdata
    return key


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that holds the memory: a DTensor's local part, else itself."""
    if tensor.__class__ in _PLAIN:
        return tensor
    local = getattr(tensor, "_local_tensor", None)
    return local if isinstance(local, torch.Tensor) else tensor


def _view(tensor: torch.Tensor) -> View:
    local = _local(tensor)
    dtype = str(local.dtype).removeprefix("torch.")
    return View(tuple(local.shape), local.stride(), int(local.storage_offset()), dtype)
