"""What is in a ``torch.save`` file, as inert values: of the zip format and of the one before it.

1. The format is told by the first bytes, never by the name of the file.
2. Every storage that the pickle describes has to be in the file, in the size that it is said to
   have.
3. TorchScript programs and plain pickles are refused: hpx would have nothing to show of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final, NamedTuple

from hpx.errors import HpxError, InputError, TooLargeError, UnsafeInputError
from hpx.inert.archive import Archive, damaged, open_archive
from hpx.inert.errors import AbsurdError, DamagedError
from hpx.inert.machine import Machine
from hpx.inert.rebuild import call_of, storage_from
from hpx.inert.values import Name, Storage
from hpx.inert.weigh import check_weight

__all__ = ["Content", "mapped", "read_content", "run_pickle"]

_LARGEST_PICKLE: Final = 512 << 20
# The old format begins with pickles of these two numbers.
_MAGIC: Final = 0x1950A86A20F9469CFC6C
_OLD_VERSION: Final = 1001
_SIZE_BYTES: Final = 8
_AS_STATE_DICT: Final = "save model.state_dict() instead, or give package.module:factory"


class Content(NamedTuple):
    """What a file holds."""

    root: object
    names: list[Name]
    """Every name that its pickle refers to, in order."""


def read_content(path: Path, shown: str) -> Content:
    """The values in a file; nothing of it is run.

    Args:
        path: The file.
        shown: How errors name it.

    Raises:
        InputError: It is no readable checkpoint.
        UnsafeInputError: It is made to do harm, or is a program.
        TooLargeError: It is over a limit that no checkpoint reaches.
    """
    with mapped(path, shown) as data:
        if data[:2] == b"PK":
            return _of_archive(open_archive(data, shown), shown)
        if data[:1] == b"\x80":
            return _of_old_format(data, shown)
        if data[257:262] == b"ustar":
            raise InputError(
                f"{shown} is in the oldest format of torch.save, a tar archive",
                fix="torch.load it with weights_only=True and torch.save it again",
            )
    raise InputError(f"{shown} is no torch checkpoint", why="it does not begin like one")


@contextmanager
def mapped(path: Path, shown: str) -> Iterator[mmap]:
    """The bytes of a file, mapped and not read.

    Raises:
        InputError: It is empty.
    """
    with path.open("rb") as file:
        if not file.seek(0, 2):
            raise InputError(f"{shown} is empty")
        with mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            yield data


def run_pickle(machine: Machine, shown: str) -> object:
    """The value of the stream, with errors that name the file.

    Raises:
        InputError: It is cut off or damaged.
        UnsafeInputError: It is made to exhaust memory or time.
    """
    try:
        value = machine.run()
        check_weight(value)
    except DamagedError as error:
        raise damaged(shown, str(error)) from None
    except AbsurdError as error:
        raise UnsafeInputError(
            f"refused {shown}", why=str(error), fix="get the file from where it was made"
        ) from None
    return value


class _Storages:
    """Collects the storages that a stream describes."""

    def __init__(self) -> None:
        self.found: Final[dict[str, Storage]] = {}

    def persistent(self, identity: object) -> object:
        if type(identity) is tuple and len(identity) == 4 and identity[0] == "module":
            return identity[1]  # the old format saves the source text of classes beside them
        storage = storage_from(identity)
        known = self.found.setdefault(storage.key, storage)
        if known is not storage and known.bytes != storage.bytes:
            raise DamagedError(f"storage {storage.key!r} has two sizes")
        return storage


def _of_archive(archive: Archive, shown: str) -> Content:
    names = [name for name in archive.entries if name.endswith("/data.pkl")]
    if any("/code/" in name or name.endswith("/constants.pkl") for name in archive.entries):
        raise UnsafeInputError(
            f"refused {shown}",
            why="it is a TorchScript program, and reading it could run code",
            fix=_AS_STATE_DICT,
        )
    if len(names) != 1:
        raise damaged(shown, "it has no data.pkl" if not names else "it has several data.pkl")
    size = archive.entries[names[0]].size
    if size > _LARGEST_PICKLE:
        raise _too_large(names[0], size, shown)
    storages = _Storages()
    machine = Machine(archive.read(names[0]), 0, call_of, storages.persistent)
    root = run_pickle(machine, shown)
    folder = names[0].removesuffix("data.pkl")
    entries, data = archive.entries, f"{folder}data/"
    for key, storage in storages.found.items():
        entry = entries.get(data + key)
        if entry is None:
            if storage.device != "meta":
                raise damaged(shown, f"storage {key!r} is not in it")
        elif entry[0] != storage.bytes:
            raise _lying(shown, key, storage.bytes, entry.size)
    return Content(root, list(machine.names.values()))


def _of_old_format(data: mmap, shown: str) -> Content:
    start: int = 0

    def read(storages: _Storages) -> tuple[object, list[Name]]:
        nonlocal start
        machine = Machine(data, start, call_of, storages.persistent)
        value = run_pickle(machine, shown)
        start = machine.position
        return value, list(machine.names.values())

    try:
        magic, _ = read(_Storages())
    except HpxError:
        magic = None
    if magic != _MAGIC or type(magic) is not int:
        raise InputError(
            f"{shown} is a pickle, and no file of torch.save",
            fix="save the state dict with torch.save, or as .safetensors",
        )
    version, _ = read(_Storages())
    if version != _OLD_VERSION:
        raise damaged(shown, "its version is none of torch's")
    read(_Storages())  # what machine it is from
    storages = _Storages()
    root, names = read(storages)
    keys, _ = read(_Storages())
    if type(keys) is not list:
        raise damaged(shown, "it has no list of storages")
    _check_old_storages(data, start, keys, storages.found, shown)
    return Content(root, names)


def _check_old_storages(
    data: mmap, start: int, keys: list[object], found: dict[str, Storage], shown: str
) -> None:
    """Each storage is its number of elements, and the elements, one after the other."""
    left = dict(found)
    for key in keys:
        storage = left.pop(key, None) if type(key) is str else None
        if storage is None:
            raise damaged(shown, "its list of storages is not that of its tensors")
        count = int.from_bytes(data[start : start + _SIZE_BYTES], "little", signed=True)
        if count != storage.elements:
            raise _lying(shown, storage.key, storage.elements, count, "elements")
        start += _SIZE_BYTES + storage.bytes
        if start > len(data):
            raise damaged(shown, f"storage {key!r} is cut off")
    if left:
        raise damaged(shown, f"storage {next(iter(left))!r} is not in it")


def _lying(shown: str, key: str, expected: int, found: int, unit: str = "bytes") -> InputError:
    return damaged(shown, f"storage {key!r} is said to have {expected:,} {unit}, and has {found:,}")


def _too_large(name: str, size: int, shown: str) -> TooLargeError:
    return TooLargeError(
        f"{name} of {shown} is too large to be read",
        why=f"{size:,} bytes, and {_LARGEST_PICKLE:,} is the limit",
    )
