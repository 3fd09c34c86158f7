"""Read the ``.metadata`` of a torch distributed checkpoint: one pickle, read inertly.

Its classes are those of ``torch.distributed.checkpoint.metadata``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from hpx.errors import InputError
from hpx.inert.checkpoint import mapped, run_pickle
from hpx.inert.contents import mapping_of
from hpx.inert.dtypes import DTYPES
from hpx.inert.errors import DamagedError
from hpx.inert.machine import Machine
from hpx.inert.names import sort_names
from hpx.inert.rebuild import call_of
from hpx.inert.values import Name, Object

__all__ = ["Chunk", "Metadata", "SavedTensor", "read_metadata"]

_MODULE: Final = "torch.distributed.checkpoint.metadata"
_LARGEST: Final = 1 << 63
_MOST_DIMS: Final = 64


class Chunk(NamedTuple):
    """A piece that a tensor is saved in, in elements."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


class SavedTensor(NamedTuple):
    """A tensor of a checkpoint."""

    shape: tuple[int, ...]
    dtype: str
    chunks: list[Chunk]


class Metadata(NamedTuple):
    """What a checkpoint says of itself."""

    tensors: dict[str, SavedTensor]
    others: list[str]
    """Names of what is no tensor."""
    paths: dict[str, tuple[str, ...]]
    """The keys, outermost first, that a name was made of."""
    files: list[str]
    foreign: list[str]


def read_metadata(path: Path, shown: str) -> Metadata:
    """The metadata in a file.

    Args:
        path: The ``.metadata`` file.
        shown: How errors name it.

    Raises:
        InputError: It is cut off or damaged, or no such file.
        UnsafeInputError: It is made to exhaust memory.
    """
    with mapped(path, shown) as data:
        machine = Machine(data, 0, call_of, _no_storage)
        root = run_pickle(machine, shown)
    if not isinstance(root, Object) or root.text != f"{_MODULE}.Metadata":
        raise InputError(f"{shown} is no metadata of a torch distributed checkpoint")
    entries = mapping_of(root.field("state_dict_metadata"))
    if entries is None:
        raise InputError(f"{shown} lists no tensors")
    tensors: dict[str, SavedTensor] = {}
    others: list[str] = []
    for name, entry in entries.items():
        if type(name) is not str:
            raise InputError(f"{shown} holds an entry under {name!r}", why="names are text")
        if isinstance(entry, Object) and entry.text == f"{_MODULE}.TensorStorageMetadata":
            tensors[name] = _tensor(name, entry, shown)
        else:
            others.append(name)
    return Metadata(
        tensors,
        others,
        dict(_paths(mapping_of(root.field("planner_data")) or {})),
        list(dict.fromkeys(_files(mapping_of(root.field("storage_data")) or {}))),
        sort_names(machine.names.values(), model=False).foreign,
    )


def _no_storage(identity: object) -> object:
    raise DamagedError(f"it refers to a {type(identity).__name__} outside of it")


def _tensor(name: str, entry: Object, shown: str) -> SavedTensor:
    shape = _sizes(entry.field("size"))
    properties, saved = entry.field("properties"), entry.field("chunks")
    dtype = _dtype(properties) if isinstance(properties, Object) else None
    if shape is None or dtype is None or type(saved) is not list:
        raise InputError(f"{shown}: '{name}' has no shape, dtype or list of pieces")
    return SavedTensor(shape, dtype, [_chunk(name, piece, shape, shown) for piece in saved])


def _chunk(name: str, piece: object, shape: tuple[int, ...], shown: str) -> Chunk:
    offsets = _sizes(piece.field("offsets")) if isinstance(piece, Object) else None
    sizes = _sizes(piece.field("sizes")) if isinstance(piece, Object) else None
    if offsets is None or sizes is None or not len(offsets) == len(sizes) == len(shape):
        raise InputError(f"{shown}: '{name}' has a piece without place or size")
    for start, size, whole in zip(offsets, sizes, shape, strict=True):
        if start + size > whole:
            raise InputError(
                f"{shown}: a piece of '{name}' {list(shape)} reaches out of it",
                why=f"offsets {list(offsets)}, sizes {list(sizes)}",
            )
    return Chunk(offsets, sizes)


def _dtype(properties: Object) -> str | None:
    """The dtype, which stands first where the properties are saved as a tuple."""
    state = properties.state
    value = state[0] if type(state) is tuple and state else properties.field("dtype")
    text = value.text.removeprefix("torch.") if isinstance(value, Name) else ""
    return text if text in DTYPES else None


def _sizes(value: object) -> tuple[int, ...] | None:
    if type(value) is not tuple or len(value) > _MOST_DIMS:
        return None
    return value if all(type(n) is int and 0 <= n < _LARGEST for n in value) else None


def _paths(planned: Mapping[object, object]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, path in planned.items():
        if type(name) is str and type(path) is tuple and 0 < len(path) <= _MOST_DIMS:
            yield name, tuple(str(part) if type(part) in (str, int) else "?" for part in path)


def _files(stored: Mapping[object, object]) -> Iterator[str]:
    for place in stored.values():
        file = place.field("relative_path") if isinstance(place, Object) else None
        if type(file) is str:
            yield file
