"""Import a torch distributed checkpoint: a folder with ``.metadata`` and ``*.distcp`` files.

1. Only ``.metadata`` is read, inertly: names, whole shapes, dtypes, and the pieces that each tensor
   is saved in. How the model was placed on ranks is not in it.
2. Of several parts (``model``, ``optimizer``) the model is taken, as from a ``torch.save`` file.
3. The files that it names have to be in the folder, or be missing, which is noted.
4. Refused like every pickle with foreign names, and files cut off or damaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from hpx._text import printable
from hpx.errors import HpxError, InputError, UnsafeInputError
from hpx.graph.beside import check_names
from hpx.graph.from_names import NamedTensor, graph_from_names
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import row_major
from hpx.graph.reading import FOR_RUNS, Reading
from hpx.inert.distributed import SavedTensor, read_metadata

__all__ = ["graph_from_distributed"]

_USUAL_KEYS: Final = ("state_dict", "model_state_dict", "model", "module", "app")


class _Model(NamedTuple):
    tensors: dict[str, SavedTensor]
    inside: str | None
    ignored: list[str]


def graph_from_distributed(
    folder: Path, shown: str, source: str, reading: Reading = FOR_RUNS
) -> ModuleGraph:
    """The graph of the model in a checkpoint.

    The hint ``saved_in`` has, for each tensor in several pieces, offsets and sizes of each.

    Args:
        folder: The checkpoint.
        shown: How errors name it.
        source: How the graph names it.
        reading: What may be in its pickle.

    Raises:
        InputError: It is cut off or damaged, or it is unclear which part is the model.
        UnsafeInputError: It has foreign names and they are refused, or names a file elsewhere.
        TooLargeError: It is over a limit that no checkpoint reaches.
    """
    metadata = read_metadata(folder / ".metadata", f".metadata of {shown}")
    if reading.strict and metadata.foreign:
        raise UnsafeInputError(
            f"refused {shown}",
            why=f"it needs {metadata.foreign[0]}, and reading that could run code",
            fix="save the state dict with torch.distributed.checkpoint again",
        )
    notes = _missing(folder, metadata.files, shown)
    model = _model(metadata.tensors, metadata.paths, shown)
    hints: dict[str, object] = {}
    others = (_part(metadata.paths.get(name, (name,)), model.inside) for name in metadata.others)
    ignored = list(dict.fromkeys([*model.ignored, *others]))
    if ignored:
        hints["ignored"] = ignored
    if metadata.foreign:
        hints["foreign"] = metadata.foreign
    pieces = {
        name: [[list(chunk.offsets), list(chunk.sizes)] for chunk in tensor.chunks]
        for name, tensor in model.tensors.items()
        if len(tensor.chunks) > 1
    }
    if pieces:
        hints["saved_in"] = pieces
        notes.insert(0, _note(pieces, len(model.tensors)))
    if notes:
        hints["notes"] = notes
    if model.inside is not None:
        source = f"{source}[{printable(model.inside)}]"
    tensors = [
        NamedTensor(name, tensor.shape, tensor.dtype, row_major(tensor.shape))
        for name, tensor in model.tensors.items()
    ]
    try:
        return graph_from_names(tensors, source=source, hints=hints)
    except HpxError as error:
        raise error.located(shown) from None


def _note(pieces: Mapping[str, list[list[list[int]]]], count: int) -> str:
    name, most = max(pieces.items(), key=lambda item: len(item[1]))
    number = f"{len(pieces):,} of {count:,} tensors are saved in several pieces"
    return f"{number}, such as '{name}' in {len(most):,}; how ranks held them is not in the file"


def _model(
    tensors: Mapping[str, SavedTensor], paths: Mapping[str, tuple[str, ...]], shown: str
) -> _Model:
    """The tensors of the model by their names there, and the key that it lies under."""
    parts: dict[str, dict[str, SavedTensor]] = {}
    top: dict[str, SavedTensor] = {}
    for name, tensor in tensors.items():
        path = paths.get(name, (name,))
        if len(path) > 1:
            parts.setdefault(path[0], {})[".".join(path[1:])] = tensor
        else:
            top[name] = tensor
    usual = [key for key in _USUAL_KEYS if key in parts]
    if len(usual) == 1:
        others = [*top, *(key for key in parts if key != usual[0])]
        return _stripped(_Model(parts[usual[0]], usual[0], others))
    if top:
        return _Model(top, None, list(parts))
    if len(parts) == 1:
        return _Model(*_only(parts), [])
    keys = ", ".join(printable(key) for key in list(parts)[:12]) or "none"
    what = "several state dicts" if parts else "no tensors"
    raise InputError(
        f"{shown} holds {what}", why=f"its keys are {keys}", fix="save one model.state_dict()"
    )


def _part(path: tuple[str, ...], inside: str | None) -> str:
    """What an entry that is no tensor is counted as: itself in the model, else its whole part."""
    return ".".join(path[1:]) if path[0] == inside and len(path) > 1 else path[0]


def _only(parts: Mapping[str, dict[str, SavedTensor]]) -> tuple[dict[str, SavedTensor], str]:
    key, tensors = next(iter(parts.items()))
    return tensors, key


def _stripped(model: _Model) -> _Model:
    """The model below ``model.`` where the part is an application's state (``app``)."""
    if model.inside != "app":
        return model
    inner = {
        name.removeprefix("model."): tensor
        for name, tensor in model.tensors.items()
        if name.startswith("model.")
    }
    return _Model(inner, "app.model", model.ignored) if inner else model


def _missing(folder: Path, files: Sequence[str], shown: str) -> list[str]:
    """A line about files that are not there: names and shapes are known without them."""
    check_names(files, shown)  # none of them is read: links do no harm
    missing = sorted(file for file in files if not (folder / file).is_file())
    if not missing:
        return []
    names = ", ".join(map(printable, missing[:4]))
    return [f"{len(missing):,} of its {len(files):,} files are not in the folder: {names}"]
