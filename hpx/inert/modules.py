"""The graph of a whole module that was pickled, read off the tables of its instances.

Names, classes, integers, shapes, ties and shared modules come out as `hpx.graph.from_module` has
them for the real module; what only its classes know (hooks of torch.compile, head counts of a
class) is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from hpx._text import printable
from hpx.errors import InputError, TooLargeError
from hpx.graph.builder import GraphBuilder
from hpx.graph.graph import ModuleGraph
from hpx.graph.hints import config_values
from hpx.graph.nodes import HOOKS, WRAPPER_PARTS, ModuleSpec, TensorKind, TensorSpec
from hpx.graph.overlap import tie_error
from hpx.inert.contents import is_module, mapping_of
from hpx.inert.dtensor import Piece, piece_of, placed_as
from hpx.inert.memory import Memory, local_part
from hpx.inert.values import Bag, Object, Tensor

__all__ = ["ModuleContents", "graph_from_object"]

_CONTAINERS: Final = {
    "torch.nn.modules.container.ModuleList": "list",
    "torch.nn.modules.container.ModuleDict": "dict",
    "torch.nn.modules.container.Sequential": "sequential",
    "torch.nn.modules.container.ParameterList": "list",
    "torch.nn.modules.container.ParameterDict": "dict",
}
_DATA_PARALLEL: Final = (
    "torch.nn.parallel.distributed.DistributedDataParallel",
    "torch.nn.parallel.data_parallel.DataParallel",
)
_PARAMETER: Final = "torch.nn.parameter.Parameter"
_MOST_PLACES: Final = 5_000_000


class ModuleContents(NamedTuple):
    """The graph of a module, and what else a reader should know."""

    graph: ModuleGraph
    pieces: dict[str, Piece]
    """What the file has of tensors that were cut over ranks."""


def graph_from_object(model: Object, source: str) -> ModuleContents:
    """The graph of a module.

    Args:
        model: An instance with the tables of a module.
        source: How the graph names it.

    Raises:
        InputError: Its tables hold what does not belong there, a parameter overlaps a part of
            another, or a module contains itself.
        TooLargeError: It has more places than any model.
    """
    reader = _Reader()
    return ModuleContents(reader.run(model, source), reader.pieces)


class _Reader:
    """One reading: the builder and what it has seen so far."""

    def __init__(self) -> None:
        self.builder: Final = GraphBuilder()
        # Keyed by id() while the model is alive, which is longer than this object is.
        self.seen: Final[dict[int, int]] = {}
        self.memory: Final = Memory()
        self.pieces: Final[dict[str, Piece]] = {}
        self.places = 0

    def run(self, model: Object, source: str) -> ModuleGraph:
        todo: list[tuple[int, str, object]] = [(-1, "", model)]
        while todo:
            parent, name, module = todo.pop()
            known = self.seen.get(id(module))
            if known is not None:
                self.link_module(parent, name, known)
                continue
            if not is_module(module):
                raise self.stray(module, parent, name, "module")
            assert isinstance(module, Object)
            node_id = self.builder.module(parent, name, _module_spec(module))
            self.seen[id(module)] = node_id
            self.add_tensors(node_id, module)
            children = self.entries(node_id, module, "_modules")
            todo.extend((node_id, name, child) for name, child in reversed(children))
        return self.builder.finish(source=source, hints=_hints(_unwrapped(model)))

    def entries(self, owner: int, module: Object, table: str) -> list[tuple[str, object]]:
        """The entries of a table that are not None."""
        found: list[tuple[str, object]] = []
        for name, value in (mapping_of(module.field(table)) or {}).items():
            self.count()
            if value is None:
                continue
            if type(name) is not str or not name or "." in name:
                raise InputError(
                    f"'{self.path(owner) or 'the model'}' has {name!r} in its {table}",
                    why="the names of a module's parts are text without dots",
                )
            found.append((name, value))
        return found

    def count(self) -> None:
        """Refuse tables that are shared so that going through them has no end."""
        self.places += 1
        if self.places > _MOST_PLACES:
            raise TooLargeError(
                "the model has too many parts", why=f"more than {_MOST_PLACES:,} names in it"
            )

    def link_module(self, parent: int, name: str, known: int) -> None:
        if known in self.builder.above(parent):
            raise InputError(
                f"module '{self.path(parent, name)}' is '{self.path(known) or 'the model'}', which"
                " contains it",
                why="a module inside itself has no end",
            )
        self.builder.link(parent, name, known)

    # -- tensors -----------------------------------------------------------------------------

    def add_tensors(self, owner: int, module: Object) -> None:
        for name, value in self.entries(owner, module, "_parameters"):
            self.add_parameter(owner, name, self.tensor(value, owner, name))
        buffers = self.entries(owner, module, "_buffers")
        transient = self.transient(module) if buffers else set()
        for name, value in buffers:
            tensor = self.tensor(value, owner, name)
            self.add_tensor("buffer", owner, name, tensor, persistent=name not in transient)
        for name, value in self.fields(module):
            if type(value) is Tensor:
                self.tensor(value, owner, name)
                self.add_tensor("tensor", owner, name, value, persistent=False)

    def transient(self, module: Object) -> set[str]:
        """Names of the buffers that the state dict leaves out."""
        found: set[str] = set()
        names = module.field("_non_persistent_buffers_set")
        for name in names.items if isinstance(names, Bag) else ():
            self.count()
            if type(name) is str:
                found.add(name)
        return found

    def fields(self, module: Object) -> Iterator[tuple[str, object]]:
        for state in module.states:
            for name, value in state.items():
                self.count()
                if type(name) is str:
                    yield name, value

    def tensor(self, value: object, owner: int, name: str) -> Tensor:
        """Refuse what is no tensor, or reaches out of its memory."""
        if type(value) is not Tensor:
            raise self.stray(value, owner, name, "tensor")
        self.memory.check(value, (owner, name), self.path)
        return value

    def add_parameter(self, owner: int, name: str, tensor: Tensor) -> None:
        known = self.seen.get(id(tensor))
        if known is None:
            known = self.memory.claim(self.builder.count, tensor, (owner, name), self.path)
            if known is not None:
                self.check_tie(known, tensor, owner, name)
        if known is not None:
            self.builder.link(owner, name, known)
            return
        spec = self.tensor_spec(tensor, owner, name, persistent=True)
        self.seen[id(tensor)] = self.builder.tensor("parameter", owner, name, spec)

    def check_tie(self, known: int, tensor: Tensor, owner: int, name: str) -> None:
        """Refuse two that are one memory, of which one is trained and the other frozen."""
        if self.builder.tensor_spec(known).requires_grad is not tensor.requires_grad:
            trained, frozen = self.path(known), self.path(owner, name)
            if tensor.requires_grad:
                trained, frozen = frozen, trained
            raise tie_error(trained, frozen)

    def add_tensor(
        self, kind: TensorKind, owner: int, name: str, tensor: Tensor, *, persistent: bool
    ) -> None:
        known = self.seen.get(id(tensor))
        if known is not None:
            self.builder.link(owner, name, known)
            return
        spec = self.tensor_spec(tensor, owner, name, persistent=persistent)
        self.seen[id(tensor)] = self.builder.tensor(kind, owner, name, spec)

    def tensor_spec(self, tensor: Tensor, owner: int, name: str, *, persistent: bool) -> TensorSpec:
        placed = placed_as(tensor) if tensor.cls else None
        if placed is not None and (piece := piece_of(tensor, placed)) is not None:
            self.pieces[self.path(owner, name)] = piece
        storage = local_part(tensor).storage
        cls = tensor.cls or "torch.Tensor"
        return TensorSpec(
            shape=tensor.shape,
            dtype=tensor.dtype,
            strides=tensor.strides,
            requires_grad=tensor.requires_grad,
            device="meta" if storage is None else storage.device,
            cls=_PARAMETER if cls == "Parameter" else cls,
            attributes=tensor.public_attributes(),
            placed=placed,
            persistent=persistent,
        )

    def path(self, node_id: int, name: str = "") -> str:
        """The registered name of a node, or of a name below it, while the graph is being built."""
        above = self.builder.path(node_id) if node_id >= 0 else ""
        return f"{above}.{name}" if above and name else above or name

    def stray(self, value: object, owner: int, name: str, kind: str) -> InputError:
        """The error of something that stands in a module's tables and does not belong there."""
        what = printable(value.text) if isinstance(value, Object) else type(value).__name__
        return InputError(f"'{self.path(owner, name)}' is a {what} where a {kind} belongs")


def _module_spec(module: Object) -> ModuleSpec:
    cls = module.text
    children = mapping_of(module.field("_modules")) or {}
    wrapper = _wrapped_child(module, children)
    hooks = [key.strip("_").removesuffix("_hooks") for key in HOOKS if _filled(module.field(key))]
    if module.field("forward") is not None:
        hooks.append("forward")
    return ModuleSpec(
        cls,
        _CONTAINERS.get(cls),
        tuple(_integers(module)) if wrapper is None else (),
        tuple(hooks),
        wrapper,
        _computed_names(module, children),
    )


def _filled(table: object) -> bool:
    return bool(mapping_of(table))


def _integers(module: Object) -> Iterator[tuple[str, int]]:
    for state in module.states:
        for name, value in state.items():
            number = _integer(value)
            if type(name) is str and number is not None:
                yield name, number


def _integer(value: object) -> int | None:
    """A plain or numpy integer that is no absurd one."""
    if type(value) is int:
        return value if value.bit_length() <= 64 else None
    if not isinstance(value, Object) or not value.text.endswith("multiarray.scalar"):
        return None
    dtype, raw = value.args if type(value.args) is tuple and len(value.args) == 2 else (None, None)
    if not isinstance(dtype, Object) or type(dtype.args) is not tuple or type(raw) is not bytes:
        return None
    kind = dtype.args[0] if dtype.args else None
    if type(kind) is not str or kind[:1] not in ("i", "u") or len(raw) > 8:
        return None
    return int.from_bytes(raw, "little", signed=kind.startswith("i"))


def _wrapped_child(module: Object, children: Mapping[object, object]) -> str | None:
    """The child's name if this module only wraps it (compile, checkpoint, FSDP1, DDP)."""
    name = next(iter(children)) if len(children) == 1 else None
    if type(name) is str and (
        name in WRAPPER_PARTS or (name == "module" and module.text in _DATA_PARALLEL)
    ):
        return name
    return None


def _unwrapped(model: Object) -> Object:
    """The model inside its wrappers."""
    seen: set[int] = set()
    while id(model) not in seen:
        seen.add(id(model))
        children = mapping_of(model.field("_modules")) or {}
        name = _wrapped_child(model, children)
        inner = children.get(name) if name is not None else None
        if not isinstance(inner, Object):
            break
        model = inner
    return model


def _computed_names(module: Object, children: Mapping[object, object]) -> tuple[str, ...]:
    """Names of the parameters that hooks or torch's parametrizations compute from others."""
    names: list[str] = []
    inner = children.get("parametrizations")
    if isinstance(inner, Object):
        names.extend(
            name for name in mapping_of(inner.field("_modules")) or {} if type(name) is str
        )
    if _filled(module.field("_forward_pre_hooks")):
        parameters = mapping_of(module.field("_parameters")) or {}
        for name in parameters:
            if type(name) is not str:
                continue
            stem = name.removesuffix("_g")
            if stem != name and f"{stem}_v" in parameters:
                names.append(stem)
            stem = name.removesuffix("_orig")
            if stem != name:
                names.append(stem)
    return tuple(names)


def _hints(model: Object) -> dict[str, object]:
    """What the model itself declares, as far as it stands in its attributes."""
    hints: dict[str, object] = {}
    config = model.field("config")
    states = config.states if isinstance(config, Object) else []
    values = config_values(_named(states[0])) if states else {}
    if values:
        hints["config"] = values
    tied = mapping_of(model.field("all_tied_weights_keys"))
    if tied and values.get("tie_word_embeddings", True):
        hints["tied"] = [[source, name] for name, source in _texts_of(tied).items()]
    for key, attribute in (("tp_plan", "_tp_plan"), ("ep_plan", "_ep_plan")):
        plan = _texts_of(mapping_of(model.field(attribute)) or {})
        if plan:
            hints[key] = plan
    return hints


def _named(mapping: Mapping[object, object]) -> dict[str, object]:
    return {key: value for key, value in mapping.items() if type(key) is str}


def _texts_of(mapping: Mapping[object, object]) -> dict[str, str]:
    # Other values are left out rather than printed: they may be nested without end.
    return {key: value for key, value in _named(mapping).items() if type(value) is str}
