"""Read names and shapes from a ``torch.save`` file without running what is in it.

1. The file is read inertly (`hpx.inert`): torch is not needed, and no code runs.
2. A checkpoint that holds one state dict among other things gives that one; one that holds no
   state dict but a whole module gives the module, where that is asked for.
3. One storage under two names is one tensor with two names.
4. What is no tensor is left out, and said so.
5. Names that tensors do not need are refused or reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from hpx._text import printable
from hpx.errors import InputError, UnsafeInputError
from hpx.graph.from_names import NamedTensor
from hpx.graph.reading import FOR_RUNS, Reading
from hpx.inert.checkpoint import Content, read_content
from hpx.inert.contents import is_module, mapping_of
from hpx.inert.dtensor import Piece, piece_of, piece_text, placed_as
from hpx.inert.memory import Memory
from hpx.inert.names import Names, sort_names
from hpx.inert.values import Object, Opaque, Tensor

__all__ = ["TorchFile", "read_torch_file"]

_USUAL_KEYS: Final = ("state_dict", "model_state_dict", "model", "module")
_LONGEST: Final = 80
_AS_STATE_DICT: Final = "save model.state_dict() instead, or give package.module:factory"


class TorchFile(NamedTuple):
    """What was found in one file."""

    tensors: list[NamedTensor]
    inside: str | None = None
    """The key under which the state dict lies."""
    ignored: list[str] = []  # noqa: RUF012 - nobody writes to it
    """Entries of the state dict that are no tensors."""
    names: Names = Names([], [])
    """Names that tensors do not need."""
    module: Object | None = None
    """The whole module that is there instead of a state dict."""
    pieces: Mapping[str, Piece] = {}
    """What the file has of tensors that were cut over ranks."""
    notes: list[str] = []  # noqa: RUF012 - nobody writes to it
    """What a reader should know of it."""


def read_torch_file(path: Path, shown: str, reading: Reading = FOR_RUNS) -> TorchFile:
    """The entries of the state dict in a file.

    Args:
        path: The file.
        shown: How errors name it.
        reading: What may be in it.

    Raises:
        InputError: It is no readable checkpoint, or it is unclear which state dict is meant.
        UnsafeInputError: Loading it could run code, and that is not what was asked for.
        TooLargeError: It is over a limit that no checkpoint reaches.
    """
    content = read_content(path, shown)
    if not reading.modules:
        _refuse(sort_names(content.names, model=False), shown)
    try:
        inside, found = _model(content, shown)
    except InputError as error:
        foreign = sort_names(content.names, model=False)
        if reading.strict:
            _refuse(foreign, shown)
        raise _with_foreign(error, foreign) from None
    names = sort_names(content.names, model=isinstance(found, Object))
    if reading.strict:
        _refuse(names, shown)
    if isinstance(found, Object):
        return TorchFile([], inside, names=names, module=found)
    return _named_tensors(found, inside, shown)._replace(names=names)


def _refuse(names: Names, shown: str) -> None:
    if names.foreign:
        raise UnsafeInputError(
            f"refused {shown}",
            why=f"it needs {names.foreign[0]}, and reading that could run code",
            fix=_AS_STATE_DICT,
        )


def _with_foreign(error: InputError, names: Names) -> InputError:
    """The error, which also says that the file could run code where it is loaded."""
    if not names.foreign:
        return error
    more = f" and {len(names.foreign) - 1} more" if len(names.foreign) > 1 else ""
    why = f"it has the foreign name {names.foreign[0]}{more}, of which nothing was run"
    return InputError(
        error.what,
        where=error.where,
        why=f"{error.why}; {why}" if error.why else why,
        fix=error.fix,
    )


def _model(content: Content, shown: str) -> tuple[str | None, Mapping[object, object] | Object]:
    """The state dict or module, and the key it lies under if it is not the whole content."""
    root = content.root
    if is_module(root):
        assert isinstance(root, Object)
        return None, root
    entries = mapping_of(root)
    if entries is None:
        plain = {"Tensor": "tensor", "Bag": "set"}
        kind = root.text if isinstance(root, Object) else type(root).__name__
        raise InputError(
            f"{shown} holds no state dict",
            why=f"it is a {printable(plain.get(kind, kind))[:_LONGEST]}",
            fix="save model.state_dict()",
        )
    return _state_dict(entries, shown)


def _state_dict(
    content: Mapping[object, object], shown: str
) -> tuple[str | None, Mapping[object, object] | Object]:
    mappings = {key: mapping_of(value) for key, value in content.items() if isinstance(key, str)}
    inner = {key: value for key, value in mappings.items() if value and _has_tensors(value)}
    usual = [key for key in _USUAL_KEYS if key in inner]
    if len(usual) == 1:
        return usual[0], inner[usual[0]]
    if _has_tensors(content):
        return None, content
    modules = {k: v for k, v in content.items() if isinstance(k, str) and is_module(v)}
    key = next((key for key in (*_USUAL_KEYS, *modules) if key in modules), None)
    if key is not None and (key in _USUAL_KEYS or len(modules) == 1):
        module = modules[key]
        assert isinstance(module, Object)
        return key, module
    if len(inner) == 1:
        return next(iter(inner.items()))
    keys = ", ".join(printable(_key_text(key))[:_LONGEST] for key in list(content)[:12]) or "none"
    what = "several state dicts" if inner else "no tensors"
    raise InputError(
        f"{shown} holds {what}", why=f"its keys are {keys}", fix="save one model.state_dict()"
    )


def _key_text(key: object) -> str:
    return repr(key) if isinstance(key, Opaque) else str(key)


def _has_tensors(entries: Mapping[object, object]) -> bool:
    return any(type(value) is Tensor for value in entries.values())


def _named_tensors(entries: Mapping[object, object], inside: str | None, shown: str) -> TorchFile:
    memory = Memory()
    tensors: list[NamedTensor] = []
    ignored: list[str] = []
    pieces: dict[str, Piece] = {}

    def name_of(number: int, name: str = "") -> str:
        return name or tensors[number].name

    for name, value in entries.items():
        if type(value) is not Tensor:
            ignored.append(_key_text(name))
            continue
        if type(name) is not str:
            raise InputError(f"{shown} holds a tensor under {name!r}", why="names are text")
        try:
            same = memory.claim(len(tensors), value, (-1, name), name_of)
        except InputError as error:
            raise error.located(shown) from None
        first = None if same is None else tensors[same].same_as or tensors[same].name
        grad, cls, placed = True, value.cls, None
        if cls:  # a plain tensor has none of these
            grad = value.requires_grad if value.is_parameter else True
            cls = "" if cls == "Parameter" else cls
            placed = placed_as(value)
            if placed is not None and (piece := piece_of(value, placed)) is not None:
                pieces[name] = piece
        fields = (name, value.shape, value.dtype, value.strides, grad, cls, placed, first)
        tensors.append(tuple.__new__(NamedTensor, fields))
    notes: list[str] = []
    if pieces:
        name, piece = next(iter(pieces.items()))
        shape = next(tensor.shape for tensor in tensors if tensor.name == name)
        notes.append(piece_text(name, shape, piece, len(pieces) - 1))
    return TorchFile(tensors, inside, ignored, pieces=pieces, notes=notes)
