"""Import a real ``nn.Module``: names, shapes, ties and integers, never data.

1. Walks ``_modules`` with a stack, so 5,000 nested modules import without recursion.
2. One object or one storage under two names is one node with two names.
3. A parameter that overlaps a part of another's storage is refused.
4. Lazy (uninitialised) parameters have no shape yet and are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import nn

from hpx.errors import InputError
from hpx.graph.builder import GraphBuilder
from hpx.graph.graph import ModuleGraph
from hpx.graph.hints import hints_of
from hpx.graph.nodes import WRAPPER_PARTS, ModuleSpec, TensorKind, TensorSpec

__all__ = ["graph_from_module"]

_CONTAINERS: Final = {
    nn.ModuleList: "list",
    nn.ModuleDict: "dict",
    nn.Sequential: "sequential",
    nn.ParameterList: "list",
    nn.ParameterDict: "dict",
}
_INT, _TENSOR, _TABLE, _OTHER = range(4)
_DDP: Final = "torch.nn.parallel.distributed.DistributedDataParallel"
_OWN_TABLES: Final = frozenset(["_parameters", "_buffers", "_modules"])


def graph_from_module(model: nn.Module, *, source: str = "") -> ModuleGraph:
    """The graph of a module.

    Raises:
        InputError: A parameter is lazy, or overlaps a part of another's storage.
    """
    return _Importer().run(model, source or f"module:{type(model).__qualname__}")


class _Importer:
    """One import: the builder and what it has seen so far."""

    def __init__(self) -> None:
        self.builder = GraphBuilder()
        # Keyed by id() only while the model is alive and this object with it: nothing else keeps it.
        self.seen: dict[int, int] = {}
        self.storages: dict[int, list[tuple[int, torch.Tensor]]] = {}
        self.kinds: dict[type, int] = {}
        self.class_names: dict[type, tuple[str, str | None]] = {}
        self.specs: dict[object, TensorSpec] = {}
        self.dtypes: dict[torch.dtype, str] = {}

    def run(self, model: nn.Module, source: str) -> ModuleGraph:
        todo: list[tuple[int, str, nn.Module]] = [(-1, "", model)]
        while todo:
            parent, name, module = todo.pop()
            known = self.seen.get(id(module))
            if known is not None:
                self.builder.link(parent, name, known)
                continue
            node_id = self.builder.module(parent, name, self.module_spec(module))
            self.seen[id(module)] = node_id
            self.add_tensors(node_id, module)
            if module._modules:
                todo.extend(
                    [(node_id, n, m) for n, m in reversed(module._modules.items()) if m is not None]
                )
        return self.builder.finish(source=source, hints=hints_of(model))

    # -- modules -----------------------------------------------------------------------------

    def module_spec(self, module: nn.Module) -> ModuleSpec:
        cls, container = self.class_name(type(module))
        kinds = self.kinds
        attributes: list[tuple[str, int]] = []
        hooks: list[str] = []
        for key, value in module.__dict__.items():
            kind = kinds.get(value.__class__)
            if kind is None:
                kind = self.kind_of(value.__class__)
            if kind == _INT:
                attributes.append((key, value))
            elif kind == _TABLE and value and key.endswith("_hooks"):
                hooks.append(key.strip("_").removesuffix("_hooks"))
        if "forward" in module.__dict__:
            hooks.append("forward")
        return ModuleSpec(
            cls,
            container,
            tuple(attributes),
            tuple(hooks),
            _wrapper(cls, module) if len(module._modules) == 1 else None,
            _parametrized(module),
        )

    def class_name(self, cls: type) -> tuple[str, str | None]:
        found = self.class_names.get(cls)
        if found is None:
            container = next((text for base, text in _CONTAINERS.items() if issubclass(cls, base)),
                             None)
            found = self.class_names[cls] = (f"{cls.__module__}.{cls.__qualname__}", container)
        return found

    def kind_of(self, cls: type) -> int:
        kind = _OTHER
        if issubclass(cls, int) and cls is not bool:
            kind = _INT if cls is int else _OTHER
        elif issubclass(cls, torch.Tensor):
            kind = _TENSOR
        elif issubclass(cls, dict):
            kind = _TABLE
        self.kinds[cls] = kind
        return kind

    # -- tensors -----------------------------------------------------------------------------

    def add_tensors(self, owner: int, module: nn.Module) -> None:
        for name, parameter in module._parameters.items():
            if parameter is not None:
                self.add_tensor("parameter", owner, name, parameter, persistent=True)
        if module._buffers:
            transient = module._non_persistent_buffers_set
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    self.add_tensor("buffer", owner, name, buffer, persistent=name not in transient)
        for name, value in self.plain_tensors(module):
            self.add_tensor("tensor", owner, name, value, persistent=False)

    def plain_tensors(self, module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        kinds = self.kinds
        return (
            (name, value)
            for name, value in module.__dict__.items()
            if kinds[value.__class__] == _TENSOR
        )

    def add_tensor(
        self, kind: TensorKind, owner: int, name: str, tensor: torch.Tensor, *, persistent: bool
    ) -> None:
        known = self.seen.get(id(tensor))
        if known is None and kind == "parameter":
            known = self.same_storage(tensor, owner, name)
        if known is not None:
            self.builder.link(owner, name, known)
            return
        spec = self.tensor_spec(tensor, name, persistent)
        node_id = self.builder.tensor(kind, owner, name, spec)
        self.seen[id(tensor)] = node_id
        if kind == "parameter":
            self.storages[_storage(tensor)][-1] = (node_id, tensor)

    def same_storage(self, tensor: torch.Tensor, owner: int, name: str) -> int | None:
        """The node that is this very memory; leaves a place for the tensor where there is none."""
        others = self.storages.setdefault(_storage(tensor), [])
        if others:
            mine = _extent(tensor)
            for node_id, other in others:
                if _same_view(tensor, other):
                    return node_id
                theirs = _extent(other)
                if mine[0] < theirs[1] and theirs[0] < mine[1]:
                    raise InputError(
                        f"parameter '{name}' {list(tensor.shape)} overlaps a part of another"
                        f" parameter's memory {list(other.shape)}",
                        where=f"module #{owner}",
                        why=f"storage elements {mine[0]}..{mine[1]} and {theirs[0]}..{theirs[1]}",
                        fix="give each its own memory (clone one), or tie them whole",
                    )
        others.append((-1, tensor))
        return None

    def tensor_spec(self, tensor: torch.Tensor, name: str, persistent: bool) -> TensorSpec:
        if isinstance(tensor, nn.parameter.UninitializedTensorMixin):
            raise InputError(
                f"parameter '{name}' is lazy and has no shape yet",
                fix="run the model once on example inputs first",
            )
        cls = type(tensor)
        extra = tensor.__dict__
        key = (cls, tensor.shape, tensor.dtype, tensor.stride(), tensor.requires_grad,
               tensor.device, persistent, tuple(extra) if extra else ())
        found = self.specs.get(key)
        if found is not None and found.placed is None:
            return found
        placed = _placed(tensor)
        found = self.specs[key] = TensorSpec(
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            strides=tuple(tensor.stride()),
            requires_grad=tensor.requires_grad,
            device=str(tensor.device),
            cls=self.class_name(cls)[0],
            attributes=tuple(sorted(k for k in extra if not k.startswith("_"))),
            placed=placed,
            persistent=persistent,
        )
        return found


def _wrapper(cls: str, module: nn.Module) -> str | None:
    """The child's name if this module only wraps it (compile, checkpoint, FSDP1, DDP)."""
    name = next(iter(module._modules))
    if name in WRAPPER_PARTS or (name == "module" and cls == _DDP):
        return name
    return None


def _parametrized(module: nn.Module) -> tuple[str, ...]:
    """Names of the parameters that are computed from others, by either weight_norm or torch's
    parametrizations."""
    names: list[str] = []
    if "parametrizations" in module._modules:
        inner = module._modules["parametrizations"]
        if inner is not None:
            names.extend(inner._modules)
    if module._forward_pre_hooks:
        for name in module._parameters:
            stem = name.removesuffix("_g")
            if stem != name and f"{stem}_v" in module._parameters:
                names.append(stem)
            stem = name.removesuffix("_orig")
            if stem != name:
                names.append(stem)
    return tuple(names)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that holds the memory: a DTensor's local part, else itself."""
    to_local = getattr(tensor, "_local_tensor", None)
    return to_local if isinstance(to_local, torch.Tensor) else tensor


def _storage(tensor: torch.Tensor) -> int:
    # data_ptr() is 0 for every meta tensor; the storage object tells them apart.
    return _local(tensor).untyped_storage()._cdata


def _same_view(a: torch.Tensor, b: torch.Tensor) -> bool:
    a, b = _local(a), _local(b)
    return (
        a.shape == b.shape
        and a.stride() == b.stride()
        and a.storage_offset() == b.storage_offset()
        and a.dtype == b.dtype
    )


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First and one past the last storage element that the tensor can touch."""
    tensor = _local(tensor)
    start = tensor.storage_offset()
    if tensor.numel() == 0:
        return (start, start)
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (start, start + reach + 1)


def _placed(tensor: torch.Tensor) -> tuple[tuple[str, int, str], ...] | None:
    """(axis, size, placement) of a DTensor, in mesh order."""
    mesh = getattr(tensor, "device_mesh", None)
    placements = getattr(tensor, "placements", None)
    if mesh is None or placements is None:
        return None
    names = mesh.mesh_dim_names or tuple(f"axis{k}" for k in range(mesh.ndim))
    return tuple(
        (name, mesh.size(k), _placement_text(placement))
        for k, (name, placement) in enumerate(zip(names, placements, strict=True))
    )


def _placement_text(placement: object) -> str:
    from torch.distributed.tensor import Replicate, Shard

    if isinstance(placement, Shard):
        return f"S({placement.dim})"
    return "R" if isinstance(placement, Replicate) else "P"
