"""Import checkpoint files: headers and names, never weights.

1. ``.safetensors`` headers are read and checked; names that ``save_model`` left out because they
   were tied come back from its metadata.
2. ``.pt``, ``.pth`` and ``.bin`` files are read inertly: torch is not needed, and no code runs.
3. An index (``*.index.json``) and the files it names have to agree, and to lie in its folder.
4. A ``config.json`` beside the weights adds head counts, and the name of a tied head that the files
   leave out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final, cast

from hpx._text import counted, printable
from hpx.errors import HpxError, InputError
from hpx.graph.beside import check_links, check_names
from hpx.graph.from_names import NamedTensor, graph_from_names
from hpx.graph.graph import ModuleGraph
from hpx.graph.hints import config_values
from hpx.graph.json_file import read_json_object
from hpx.graph.nodes import TensorNode, row_major
from hpx.graph.reading import FOR_RUNS, Reading
from hpx.graph.torch_file import TorchFile, read_torch_file
from hpx.inert.dtensor import piece_text
from hpx.inert.modules import graph_from_object
from hpx.inert.names import Names
from hpx.inert.safetensors_header import read_header
from hpx.inert.values import Object

__all__ = ["TORCH_SUFFIXES", "graph_from_checkpoint", "graph_from_index", "weights_in"]

TORCH_SUFFIXES: Final = (".pt", ".pth", ".bin")
# transformers looks for these in this order.
_USUAL_FILES: Final = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_EMBEDDINGS: Final = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight")
_HEADED: Final = ("ForCausalLM", "LMHeadModel")


def graph_from_checkpoint(
    path: Path, shown: str, source: str, reading: Reading = FOR_RUNS
) -> ModuleGraph:
    """The graph of one ``.safetensors``, ``.pt``, ``.pth`` or ``.bin`` file.

    Args:
        path: The file.
        shown: How errors name it.
        source: How the graph names it.
        reading: What may be in a pickle.

    Raises:
        InputError: It cannot be read.
        UnsafeInputError: Loading it could run code, and that is not what was asked for.
        TooLargeError: It is over a limit that no checkpoint reaches.
    """
    contents = _read(path, shown, reading)
    if contents.inside is not None:
        source = f"{source}[{printable(contents.inside)}]"
    if contents.module is not None:
        return _module_graph(contents, contents.module, shown, source)
    return _graph(contents, path, shown, source)


def graph_from_index(
    path: Path, shown: str, source: str, reading: Reading = FOR_RUNS
) -> ModuleGraph:
    """The graph of a checkpoint in several files, from its index.

    Args:
        path: The ``*.index.json`` file.
        shown: How errors name it.
        source: How the graph names it.
        reading: What may be in the pickles of its files.

    Raises:
        InputError: The index and the files do not agree, or one cannot be read.
        UnsafeInputError: The index names a file outside its folder, or loading one of its files
            could run code.
    """
    weight_map = _weight_map(path, shown)
    listed: dict[str, list[str]] = {}
    for name, file in weight_map.items():
        listed.setdefault(file, []).append(name)
    _check_files(path.parent, sorted(listed), shown)
    found: dict[str, NamedTensor] = {}
    home: dict[str, str] = {}
    ignored: list[str] = []
    foreign: list[str] = []
    notes: list[str] = []
    for file, names in listed.items():
        # A part of a checkpoint is never a whole module.
        contents = _read(path.parent / file, f"{file} of {shown}", reading)
        if contents.module is not None:
            raise InputError(f"{file} of {shown} holds a module", why="an index is of state dicts")
        foreign += [name for name in contents.names.foreign if name not in foreign]
        notes += contents.notes
        for tensor in contents.tensors:
            if tensor.name in home:
                raise InputError(
                    f"'{tensor.name}' is in two files of {shown}",
                    why=f"{home[tensor.name]} and {file}",
                    fix="keep it in the file that the index names",
                )
            home[tensor.name] = file
            found[tensor.name] = tensor
        missing = [name for name in names if home.get(name) != file]
        if missing:
            raise InputError(
                f"{file} of {shown} lacks '{missing[0]}'",
                why=f"the index places {len(names)} tensors there, {len(missing)} are not in it",
                fix="get the file and its index from the same place",
            )
        ignored += contents.ignored
    # A name that the index leaves out still counts if it is a further name of a listed tensor.
    kept = [tensor for name, tensor in found.items() if name in weight_map or tensor.same_as]
    ignored += [name for name in found if name not in weight_map and not found[name].same_as]
    # Where the files are cut tells nothing of the model: equal layers shall have one order.
    kept.sort(key=lambda tensor: tensor.name)
    whole = TorchFile(kept, ignored=ignored, names=Names(foreign, []), notes=notes)
    return _graph(whole, path, shown, source)


def weights_in(folder: Path, shown: str) -> Path | None:
    """The file of a folder that stands for its weights, or None where there are no weights.

    Raises:
        InputError: There are several files and no index.
    """
    for name in _USUAL_FILES:
        if (folder / name).is_file():
            return folder / name
    indexes = sorted(folder.glob("*.index.json"))
    weights = sorted(folder.glob("*.safetensors"))
    for candidates in (indexes, weights):
        if len(candidates) == 1:
            return candidates[0]
    if indexes or weights:
        names = [path.name for path in indexes or weights]
        raise InputError(
            f"{shown} holds {len(names)} {'indexes' if indexes else 'weight files and no index'}",
            why=f"{', '.join(names[:4])}{', ...' if len(names) > 4 else ''}",
            fix="name one of them" if indexes else "add model.safetensors.index.json, or name one",
        )
    return None


def _read(path: Path, shown: str, reading: Reading) -> TorchFile:
    if path.suffix in TORCH_SUFFIXES:
        return read_torch_file(path, shown, reading)
    return TorchFile(_read_safetensors(path, shown))


def _read_safetensors(path: Path, shown: str) -> list[NamedTensor]:
    header = read_header(path, shown)
    strides: dict[tuple[int, ...], tuple[int, ...]] = {}
    tensors: list[NamedTensor] = []
    for name, shape, dtype in header.tensors:
        if shape not in strides:
            strides[shape] = row_major(shape)
        tensors.append(NamedTensor(name, shape, dtype, strides[shape]))
    by_name = {tensor.name: tensor for tensor in tensors}
    tensors += [
        by_name[kept]._replace(name=name, same_as=kept)
        for name, kept in header.metadata.items()
        if kept in by_name and name not in by_name
    ]
    return tensors


def _weight_map(path: Path, shown: str) -> dict[str, str]:
    listed = read_json_object(path, shown).get("weight_map")
    if not isinstance(listed, Mapping) or not listed:
        raise InputError(f"{shown} is no index", why="it has no weight_map from names to files")
    weight_map: dict[str, str] = {}
    for name, file in listed.items():
        if not isinstance(file, str) or not file:
            raise InputError(f"{shown} names no file for '{name}'", why=f"it says {file!r}")
        weight_map[name] = file
    return weight_map


def _check_files(folder: Path, files: list[str], shown: str) -> None:
    check_names(files, shown)
    check_links(folder, files, shown)
    for file in files:
        suffix = PurePosixPath(file.replace("\\", "/")).suffix
        if suffix != ".safetensors" and suffix not in TORCH_SUFFIXES:
            raise InputError(f"{shown} names {file!r}", why="that is no .safetensors or .bin file")
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise InputError(
            f"{len(missing)} of the {len(files)} files that {shown} names are missing",
            why=f"{', '.join(missing[:4])}{', ...' if len(missing) > 4 else ''}",
            fix="complete the folder",
        )


def _module_graph(contents: TorchFile, module: Object, shown: str, source: str) -> ModuleGraph:
    try:
        read = graph_from_object(module, source)
    except HpxError as error:
        raise error.located(shown) from None
    graph, pieces = read.graph, read.pieces
    count = counted(len(contents.names.classes), "class", "classes")
    notes = [f"a whole pickled module, read without importing its {count}", *contents.notes]
    if pieces:
        name, piece = next(iter(pieces.items()))
        whole = cast(TensorNode, graph.get(name)).shape
        notes.append(piece_text(name, whole, piece, len(pieces) - 1))
    graph.hints.update(_file_hints(contents._replace(pieces=pieces, notes=notes)))
    return graph


def _file_hints(contents: TorchFile) -> dict[str, object]:
    """What a reader should know of the file that the graph itself does not tell."""
    hints: dict[str, object] = {}
    if contents.ignored:
        hints["ignored"] = contents.ignored
    if contents.names.foreign:
        hints["foreign"] = contents.names.foreign
    if contents.names.classes:
        hints["classes"] = contents.names.classes
    if contents.pieces:
        hints["pieces"] = {
            name: [list(held) for held in piece.ranges] for name, piece in contents.pieces.items()
        }
    if contents.notes:
        hints["notes"] = contents.notes
    return hints


def _graph(contents: TorchFile, path: Path, shown: str, source: str) -> ModuleGraph:
    if not contents.tensors:
        raise InputError(f"{shown} holds no tensors")
    tensors = contents.tensors
    hints = _file_hints(contents)
    config = _config_beside(path)
    if found := config_values(config):
        hints["config"] = found
    head = _tied_head(tensors, config)
    if head is not None:
        tensors = [*tensors, head]
        hints["tied"] = [[head.same_as, head.name]]
    try:
        return graph_from_names(tensors, source=source, hints=hints)
    except InputError as error:
        raise error.located(shown) from None


def _config_beside(path: Path) -> dict[str, object]:
    """The configuration that transformers saves beside its files; empty for any other file."""
    config = path.with_name("config.json")
    if (
        not path.name.endswith((".index.json", ".safetensors", "pytorch_model.bin"))
        or not config.is_file()
    ):
        return {}
    values = read_json_object(config, config.name)
    return values if "model_type" in values or "architectures" in values else {}


def _tied_head(tensors: list[NamedTensor], config: Mapping[str, object]) -> NamedTensor | None:
    """The head of a causal language model that is not in the file because it is the embedding."""
    classes = config.get("architectures")
    headed = isinstance(classes, list) and any(str(name).endswith(_HEADED) for name in classes)
    embeddings = [tensor for tensor in tensors if tensor.name.endswith(_EMBEDDINGS)]
    if not headed or config.get("tie_word_embeddings") is False or len(embeddings) != 1:
        return None
    embedding = embeddings[0]
    # Another tensor of that shape is a head; these parts are of heads that are named differently.
    for tensor in tensors:
        same_shape = tensor.shape == embedding.shape and tensor is not embedding
        if same_shape or "lm_head" in tensor.name or "predictions" in tensor.name:
            return None
    wrapper = "module." if all(tensor.name.startswith("module.") for tensor in tensors) else ""
    return embedding._replace(name=f"{wrapper}lm_head.weight", same_as=embedding.name)
