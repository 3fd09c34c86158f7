"""Open what a user names as MODEL: a file, a folder, or ``package.module:factory``."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from hpx._files import near_files
from hpx._schemas import written_by_hpx
from hpx.errors import InputError, UsageError
from hpx.graph.from_config import graph_from_config
from hpx.graph.from_distributed import graph_from_distributed
from hpx.graph.from_factory import check_is_module, graph_from_factory
from hpx.graph.from_files import (
    TORCH_SUFFIXES,
    graph_from_checkpoint,
    graph_from_index,
    weights_in,
)
from hpx.graph.graph import ModuleGraph
from hpx.graph.json_file import read_json_object
from hpx.graph.reading import FOR_RUNS, Reading
from hpx.inert.pause import no_collection

__all__ = ["open_for_viewing", "open_model"]

_FACTORY: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_SUFFIXES: Final = (".safetensors", ".json")
_TAKEN: Final = (
    "give .safetensors, .pt, .pth, .bin or .pt2, a checkpoint folder, a config.json,"
    " or package.module:factory"
)


def open_model(text: str) -> ModuleGraph:
    """The graph of what ``text`` names; weights are never read.

    A folder gives its weights, where there are some, and else the model of its ``config.json``: a
    checkpoint has the names as they are saved, a configuration has classes and structure.

    Args:
        text: A ``.safetensors``, ``.pt``, ``.pth`` or ``.bin`` file; a folder of a checkpoint, or
            its index; a folder of a torch distributed checkpoint; a Hugging Face
            ``config.json``; or ``package.module:factory``, called without arguments.

    Raises:
        UsageError: There is no such file, module or function.
        InputError: It cannot be read, or is of a kind that hpx does not take.
        UnsafeInputError: Reading it could run code.
    """
    return _open(text, FOR_RUNS)


def open_for_viewing(text: str, *, strict: bool = False, trust_pickle: bool = False) -> ModuleGraph:
    """The graph of what ``text`` names, for a reader who only wants to look at it.

    Whole pickled modules are read, too, and nothing of a file is run. The hints of the graph say
    what else there is to know: ``foreign`` names, which could run code where the file is loaded;
    ``classes`` that a pickled module is made of; ``pieces``, index ranges of tensors that the file
    has only a part of; ``saved_in``, offsets and sizes of the pieces of a distributed checkpoint;
    and ``notes``, lines for people.

    Args:
        text: As for :func:`open_model`; a ``.pt``, ``.pth`` or ``.bin`` file may also hold a
            whole module.
        strict: Refuse a file with foreign names.
        trust_pickle: Load a ``.pt``, ``.pth`` or ``.bin`` file for real, which runs what is in it.

    Raises:
        UsageError: There is no such file, module or function.
        InputError: It cannot be read, or is of a kind that hpx does not take.
        UnsafeInputError: It is made to do harm, or ``strict`` and it has foreign names.
        TooLargeError: It is over a limit that no checkpoint reaches.
    """
    path = Path(text)
    if trust_pickle and path.suffix in TORCH_SUFFIXES and path.is_file():
        from hpx.graph.from_pickle import graph_from_pickle

        return graph_from_pickle(path, text, f"checkpoint:{_relative(text)}")
    return _open(text, Reading(strict=strict, modules=True))


def _open(text: str, reading: Reading) -> ModuleGraph:
    if not text:
        raise UsageError("no model is named", fix=_TAKEN)
    path = Path(text)
    try:
        if path.is_dir():
            return _open_folder(path, text, reading)
        if path.is_file():
            return _open_file(path, text, reading)
        if path.exists():
            raise InputError(f"{text} is neither a file nor a folder", fix=_TAKEN)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = error.strerror if isinstance(error, OSError) else None
        raise InputError(f"{text!r} cannot be read", why=reason or str(error)) from None
    if _FACTORY.fullmatch(text):
        return graph_from_factory(text)
    check_is_module(text)
    raise UsageError(
        f"there is no file or folder {text}",
        why=None if path.parent.is_dir() else f"there is no folder {path.parent}",
        fix=_with_colon(text) or near_files(path) or _TAKEN,
    )


def _with_colon(text: str) -> str | None:
    """What to write for ``package.module.factory``, a factory whose colon is missing."""
    module, _, name = text.rpartition(".")
    if not _FACTORY.fullmatch(f"{module}:{name}") or f".{name}" in (*TORCH_SUFFIXES, *_SUFFIXES):
        return None
    if _defines(Path(*module.split(".")).with_suffix(".py"), name):
        return f"did you mean {module}:{name}?"
    try:
        known = find_spec(module.partition(".")[0])
    except ValueError:  # of a module without a specification, such as __main__
        return None
    return None if known is None else f"did you mean {module}:{name}?"


def _defines(program: Path, name: str) -> bool:
    """Whether a file beside the command has a function or class of that name."""
    try:
        text = program.read_text()
    except (OSError, ValueError):
        return False
    return re.search(rf"^(?:def|class) {name}\b", text, re.MULTILINE) is not None


def _open_folder(folder: Path, text: str, reading: Reading) -> ModuleGraph:
    weights = weights_in(folder, text)
    source = f"checkpoint:{_relative(text)}"
    if weights is not None:
        return _open_weights(weights, f"{weights.name} of {text}", source, reading)
    if (folder / "config.json").is_file():
        return graph_from_config(
            folder / "config.json", f"config.json of {text}", f"config:{_relative(text)}"
        )
    if (folder / ".metadata").is_file():
        return graph_from_distributed(folder, text, source, reading)
    raise InputError(
        f"{text} holds no model", why="no weights, no index and no config.json in it", fix=_TAKEN
    )


def _open_file(path: Path, text: str, reading: Reading) -> ModuleGraph:
    if path.suffix == ".json":
        return _open_json(path, text, reading)
    if path.suffix == ".safetensors" or path.suffix in TORCH_SUFFIXES:
        return _open_weights(path, text, f"checkpoint:{_relative(text)}", reading)
    if path.name == ".metadata":
        source = f"checkpoint:{_relative(text)}"
        return graph_from_distributed(path.parent, text, source, reading)
    if path.suffix == ".pt2":
        from hpx.flow.exported import graph_from_pt2

        return graph_from_pt2(path, text)
    if path.suffix == ".py":
        raise InputError(f"{text} is a program", fix=f"name a function in it: {path.stem}:function")
    kind = f"'{path.suffix}' files" if path.suffix else "files without a suffix"
    raise InputError(f"{text} is of no kind that hpx takes", why=f"not {kind}", fix=_TAKEN)


def _open_weights(path: Path, shown: str, source: str, reading: Reading) -> ModuleGraph:
    importer = graph_from_index if path.suffix == ".json" else graph_from_checkpoint
    with no_collection():
        return importer(path, shown, source, reading)


def _open_json(path: Path, text: str, reading: Reading) -> ModuleGraph:
    content = read_json_object(path, text)
    if "weight_map" in content:
        return graph_from_index(path, text, f"checkpoint:{_relative(text)}", reading)
    if "model_type" in content or "architectures" in content:
        return graph_from_config(path, text, f"config:{_relative(text)}")
    written = written_by_hpx(text, content)
    if written is not None:
        raise InputError(f"{text} is {written[0]}, not a model", fix=written[1])
    raise InputError(
        f"{text} is no model", why="it has neither a weight_map nor a model_type", fix=_TAKEN
    )


def _relative(text: str) -> str:
    """The text for graphs and the files they are saved to, where no machine's path belongs."""
    path = Path(text)
    if not path.is_absolute():
        return text
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else path.name
