"""Read the directory of a zip archive: what is where, and that it does not lie.

1. Only the directory is read, and of the entries those that are asked for.
2. Refused as unsafe: names that leave the archive, a name twice, entries that share bytes, and
   entries that grow beyond all measure when unpacked.
3. An archive that is cut off, or whose directory does not fit its bytes, is damaged.

The format is that of PKWARE's APPNOTE 6.3, with its 64-bit records.
"""

from __future__ import annotations

import struct
import zlib
from mmap import mmap
from typing import Final, NamedTuple

from hpx._text import printable
from hpx.errors import InputError, TooLargeError, UnsafeInputError

__all__ = ["Archive", "Entry", "open_archive"]

_END: Final = struct.Struct("<4s4H2LH")
_END64_PLACE: Final = struct.Struct("<4sLQL")
_END64: Final = struct.Struct("<4sQ2H2L4Q")
# Mark, flags, method, sizes packed and unpacked, lengths of name, extra and note, place.
_LISTED: Final = struct.Struct("<4s4x2H8x2L3H8xL")
_HEADER: Final = struct.Struct("<4s5H3L2H")
_STORED, _DEFLATED = 0, 8
_FULL: Final = 0xFFFFFFFF
_MOST_ENTRIES: Final = 5_000_000
_HIGHEST_RATIO: Final = 200
_LARGEST_READ: Final = 1 << 30
_ODD: Final = ("..", "\\", "\0", ":", "\n/")
"""What no name of an entry needs; a look at them takes less time than splitting every name."""


class Entry(NamedTuple):
    """One file in the archive, sizes in bytes."""

    size: int
    packed: int
    method: int
    header: int
    """Where its own header begins."""


class Archive(NamedTuple):
    """The directory of an archive, and its bytes."""

    data: mmap
    entries: dict[str, Entry]
    shown: str
    """How errors name the file."""

    def read(self, name: str) -> bytes:
        """The content of an entry.

        Raises:
            InputError: It is cut off or damaged, or packed in a way that torch does not use.
            TooLargeError: It is larger than any checkpoint's.
        """
        entry = self.entries[name]
        if entry.size > _LARGEST_READ:
            raise TooLargeError(
                f"{name} of {self.shown} is too large to be read",
                why=f"{entry.size:,} bytes, and {_LARGEST_READ:,} is the limit",
            )
        start = _content_start(self, entry)
        packed = self.data[start : start + entry.packed]
        if len(packed) != entry.packed:
            raise damaged(self.shown, f"{name} is cut off")
        if entry.method == _STORED:
            return packed
        if entry.method != _DEFLATED:
            raise damaged(self.shown, f"{name} is packed by method {entry.method}")
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            content = unpacker.decompress(packed, entry.size + 1)
        except zlib.error as error:
            raise damaged(self.shown, f"{name} does not unpack: {error}") from None
        if len(content) != entry.size:
            raise damaged(self.shown, f"{name} unpacks to another size than its directory says")
        return content


def damaged(shown: str, why: str) -> InputError:
    """The error of a file whose bytes do not fit together."""
    return InputError(f"{shown} cannot be read", why=f"it is cut off or damaged ({why})")


def open_archive(data: mmap, shown: str) -> Archive:
    """The archive in these bytes.

    Args:
        data: The whole file, mapped.
        shown: How errors name it.

    Raises:
        InputError: It is cut off or damaged.
        UnsafeInputError: It is made to do harm where it is unpacked.
        TooLargeError: It has more entries than any checkpoint.
    """
    count, size, start = _directory_place(data, shown)
    if count > _MOST_ENTRIES:
        raise TooLargeError(
            f"{shown} has too many parts", why=f"{count:,}, and {_MOST_ENTRIES:,} is the limit"
        )
    entries = _entries(data[start : start + size], count, shown)
    _check_places(entries, start, shown)
    return Archive(data, entries, shown)


def _entries(directory: bytes, count: int, shown: str) -> dict[str, Entry]:
    """What the directory lists, each name once."""
    # One loop for all: a checkpoint has an entry for each of its 100,000 tensors.
    entries: dict[str, Entry] = {}
    record_at, record_size, make = _LISTED.unpack_from, _LISTED.size, tuple.__new__
    position, end = 0, len(directory)
    try:
        for _ in range(count):
            (mark, flags, method, packed, size, named, extra, noted, header) = record_at(
                directory, position
            )
            start = position + record_size
            name = str(directory[start : start + named], "utf-8")
            position = start + named + extra + noted
            if mark != b"PK\1\2" or position > end:
                raise damaged(shown, "its directory does not fit its bytes")
            if size == _FULL or packed == _FULL or header == _FULL:
                more = directory[start + named : start + named + extra]
                size, packed, header = _wide(more, size, packed, header)
            if method or flags & 1 or packed != size:
                _check_packing(name, flags, method, packed, size, shown)
            if name in entries:
                raise _refused(shown, f"it has the entry {printable(name)!r} twice")
            entries[name] = make(Entry, (size, packed, method, header))
    except (struct.error, UnicodeDecodeError):
        raise damaged(shown, "its directory does not fit its bytes") from None
    # One look at all names at once tells whether any needs a closer one.
    everything = "\n".join(entries)
    if everything.startswith("/") or any(odd in everything for odd in _ODD):
        for name in entries:
            _check_name(name, shown)
    return entries


def _directory_place(data: mmap, shown: str) -> tuple[int, int, int]:
    """Number of entries, size and start of the directory."""
    at = data.rfind(b"PK\5\6", max(0, len(data) - _END.size - 0xFFFF))
    if at < 0 or at + _END.size > len(data):
        raise damaged(shown, "it has no directory at its end")
    _, _, _, _, count, size, start, _ = _END.unpack_from(data, at)
    place = at - _END64_PLACE.size
    if place >= 0 and data[place : place + 4] == b"PK\6\7":
        _, _, at, _ = _END64_PLACE.unpack_from(data, place)
        if at + _END64.size > len(data) or data[at : at + 4] != b"PK\6\6":
            raise damaged(shown, "its directory is not where it says")
        *_, count, size, start = _END64.unpack_from(data, at)
    if start + size > at:
        raise damaged(shown, "its directory is not where it says")
    return count, size, start


def _check_packing(name: str, flags: int, method: int, packed: int, size: int, shown: str) -> None:
    if flags & 1:
        raise InputError(f"{shown} is encrypted", fix="save it without a password")
    if packed * _HIGHEST_RATIO < size - _HIGHEST_RATIO or (method == _STORED and packed != size):
        raise _refused(
            shown, f"{printable(name)!r} says that {packed:,} bytes unpack to {size:,}: a zip bomb"
        )


def _wide(more: bytes, size: int, packed: int, header: int) -> tuple[int, int, int]:
    """The numbers that do not fit into 32 bits, from the extra field with id 1."""
    position = 0
    while position + 4 <= len(more):
        kind, length = struct.unpack_from("<2H", more, position)
        position += 4
        if kind == 1:
            numbers = iter(struct.unpack_from(f"<{min(length, 24) // 8}Q", more, position))
            wide = [next(numbers, n) if n == _FULL else n for n in (size, packed, header)]
            return wide[0], wide[1], wide[2]
        position += length
    return size, packed, header


def _check_name(name: str, shown: str) -> None:
    parts = name.replace("\\", "/").split("/")
    if (
        name.startswith("/")
        or ".." in parts
        or "\0" in name
        or "\\" in name
        or parts[0][1:2] == ":"
    ):
        raise _refused(shown, f"its entry {printable(name)!r} leaves the archive")


def _check_places(entries: dict[str, Entry], end: int, shown: str) -> None:
    """Refuse entries that lie over each other or over the directory."""
    free = 0
    places = sorted([(header, packed, name) for name, (_, packed, _, header) in entries.items()])
    own = _HEADER.size
    for header, packed, name in places:
        if header < free:
            raise _refused(shown, f"{printable(name)!r} lies over the entry before it")
        free = header + own + packed
    if free > end:
        raise damaged(shown, f"{printable(places[-1][2])!r} reaches into the directory")


def _content_start(archive: Archive, entry: Entry) -> int:
    try:
        mark, *_, named, extra = _HEADER.unpack_from(archive.data, entry.header)
    except struct.error:
        mark, named, extra = b"", 0, 0
    if mark != b"PK\3\4":
        raise damaged(archive.shown, "an entry is not where the directory says")
    return entry.header + _HEADER.size + int(named) + int(extra)


def _refused(shown: str, why: str) -> UnsafeInputError:
    return UnsafeInputError(f"refused {shown}", why=why, fix="get the file from where it was made")
