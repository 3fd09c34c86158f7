"""Import a real ``nn.Module``: names, shapes, ties and integers, never data.

1. Walks ``_modules`` with a stack, so 5,000 nested modules import without recursion.
2. One object or one storage under two names is one node with two names.
3. A parameter that overlaps a part of another's storage is refused.
4. Lazy (uninitialised) parameters have no shape yet and are refused; a module inside itself too.
5. A tied group has one requires_grad: two that share memory and differ in it are refused.
6. A module may lack the newer of torch's tables of hooks; one without parameters, buffers and
   modules of its own was never initialised and is refused.
7. Head counts that a class has for all its modules, and numpy's integers, count as integers.
8. A ``torch.fx`` graph module brings its dataflow edges along; an exported program is a graph, too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import torch
from torch import fx, nn

from hpx.errors import InputError
from hpx.graph.alike import HOOK_TABLES, Columns, alike
from hpx.graph.builder import GraphBuilder
from hpx.graph.config_reads import config_counts
from hpx.graph.forms import EVERY_MODULE, Form, class_counts
from hpx.graph.graph import ModuleGraph
from hpx.graph.hints import hints_of
from hpx.graph.nodes import HOOKS, ModuleSpec, TensorKind, TensorSpec
from hpx.graph.overlap import tie_error
from hpx.graph.storage import Storages
from hpx.graph.traits import computed_names, placed_as, unwrapped, wrapped_child

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["graph_from_module"]

_CONTAINERS: Final = {
    nn.ModuleList: "list",
    nn.ModuleDict: "dict",
    nn.Sequential: "sequential",
    nn.ParameterList: "list",
    nn.ParameterDict: "dict",
}
_NEEDED: Final = ("_parameters", "_buffers", "_modules")
_PLAIN: Final = (nn.Parameter, torch.Tensor)
_MANY: Final = 4
"""So many siblings are worth a look whether they are all alike."""


def graph_from_module(model: nn.Module | ExportedProgram, *, source: str = "") -> ModuleGraph:
    """The graph of a module, or of an exported program.

    Raises:
        UsageError: It is neither.
        InputError: A parameter is lazy, or overlaps a part of another's storage.
    """
    from hpx._given import check_is_model

    if type(model).__name__ == "ExportedProgram":
        from hpx.flow.exported import graph_from_exported

        return graph_from_exported(cast("ExportedProgram", model), source or "exported program")
    check_is_model(model)
    module = cast(nn.Module, model)
    graph = _Importer().run(module, source or f"module:{type(model).__qualname__}")
    if isinstance(module, fx.GraphModule):
        from hpx.flow.feeds import add_feeds
        from hpx.flow.trace import trace_feeds

        add_feeds(graph, trace_feeds(module, graph))
    return graph


class _Twins(NamedTuple):
    """Siblings that are like the first of them, by name and by column."""

    named: list[tuple[str, nn.Module]]
    columns: Columns


def _is_tensor(cls: type) -> bool:
    return issubclass(cls, torch.Tensor)


def _is_parameter(column: list[Any]) -> bool:
    return isinstance(column[0], torch.Tensor)


class _Importer:
    """One import: the builder and what it has seen so far."""

    def __init__(self) -> None:
        self.builder = GraphBuilder()
        # Keyed by id() only while the model is alive and this object with it.
        self.seen: dict[int, int] = {}
        self.storages = Storages()
        self.forms: dict[object, Form] = {}
        self.last_form: dict[type, Form] = {}
        self.class_names: dict[type, tuple[str, str | None]] = {}
        self.specs: dict[object, TensorSpec] = {}

    def run(self, model: nn.Module, source: str) -> ModuleGraph:
        todo: list[tuple[int, str, object]] = [(-1, "", model)]
        while todo:
            parent, name, module = todo.pop()
            if isinstance(module, _Twins):
                todo.extend(self.repeat(parent, module))
                continue
            known = self.seen.get(id(module))
            if known is not None:
                self.link_module(parent, name, known)
                continue
            if not isinstance(module, nn.Module):
                raise self.stray(module, parent, name, "module")
            fields = module.__dict__
            form = self.form(module.__class__, fields)
            spec = self.module_spec(module, fields, form)
            node_id = self.seen[id(module)] = self.builder.module(parent, name, spec)
            if fields["_parameters"] or fields["_buffers"] or form.tensors:
                self.add_tensors(node_id, module, form)
            if module._modules:
                todo.extend(self.children(node_id, module._modules))
        return self.builder.finish(source=source, hints=hints_of(unwrapped(model)))

    def children(
        self, parent: int, modules: dict[str, nn.Module | None]
    ) -> list[tuple[int, str, nn.Module | _Twins]]:
        """What is to be imported below a module, the first one last."""
        named = [(name, module) for name, module in modules.items() if module is not None]
        twins = self.twins(named) if len(named) >= _MANY else None
        if twins is not None:
            return [(parent, "", twins), (parent, *named[0])]
        return [(parent, name, module) for name, module in reversed(named)]

    def twins(self, named: list[tuple[str, nn.Module]]) -> _Twins | None:
        """The siblings, if all are like the first and none of what is in them was met before."""
        columns = alike([module for _, module in named], _is_tensor, EVERY_MODULE)
        if columns is None:
            return None
        for column in columns:
            if not self.seen.keys().isdisjoint(map(id, column)):
                return None
        tensors = [item for column in columns if _is_parameter(column) for item in column]
        return _Twins(named, columns) if self.storages.all_new(tensors) else None

    def repeat(self, parent: int, twins: _Twins) -> list[tuple[int, str, nn.Module | _Twins]]:
        """Give the siblings of a module just imported the same nodes; what is left to import."""
        first = self.seen[id(twins.named[0][1])]
        size = self.builder.count - first
        if size != len(twins.columns):  # never seen; then each is imported for itself
            return [(parent, name, module) for name, module in reversed(twins.named[1:])]
        names = [name for name, _ in twins.named[1:]]
        start = self.builder.repeat(parent, first, names)
        for offset, column in enumerate(twins.columns):
            ids = range(start + offset, self.builder.count, size)
            self.seen.update(zip(map(id, column[1:]), ids, strict=True))
            if _is_parameter(column):
                self.storages.add(column[1:], ids)
        return []

    def link_module(self, parent: int, name: str, known: int) -> None:
        if known in self.builder.above(parent):
            raise InputError(
                f"module '{self.path(parent, name)}' is '{self.path(known) or 'the model'}', which"
                " contains it",
                why="a module inside itself has no end, and torch cannot walk it either",
                fix="keep the reference out of the module tree, for example in a tuple",
            )
        self.builder.link(parent, name, known)

    # -- modules -----------------------------------------------------------------------------

    def form(self, cls: type, fields: dict[str, Any]) -> Form:
        form = self.last_form.get(cls)
        if form is None or not form.fits(fields):
            if issubclass(cls, torch.jit.ScriptModule):
                raise InputError(
                    "the model is, or contains, a TorchScript program",
                    why="its modules cannot be changed",
                    fix="give the module that it was made from",
                )
            if missing := [name for name in _NEEDED if name not in fields]:
                raise InputError(
                    f"the model is, or contains, a {cls.__qualname__} that is not initialised",
                    why=f"it has no {', '.join(missing)}",
                    fix="call super().__init__() first in its __init__",
                )
            made = Form(tuple(fields), fields)
            form = self.forms.setdefault((made.names, *made.types), made)
            self.last_form[cls] = form
        return form

    def module_spec(self, module: nn.Module, fields: dict[str, Any], form: Form) -> ModuleSpec:
        children = fields["_modules"]
        usual = len(children) != 1 and "parametrizations" not in children
        if not usual or _hooked(fields) or "forward" in fields:
            return self.unusual_spec(module, fields, form)
        counts = config_counts(module.__class__, fields) if "config" in fields else []
        values = (module.__class__, *[fields[name] for name in form.integers], *counts)
        found = form.specs.get(values)
        if found is None:
            cls, container = self.class_name(type(module))
            own = zip(form.integers, map(int, values[1 : 1 + len(form.integers)]), strict=True)
            attributes = (*own, *class_counts(type(module), fields), *counts)
            found = form.specs[values] = ModuleSpec(cls, container, attributes)
        return found

    def unusual_spec(self, module: nn.Module, fields: dict[str, Any], form: Form) -> ModuleSpec:
        cls, container = self.class_name(type(module))
        wrapper = wrapped_child(module) if len(module._modules) == 1 else None
        hooks = [key.strip("_").removesuffix("_hooks") for key in HOOKS if fields.get(key)]
        # A wrapper's integers are its own affair (torch.compile keeps an id() there).
        integers = form.integers if wrapper is None else []
        return ModuleSpec(
            cls,
            container,
            (
                *((name, int(fields[name])) for name in integers),
                *(class_counts(type(module), fields) if wrapper is None else ()),
                *(config_counts(type(module), fields) if wrapper is None else ()),
            ),
            (*hooks, "forward") if "forward" in fields else tuple(hooks),
            wrapper,
            computed_names(module),
        )

    def class_name(self, cls: type) -> tuple[str, str | None]:
        found = self.class_names.get(cls)
        if found is None:
            container = next(
                (text for base, text in _CONTAINERS.items() if issubclass(cls, base)), None
            )
            found = self.class_names[cls] = (f"{cls.__module__}.{cls.__qualname__}", container)
        return found

    # -- tensors -----------------------------------------------------------------------------

    def add_tensors(self, owner: int, module: nn.Module, form: Form) -> None:
        for name, parameter in module._parameters.items():
            if parameter is not None:
                self.add_parameter(owner, name, parameter)
        if module._buffers:
            transient: Collection[str] = getattr(module, "_non_persistent_buffers_set", ())
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    self.add_tensor("buffer", owner, name, buffer, persistent=name not in transient)
        for name in form.tensors:
            self.add_tensor("tensor", owner, name, module.__dict__[name], persistent=False)

    def add_parameter(self, owner: int, name: str, tensor: torch.Tensor) -> None:
        known = self.seen.get(id(tensor))
        if known is None:
            if tensor.__class__ not in _PLAIN:
                self.check_shape(tensor, owner, name)
            known = self.storages.claim(self.builder.count, tensor, (owner, name), self.path)
            if known is not None:
                self.check_tie(known, tensor, owner, name)
        if known is not None:
            self.builder.link(owner, name, known)
            return
        spec = self.tensor_spec(tensor, persistent=True)
        self.seen[id(tensor)] = self.builder.tensor("parameter", owner, name, spec)

    def check_tie(self, known: int, tensor: torch.Tensor, owner: int, name: str) -> None:
        """Refuse two that are one memory, of which one is trained and the other frozen."""
        if self.builder.tensor_spec(known).requires_grad is not tensor.requires_grad:
            trained, frozen = self.path(known), self.path(owner, name)
            if tensor.requires_grad:
                trained, frozen = frozen, trained
            raise tie_error(trained, frozen)

    def add_tensor(
        self, kind: TensorKind, owner: int, name: str, tensor: torch.Tensor, *, persistent: bool
    ) -> None:
        known = self.seen.get(id(tensor))
        if known is not None:
            self.builder.link(owner, name, known)
            return
        if tensor.__class__ not in _PLAIN:
            self.check_shape(tensor, owner, name)
        spec = self.tensor_spec(tensor, persistent=persistent)
        self.seen[id(tensor)] = self.builder.tensor(kind, owner, name, spec)

    def path(self, node_id: int, name: str = "") -> str:
        """The registered name of a node, or of a name below it, while the graph is being built."""
        above = self.builder.path(node_id)
        return f"{above}.{name}" if above and name else above or name

    def stray(self, value: object, owner: int, name: str, kind: str) -> InputError:
        """The error of something that stands in torch's tables and does not belong there."""
        where = self.path(owner, name) if owner >= 0 else name
        return InputError(
            f"'{where}' is a {type(value).__name__} where a {kind} belongs",
            fix="keep it out of the tables of the module, as a plain attribute",
        )

    def check_shape(self, tensor: object, owner: int, name: str) -> None:
        """Refuse a tensor whose shape is not yet known, or is not made of numbers."""
        if not isinstance(tensor, torch.Tensor):
            raise self.stray(tensor, owner, name, "tensor")
        if nn.parameter.is_lazy(tensor):
            raise InputError(
                f"'{self.path(owner, name)}' is lazy and has no shape yet",
                fix="run the model once on example inputs first",
            )
        if any(type(size) is not int for size in tensor.shape):
            raise InputError(
                f"'{self.path(owner, name)}' has no fixed shape",
                why=f"its shape is ({', '.join(map(str, tensor.shape))})",
                fix="give it sizes that are numbers",
            )

    def tensor_spec(self, tensor: torch.Tensor, *, persistent: bool) -> TensorSpec:
        cls = type(tensor)
        # Asking a plain parameter for its __dict__ would leave an empty one on each.
        state = object.__getstate__(tensor) if cls in _PLAIN else tensor.__dict__
        extra: dict[str, object] = state if isinstance(state, dict) else {}
        strides = tensor.stride() if tensor.layout is torch.strided else None
        key = (
            cls,
            tensor.shape,
            tensor.dtype,
            strides,
            tensor.requires_grad,
            tensor.device,
            persistent,
            tuple(extra),
        )
        found = self.specs.get(key)
        if found is not None and found.placed is None:
            return found
        found = self.specs[key] = TensorSpec(
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            strides=strides,
            requires_grad=tensor.requires_grad,
            device=tensor.device.type,
            cls=self.class_name(cls)[0],
            attributes=tuple(sorted(k for k in extra if not k.startswith("_"))),
            placed=placed_as(tensor),
            persistent=persistent,
        )
        return found


def _hooked(fields: dict[str, Any]) -> bool:
    try:
        return any(HOOK_TABLES(fields))
    except KeyError:  # an old pickle, or a subclass that skips a part of __init__
        return any(fields.get(key) for key in HOOKS)
