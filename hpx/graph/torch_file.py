"""Read names and shapes from a ``torch.save`` file without running what is in it.

1. Only the current (zip) format is read, memory-mapped, and only what ``weights_only`` allows: a
   file that needs more could run code, and is refused.
2. A checkpoint that holds one state dict among other things gives that one.
3. One storage under two names is one tensor with two names.
4. What is no tensor is left out, and said so.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from hpx.errors import InputError, UnsafeInputError
from hpx.graph.from_names import NamedTensor

if TYPE_CHECKING:
    import torch

__all__ = ["TorchFile", "read_torch_file"]

_USUAL_KEYS: Final = ("state_dict", "model_state_dict", "model", "module")
_AS_STATE_DICT: Final = "save model.state_dict() instead, or give package.module:factory"
_GLOBAL: Final = re.compile(r"(?:GLOBAL|class) ([\w.]+)")


class TorchFile(NamedTuple):
    """What was found in one file."""

    tensors: list[NamedTensor]
    inside: str | None
    """The key under which the state dict lies."""
    ignored: list[str]
    """Entries of the state dict that are no tensors."""


def read_torch_file(path: Path, shown: str) -> TorchFile:
    """The entries of the state dict in a file.

    Args:
        path: The file.
        shown: How errors name it.

    Raises:
        InputError: It is no readable checkpoint, or it is unclear which state dict is meant.
        UnsafeInputError: Reading it could run code.
    """
    _check_format(path, shown)
    content = _load(path, shown)
    if not isinstance(content, Mapping):
        kind = type(content).__name__
        raise InputError(
            f"{shown} holds no state dict", why=f"it is a {kind}", fix="save model.state_dict()"
        )
    inside, entries = _state_dict(content, shown)
    return _named_tensors(entries, inside, shown)


def _check_format(path: Path, shown: str) -> None:
    with path.open("rb") as file:
        start = file.read(4)
    if start.startswith(b"PK"):
        return
    if not start:
        raise InputError(f"{shown} is empty")
    if start.startswith(b"\x80"):
        raise InputError(
            f"{shown} is in the old format of torch.save, which cannot be mapped",
            fix="torch.load it with weights_only=True and torch.save it again",
        )
    raise InputError(f"{shown} is no torch checkpoint", why="it does not begin like one")


def _load(path: Path, shown: str) -> object:
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Mapped, not read; on the meta device ties would be lost.
            content: object = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
            return content
    except pickle.UnpicklingError as error:
        found = _GLOBAL.search(str(error))
        raise UnsafeInputError(
            f"refused {shown}",
            why=f"it needs {found[1]}, and reading that could run code"
            if found
            else "it holds more than tensors, and reading it could run code",
            fix=_AS_STATE_DICT,
        ) from None
    except Exception as error:  # noqa: BLE001 - a broken file can make torch raise anything
        text = " ".join(str(error).split())
        if "TorchScript" in text:
            raise UnsafeInputError(
                f"refused {shown}",
                why="it is a TorchScript program, and reading it could run code",
                fix=_AS_STATE_DICT,
            ) from None
        reason = text.partition(". ")[0][:200]
        raise InputError(
            f"{shown} cannot be read", why=f"it is cut off or damaged ({reason})"
        ) from None


def _state_dict(
    content: Mapping[object, object], shown: str
) -> tuple[str | None, Mapping[object, object]]:
    """The state dict, and the key it lies under if it is not the whole content."""
    inner = {
        key: value
        for key, value in content.items()
        if isinstance(key, str) and isinstance(value, Mapping) and _has_tensors(value)
    }
    usual = [key for key in _USUAL_KEYS if key in inner]
    if len(usual) == 1:
        return usual[0], inner[usual[0]]
    if _has_tensors(content):
        return None, content
    if len(inner) == 1:
        return next(iter(inner.items()))
    keys = ", ".join(str(key) for key in list(content)[:12]) or "none"
    what = "several state dicts" if inner else "no tensors"
    raise InputError(
        f"{shown} holds {what}", why=f"its keys are {keys}", fix="save one model.state_dict()"
    )


def _has_tensors(entries: Mapping[object, object]) -> bool:
    import torch

    return any(isinstance(value, torch.Tensor) for value in entries.values())


def _named_tensors(entries: Mapping[object, object], inside: str | None, shown: str) -> TorchFile:
    import torch

    from hpx.graph.storage import Storages

    storages = Storages()
    tensors: list[NamedTensor] = []
    ignored: list[str] = []

    def name_of(number: int, name: str = "") -> str:
        return name or tensors[number].name

    for name, value in entries.items():
        if not isinstance(value, torch.Tensor):
            ignored.append(str(name))
            continue
        if not isinstance(name, str):
            raise InputError(f"{shown} holds a tensor under {name!r}", why="names are text")
        try:
            same = storages.claim(len(tensors), value, (-1, name), name_of)
        except InputError as error:
            raise error.located(shown) from None
        first = None if same is None else tensors[same].same_as or tensors[same].name
        tensors.append(_named(name, value, first))
    return TorchFile(tensors, inside, ignored)


def _named(name: str, tensor: torch.Tensor, same_as: str | None) -> NamedTensor:
    import torch

    cls = type(tensor)
    plain = cls in (torch.Tensor, torch.nn.Parameter)
    return NamedTensor(
        name,
        tuple(tensor.shape),
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.stride()) if tensor.layout is torch.strided else None,
        tensor.requires_grad if cls is torch.nn.Parameter else True,
        "" if plain else f"{cls.__module__}.{cls.__qualname__}",
        same_as,
    )
