"""Graphs of exported programs: `torch.export.ExportedProgram`, and the ``.pt2`` files of them.

1. Parameters and buffers come from the program's signature, with their classes of modules where an
   operator tells; integers of modules are not in a program.
2. Entries that are one tensor are one node with several names.
3. The operators give the dataflow edges; nothing is traced.
4. Of a file the JSON parts are read, and no weight; nothing in it is executed.
"""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hpx.errors import InputError
from hpx.flow.edges import Operator, points_of
from hpx.flow.feeds import Feeds, add_feeds
from hpx.graph.builder import GraphBuilder
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleSpec, TensorKind, TensorSpec

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["graph_from_exported", "graph_from_pt2"]

_LARGEST: Final = 256 * 2**20
"""Bytes of JSON that are read from a file; a model of 100 layers has some 20 MB."""

# torch/_export/serde/schema.py, ScalarType
_DTYPES: Final = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    9: "complex32",
    10: "complex64",
    11: "complex128",
    12: "bool",
    13: "bfloat16",
    28: "uint16",
    29: "float8_e4m3fn",
    30: "float8_e5m2",
    31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz",
}
_CALL: Final = re.compile(r"@\d+$")


class _Entry(NamedTuple):
    name: str
    kind: TensorKind
    spec: TensorSpec
    tensor: object  # equal for entries that are one tensor


# -- in memory ---------------------------------------------------------------------------------


def graph_from_exported(program: ExportedProgram, source: str = "exported program") -> ModuleGraph:
    """The graph of an exported program; its tensors are not read.

    Args:
        program: The program.
        source: What it was read from, for people.
    """
    from hpx.flow.tracing import exported_operators

    signature = program.graph_signature
    parameters = set(signature.parameters)
    entries = [
        _entry(name, "parameter" if name in parameters else _kind(tensor), tensor, persistent=True)
        for name, tensor in program.state_dict.items()
    ]
    entries += [
        _entry(name, "buffer", program.constants[name], persistent=False)
        for name in signature.non_persistent_buffers
    ]
    classes: dict[str, str] = {}
    for node in program.graph.nodes:
        for path, cls in (node.meta.get("nn_module_stack") or {}).values():
            classes.setdefault(_CALL.sub("", path), str(cls))
    return _finished(entries, classes, exported_operators(program), source)


def _kind(tensor: Any) -> TensorKind:
    # A tied name that no operator reads is in the state dict, and not in the signature.
    return "parameter" if type(tensor).__name__ == "Parameter" else "buffer"


def _entry(name: str, kind: TensorKind, tensor: Any, *, persistent: bool) -> _Entry:
    spec = TensorSpec(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        strides=tuple(tensor.stride()),
        requires_grad=tensor.requires_grad,
        device=str(tensor.device),
        cls="torch.nn.parameter.Parameter" if kind == "parameter" else "torch.Tensor",
        persistent=persistent,
    )
    place = (tensor.untyped_storage()._cdata, tensor.storage_offset(), spec.shape, spec.strides)
    return _Entry(name, kind, spec, place if tensor.numel() else name)


# -- files -------------------------------------------------------------------------------------


def graph_from_pt2(path: Path, shown: str) -> ModuleGraph:
    """The graph of a saved program; its JSON is read, and no weight.

    Args:
        path: The file.
        shown: How the user named it.

    Raises:
        InputError: It is damaged, too large, or of a form that is not known.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            program = _json(archive, shown, "/models/model.json")
            weights = _json(archive, shown, "/data/weights/model_weights_config.json")
        return _from_json(program["graph_module"], weights["config"], f"program:{shown}")
    except (
        *(OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError),
        *(ValueError, LookupError, TypeError, AttributeError),
    ) as error:
        raise InputError(
            f"{shown} is no exported program that can be read",
            why=f"{type(error).__name__}: {error}",
            fix="save it again with torch.export.save",
        ) from None


def _json(archive: zipfile.ZipFile, shown: str, ending: str) -> Any:
    found = [item for item in archive.infolist() if item.filename.endswith(ending)]
    if len(found) != 1:
        raise KeyError(ending[1:])
    info = found[0]
    if info.file_size > _LARGEST:
        raise InputError(
            f"{shown} has {info.file_size} bytes of {ending[1:]}",
            why=f"at most {_LARGEST} are read",
        )
    return json.loads(archive.read(info))


def _from_json(module: Any, weights: Any, source: str) -> ModuleGraph:
    values = module["graph"]["tensor_values"]
    entries = [
        _entry_of(
            name, "parameter" if item["is_param"] else "buffer", item["tensor_meta"], True
        )._replace(tensor=(item["path_name"], json.dumps(item["tensor_meta"], sort_keys=True)))
        for name, item in weights.items()
    ]
    operators = []
    order: dict[str, int] = {}  # files sort their entries by name, the signature keeps the order
    for item in module["signature"]["input_specs"]:
        if "parameter" in item:
            name = item["parameter"]["parameter_name"]
            given = item["parameter"]["arg"]["name"]
            operators.append(Operator(given, (), owner=name.rpartition(".")[0]))
            order[name] = len(order)
        elif "buffer" in item:
            name, given = item["buffer"]["buffer_name"], item["buffer"]["arg"]["name"]
            order[name] = len(order)
            if not item["buffer"]["persistent"]:
                entries.append(_entry_of(name, "buffer", values[given], False))
    entries.sort(key=lambda entry: order.get(entry.name, len(order)))
    classes: dict[str, str] = {}
    for node in module["graph"]["nodes"]:
        stack = [part.split(",") for part in node["metadata"].get("nn_module_stack", "").split(";")]
        for _, name, cls in (part for part in stack if len(part) == 3):
            classes.setdefault(_CALL.sub("", name), cls)
        here = _CALL.sub("", stack[-1][1]) if len(stack[-1]) == 3 else ""
        inputs = tuple(_names(node["inputs"]))
        operators += [Operator(out, inputs, here) for out in _names(node["outputs"])]
    return _finished(entries, classes, operators, source)


def _entry_of(name: str, kind: TensorKind, meta: Any, persistent: bool) -> _Entry:
    spec = TensorSpec(
        shape=tuple(size["as_int"] for size in meta["sizes"]),
        dtype=_DTYPES.get(meta["dtype"], f"dtype {meta['dtype']}"),
        strides=tuple(size["as_int"] for size in meta["strides"]),
        requires_grad=meta["requires_grad"],
        device=meta["device"]["type"],
        cls="torch.nn.parameter.Parameter" if kind == "parameter" else "torch.Tensor",
        persistent=persistent,
    )
    return _Entry(name, kind, spec, name)


def _names(value: Any) -> Iterator[str]:
    """Names of the tensors anywhere in the arguments of an operator."""
    if isinstance(value, list):
        for item in value:
            yield from _names(item)
    elif isinstance(value, dict):
        if isinstance(value.get("as_tensor"), dict):
            yield value["as_tensor"]["name"]
        elif isinstance(value.get("as_tensors"), list):
            yield from (item["name"] for item in value["as_tensors"])
        elif "arg" in value:
            yield from _names(value["arg"])


# -- both --------------------------------------------------------------------------------------


def _finished(
    entries: Iterable[_Entry],
    classes: Mapping[str, str],
    operators: Iterable[Operator],
    source: str,
) -> ModuleGraph:
    """Build the tree; a module is there if it holds a tensor, or an operator tells of it."""
    tree: dict[str, dict[str, _Entry | None]] = {"": {}}
    found = list(entries)
    for path in (*(entry.name.rpartition(".")[0] for entry in found), *classes):
        _grow(tree, path)
    for entry in found:
        above, _, last = entry.name.rpartition(".")
        tree[above][last] = entry
    builder = GraphBuilder()
    known: dict[object, int] = {}
    todo = [(-1, "", "")]
    while todo:
        parent, name, path = todo.pop()
        here = builder.module(parent, name, ModuleSpec(cls=classes.get(path, "")))
        below = []
        for last, item in tree[path].items():
            if item is None:
                below.append((here, last, f"{path}.{last}" if path else last))
            elif item.tensor in known:
                builder.link(here, last, known[item.tensor])
            else:
                known[item.tensor] = builder.tensor(item.kind, here, last, item.spec)
        todo.extend(reversed(below))
    graph = builder.finish(source=source)
    owners = {e.name.rpartition(".")[0] for e in found if e.kind == "parameter"}
    add_feeds(graph, Feeds(tuple(points_of(operators, owners)), "export"))
    return graph


def _grow(tree: dict[str, dict[str, _Entry | None]], path: str) -> None:
    """Make a module, and those above it."""
    parts = path.split(".") if path else []
    for depth, part in enumerate(parts):
        tree[".".join(parts[:depth])].setdefault(part, None)
        tree.setdefault(".".join(parts[: depth + 1]), {})
