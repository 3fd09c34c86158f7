"""A tree from the names of a state dict, where no module is there to ask.

1. Names are split at dots; a part made of digits is a name like any other, but numbered siblings
   stand in numeric order, since files sort them as text.
2. What wrappers add to names (``_orig_mod``, and ``module`` where every name starts with it)
   becomes wrapper modules, so that it is not part of canonical names.
3. Floating tensors are parameters, all others buffers: names alone do not tell.
4. A name that is a tensor and also the beginning of another name is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from hpx.errors import InputError
from hpx.graph.builder import GraphBuilder
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import WRAPPER_PARTS, ModuleSpec, TensorKind, TensorSpec

__all__ = ["NamedTensor", "graph_from_names"]


class NamedTensor(NamedTuple):
    """One entry of a state dict."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None
    requires_grad: bool = True
    cls: str = ""
    """Qualified class; empty where the file does not know it."""
    placed: tuple[tuple[str, int, str], ...] | None = None
    """Of a DTensor: (axis, axis size, placement text) in mesh order; `shape` is the whole one."""
    same_as: str | None = None
    """Name of an entry that is this very tensor."""


_Folder: TypeAlias = "dict[str, _Folder | NamedTensor]"


def graph_from_names(
    tensors: Iterable[NamedTensor], *, source: str, hints: Mapping[str, object] | None = None
) -> ModuleGraph:
    """The graph of a state dict.

    Raises:
        InputError: A name is empty in parts, occurs twice, or is also the beginning of another.
    """
    builder = GraphBuilder()
    tied: dict[str, int] = {}
    specs: dict[object, tuple[TensorKind, TensorSpec]] = {}
    modules: dict[str | None, ModuleSpec] = {}
    todo: list[tuple[int, str, _Folder, bool]] = [(-1, "", _tree(tensors), True)]
    while todo:
        parent, name, folder, outermost = todo.pop()
        own: list[NamedTensor] = []
        inner: list[tuple[str, _Folder]] = []
        for part, item in folder.items():
            if isinstance(item, dict):
                inner.append((part, item))
            else:
                own.append(item)
        wrapper = _wrapper(inner[0][0], outermost and not own) if len(inner) == 1 else None
        if wrapper not in modules:
            modules[wrapper] = ModuleSpec(cls="", wrapper=wrapper)
        here = builder.module(parent, name, modules[wrapper])
        for tensor in own:
            last = tensor.name.rpartition(".")[2]
            same = tensor.same_as or tensor.name
            if same in tied:
                builder.link(here, last, tied[same])
                continue
            key = tensor[1:7]
            known = specs.get(key)
            if known is None:
                known = specs[key] = _spec(tensor)
            kind, spec = known
            tied[same] = builder.tensor(kind, here, last, spec)
        if len(inner) > 1 and all(part.isdecimal() for part, _ in inner):
            inner.sort(key=lambda child: int(child[0]))
        # Below the root for as long as there are only wrappers, `module` is the name of one, too.
        only = outermost and wrapper is not None
        todo += [(here, part, item, only) for part, item in reversed(inner)]
    return builder.finish(source=source, hints=hints, has_structure=False)


def _tree(tensors: Iterable[NamedTensor]) -> _Folder:
    root: _Folder = {}
    for tensor in tensors:
        *above, last = tensor.name.split(".")
        folder = root
        for part in above:
            below = folder.get(part)
            if below is None:
                below = folder[part] = {}
            elif isinstance(below, NamedTensor):
                raise _clash(below.name, tensor.name)
            folder = below
        if not last or "" in above:
            raise InputError(
                f"the name '{tensor.name}' has an empty part", fix="names are parts between dots"
            )
        if last in folder:
            raise _clash(tensor.name, _first_name(folder[last]))
        folder[last] = tensor
    return root


def _first_name(item: _Folder | NamedTensor) -> str:
    while isinstance(item, dict):
        item = next(iter(item.values()))
    return item.name


def _clash(tensor: str, other: str) -> InputError:
    if tensor == other:
        return InputError(f"the name '{tensor}' occurs twice")
    return InputError(
        f"'{tensor}' is a tensor and also the beginning of '{other}'",
        why="one name cannot be a tensor and a module",
        fix="rename one of them",
    )


def _wrapper(name: str, every_name: bool) -> str | None:
    """The name of the only module inside, if it is one that wrappers give."""
    return name if name in WRAPPER_PARTS or (every_name and name == "module") else None


def _spec(tensor: NamedTensor) -> tuple[TensorKind, TensorSpec]:
    floating = tensor.dtype.startswith(("float", "bfloat", "complex"))
    cls = "torch.nn.parameter.Parameter" if floating else "torch.Tensor"
    spec = TensorSpec(
        shape=tensor.shape,
        dtype=tensor.dtype,
        strides=tensor.strides,
        requires_grad=floating and tensor.requires_grad,
        device="meta",
        cls=tensor.cls or cls,
        placed=tensor.placed,
    )
    return ("parameter" if floating else "buffer"), spec
