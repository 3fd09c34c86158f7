"""Take what torch writes for nearly every tensor in one step instead of thirty opcodes.

The result is that of the opcodes; what differs in anything from what torch writes is left to them.
Of the seven values that they would remember only the tensor is kept: no stream of torch's refers to
another. One that does has to be read again without the shortcut, which the machine sees to.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from mmap import mmap
from typing import Final

from hpx.inert.values import Name, Storage, Tensor

__all__ = ["Shortcut"]

_GET: Final = rb"(h.|j....)"
_PUT: Final = rb"r(....)"
_INT: Final = rb"(?:K.|M..|J....|\x8a\x05.....)"
_SIZES: Final = b"(" + _INT + rb"\x85|" + _INT + _INT + rb"\x86|" + _INT * 3 + rb"\x87)"
# A storage's persistent id: kind, class, key, device, elements. Then offset, shape, strides,
# requires_grad, hooks that are an empty mapping; and the call.
_TENSOR: Final = re.compile(
    rb"\(" + _GET + _GET + rb"X(....)([0-9]{1,9})" + _PUT + _GET + rb"(" + _INT + rb")t"
    + _PUT + rb"Q(" + _INT + rb")" + _SIZES + _PUT + _SIZES + _PUT + rb"([\x88\x89])"
    + _GET + rb"\)R" + _PUT + rb"t" + _PUT + rb"R" + _PUT,
    re.DOTALL,
)  # fmt: skip
_U32: Final = struct.Struct("<I").unpack
_PLACES: Final = struct.Struct("<7I").unpack
_PUTS: Final = 7
_TRUE: Final = b"\x88"
_REBUILD: Final = "torch._utils._rebuild_tensor_v2"
_HOOKS: Final = "collections.OrderedDict"


class Shortcut:
    """The shortcut through one stream.

    Args:
        data: All bytes.
        memo: The memo of the machine.
        persistent: What a persistent id stands for.

    Attributes:
        used: Some values are not in the memo.
    """

    def __init__(
        self,
        data: bytes | mmap,
        memo: dict[int, object],
        persistent: Callable[[object], object],
    ) -> None:
        self._data: Final = data
        self._memo: Final = memo
        self._persistent: Final = persistent
        self._match: Final = _TENSOR.match
        self._limit: Final = len(data)
        self.used = False
        # Nearly all of these come again: the same bytes mean the same numbers.
        self._numbers: Final = _Numbers()
        self._sizes: Final = _Sizes(self._numbers)

    def tensor(self, function: object, position: int) -> tuple[Tensor, int] | None:
        """The tensor that a call makes, and where the stream goes on; None where it is unusual.

        Args:
            function: What is called.
            position: Behind the mark of its arguments.
        """
        found = self._match(self._data, position)
        if found is None or type(function) is not Name or function.text != _REBUILD:
            return None
        (
            kind, cls, length, key, put_key, device, count, put_identity, offset,
            shape, put_shape, strides, put_strides, grad, hooks, put_hooks, put_args, put_tensor,
        ) = found.groups()  # fmt: skip
        numbers, memo = self._numbers, self._memo
        sizes, steps, start = self._sizes[shape], self._sizes[strides], numbers[offset]
        if sizes is None or steps is None or len(sizes) != len(steps) or start < 0:
            return None
        mapping = memo.get(numbers[hooks])
        if type(mapping) is not Name or mapping.text != _HOOKS:
            return None
        places = _PLACES(
            put_key + put_identity + put_shape + put_strides + put_hooks + put_args + put_tensor
        )
        new = places[0] <= self._limit and memo.keys().isdisjoint(places)
        if not new or places != (*range(places[0], places[0] + _PUTS),):
            return None
        if _U32(length)[0] != len(key):
            return None
        text, elements = str(key, "ascii"), numbers[count]
        kind_text, cls_name, place = (
            memo.get(numbers[kind]), memo.get(numbers[cls]), memo.get(numbers[device]),
        )  # fmt: skip
        if kind_text is None or cls_name is None or place is None:
            return None
        identity = (kind_text, cls_name, text, place, elements)
        storage = self._persistent(identity)
        if type(storage) is not Storage:
            return None
        trained = grad == _TRUE
        tensor = Tensor(storage, start, sizes, steps, trained, storage.dtype)
        memo[places[-1]] = tensor
        self.used = True
        return tensor, found.end()


class _Numbers(dict[bytes, int]):
    """The numbers of opcodes with their bytes; those of K, M, h and j have no sign."""

    def __missing__(self, raw: bytes) -> int:
        skip = 2 if raw[:1] == b"\x8a" else 1
        signed = raw[:1] in (b"\x8a", b"J")
        number = self[raw] = int.from_bytes(raw[skip:], "little", signed=signed)
        return number


class _Sizes(dict[bytes, "tuple[int, ...] | None"]):
    """The sizes of shapes or strides with their bytes; None where one is negative."""

    def __init__(self, numbers: _Numbers) -> None:
        super().__init__()
        self._numbers: Final = numbers

    def __missing__(self, raw: bytes) -> tuple[int, ...] | None:
        sizes: list[int] = []
        position = 0
        while position < len(raw) - 1:
            width = _WIDTHS[raw[position : position + 1]]
            sizes.append(self._numbers[raw[position : position + width]])
            position += width
        found = self[raw] = None if min(sizes) < 0 else tuple(sizes)
        return found


_WIDTHS: Final = {b"K": 2, b"M": 3, b"J": 5, b"\x8a": 7}
"""Bytes of an opcode with its number."""
