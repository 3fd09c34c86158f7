"""Read the header of a ``.safetensors`` file, and refuse one that lies.

1. Only the header is read, and none above 100 MB: that is the format's own limit.
2. Every tensor's bytes have to be as many as its shape and dtype need, to begin where the one
   before ends, and to end with the file.
3. No name may come twice.

The format is that of https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import json
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Final, NamedTuple

from hpx._text import printable
from hpx.errors import HpxError, InputError, TooLargeError

__all__ = ["Header", "HeaderTensor", "read_header"]

_LENGTH_BYTES: Final = 8
_LARGEST_HEADER: Final = 100_000_000
_MOST_DIMS: Final = 64
_DTYPES: Final = {
    "BOOL": ("bool", 8),
    "U8": ("uint8", 8),
    "U16": ("uint16", 16),
    "U32": ("uint32", 32),
    "U64": ("uint64", 64),
    "I8": ("int8", 8),
    "I16": ("int16", 16),
    "I32": ("int32", 32),
    "I64": ("int64", 64),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "F32": ("float32", 32),
    "F64": ("float64", 64),
    "C64": ("complex64", 64),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F6_E2M3": ("f6_e2m3", 6),
    "F6_E3M2": ("f6_e3m2", 6),
    "F4": ("float4_e2m1fn_x2", 4),
}
"""torch's name and bits of an element, by the format's name."""


class HeaderTensor(NamedTuple):
    """One tensor of a file."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Header(NamedTuple):
    """What a file says of itself."""

    tensors: list[HeaderTensor]
    """By name."""
    metadata: dict[str, str]


def read_header(path: Path, shown: str) -> Header:
    """The header of a file; what follows it is not read.

    Args:
        path: The file.
        shown: How errors name it.

    Raises:
        InputError: It is no such file, is cut off, or does not fit its own contents.
        TooLargeError: The header is larger than the format allows.
    """
    with path.open("rb") as file:
        end = file.seek(0, 2)
        file.seek(0)
        if end == 0:
            raise InputError(f"{shown} is empty")
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if end < _LENGTH_BYTES or length > end - _LENGTH_BYTES:
            why = f"its header would end at byte {length + _LENGTH_BYTES:,} of {end:,}"
            raise _unreadable(shown, why)
        if length > _LARGEST_HEADER:
            raise TooLargeError(
                f"the header of {shown} is too large",
                why=f"{length:,} bytes, and the format allows {_LARGEST_HEADER:,}",
            )
        text = file.read(length)
    entries = _entries(text, shown)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _unreadable(shown, "its metadata is no mapping from names to text")
    places: list[tuple[int, int, str]] = []
    tensors: list[HeaderTensor] = []
    for name in sorted(entries):
        tensor, start, stop = _tensor(name, entries[name], shown)
        tensors.append(tensor)
        places.append((start, stop, name))
    _check_places(places, end - _LENGTH_BYTES - length, shown)
    return Header(tensors, metadata)


def _entries(text: bytes, shown: str) -> dict[str, object]:
    try:
        entries = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except HpxError as error:
        raise _unreadable(shown, str(error)) from None
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise _unreadable(shown, f"invalid header: {error}") from None
    if not isinstance(entries, dict):
        raise _unreadable(shown, "its header is no JSON object")
    return entries


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = sorted(name for name, _ in pairs)
        twice = next(a for a, b in pairwise(names) if a == b)
        raise InputError(f"it has '{printable(twice)}' twice")
    return found


def _tensor(name: str, entry: object, shown: str) -> tuple[HeaderTensor, int, int]:
    """A tensor, and its first byte and the one past its last behind the header."""
    if not isinstance(entry, dict):
        raise _unreadable(shown, f"'{printable(name)}' is described by no mapping")
    shape, place = _numbers(entry.get("shape")), _numbers(entry.get("data_offsets"))
    known = _DTYPES.get(str(entry.get("dtype")))
    if known is None:
        what = f"dtype {printable(str(entry.get('dtype')))[:40]!r}"
        raise _unreadable(shown, f"'{printable(name)}' has {what}, which the format lacks")
    if shape is None or place is None or len(place) != 2 or len(shape) > _MOST_DIMS:
        raise _unreadable(shown, f"'{printable(name)}' has no shape or place that are numbers")
    dtype, bits = known
    start, stop = place
    if prod(shape) * bits != (stop - start) * 8:
        raise _unreadable(
            shown,
            f"'{printable(name)}' {list(shape)} {dtype} needs {prod(shape) * bits // 8:,} bytes,"
            f" and its place has {stop - start:,}",
        )
    if dtype.endswith("_x2"):  # the format counts numbers, torch the bytes that hold two of them
        if not shape or shape[-1] % 2:
            raise _unreadable(shown, f"'{printable(name)}' {list(shape)} ends in half a byte")
        shape = (*shape[:-1], shape[-1] // 2)
    return HeaderTensor(name, shape, dtype), start, stop


def _numbers(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    ok = all(type(number) is int and 0 <= number < 1 << 63 for number in value)
    return tuple(value) if ok else None


def _check_places(places: list[tuple[int, int, str]], size: int, shown: str) -> None:
    free = 0
    for start, stop, name in sorted(places):
        if start != free:
            how = "lies over another tensor" if start < free else "leaves a gap before it"
            raise _unreadable(shown, f"'{printable(name)}' at byte {start:,} {how}")
        free = stop
    if free != size:
        raise _unreadable(
            shown, f"its tensors end at byte {free:,} behind the header, the file at {size:,}"
        )


def _unreadable(shown: str, why: str) -> InputError:
    return InputError(f"{shown} is no readable safetensors file", why=why)
