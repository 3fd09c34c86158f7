"""The nodes of a module graph: immutable values, many of which share one specification.

Two kinds of tuple make the whole graph. What a model's author decided is in ``spec`` (equal
specifications are one object); what passes decided is in ``props`` and, for a derived parameter, in
``lineage``. A node is never changed: an edit puts a new tuple with the same id in its place, so a
copy of a graph is a copy of one dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias, cast

from hpx.layout import Layout
from hpx.lineage import Lineage, Permute, Source
from hpx.order import Order

__all__ = [
    "HOOKS",
    "NO_PROPS",
    "WRAPPER_PARTS",
    "Edge",
    "ModuleNode",
    "ModuleSpec",
    "Node",
    "Props",
    "TensorKind",
    "TensorNode",
    "TensorSpec",
]

TensorKind: TypeAlias = Literal["parameter", "buffer", "tensor"]
Edge: TypeAlias = tuple[int, str]
"""A place in the tree: id of the owning module and the registered name there."""
Props: TypeAlias = Mapping[str, object]

NO_PROPS: Props = MappingProxyType({})
NO_EDGES: tuple[Edge, ...] = ()

WRAPPER_PARTS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Registered names that a wrapper gives to the module inside it; not part of canonical names."""


HOOKS = (
    "_backward_pre_hooks",
    "_backward_hooks",
    "_forward_hooks",
    "_forward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
"""The tables of hooks; those of torch that are not here list some of these again."""


class TensorSpec(NamedTuple):
    """What a tensor is, before any pass: shapes are global, in elements."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None
    requires_grad: bool = True
    device: str = "meta"
    cls: str = "Parameter"
    attributes: tuple[str, ...] = ()
    """Names of attributes that somebody set on the tensor object."""
    placed: tuple[tuple[str, int, str], ...] | None = None
    """Of a DTensor: (axis, axis size, placement text) in mesh order."""
    persistent: bool = True
    """Of a buffer: whether the state dict has it."""

    @property
    def num_elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def num_bytes(self) -> int:
        return self.num_elements * item_size(self.dtype)


class ModuleSpec(NamedTuple):
    """What a module is, before any pass."""

    cls: str
    """Qualified class name; empty where only names are known."""
    container: str | None = None
    """``list``, ``dict`` or ``sequential`` for torch's containers."""
    attributes: tuple[tuple[str, int], ...] = ()
    """Integers (never bools) on the instance, in order; then head counts of its class."""
    hooks: tuple[str, ...] = ()
    """The kinds of hooks present, such as ``forward_pre``; ``forward`` for an instance forward."""
    wrapper: str | None = None
    """Name of the child that this module only wraps."""
    parametrized: tuple[str, ...] = ()
    """Names of parameters that are computed from others (weight_norm, parametrizations)."""

    @property
    def short_cls(self) -> str:
        return self.cls.rsplit(".", 1)[-1]


class ModuleNode(NamedTuple):
    """A module; ``children`` maps registered names to ids, tensors first, in registration order."""

    id: int
    parent: int
    name: str
    more: tuple[Edge, ...]
    spec: ModuleSpec
    children: dict[str, int]
    signature: int
    """Equal for structurally equal subtrees of one graph; 0 after an edit below the node."""
    props: Props = NO_PROPS

    @property
    def kind(self) -> Literal["module"]:
        return "module"

    def attribute(self, name: str) -> int | None:
        """The integer attribute as the passes left it."""
        edited = self.props.get(f"attributes.{name}")
        if isinstance(edited, int):
            return edited
        return dict(self.spec.attributes).get(name)

    @property
    def attributes(self) -> dict[str, int]:
        """All integer attributes as the passes left them."""
        found = dict(self.spec.attributes)
        for key, value in self.props.items():
            if key.startswith("attributes.") and isinstance(value, int):
                found[key.removeprefix("attributes.")] = value
        return found


class TensorNode(NamedTuple):
    """A parameter, a buffer or a plain tensor attribute, with one or more names."""

    id: int
    kind: TensorKind
    parent: int
    name: str
    more: tuple[Edge, ...]
    spec: TensorSpec
    props: Props = NO_PROPS
    lineage: Lineage | None = None
    """How it is computed from original tensors; None for an original one."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def order(self) -> Order | None:
        """The order that a pass gave to a packed dim, or None if it is the model's own."""
        return cast("Order | None", self.props.get("order"))

    @property
    def expression(self) -> Lineage:
        """How it is computed from original tensors: itself, if no pass did anything to it."""
        made = self.lineage or Source(self.id)
        return made if self.order is None else Permute(made, self.order)

    @property
    def layout(self) -> Layout | None:
        """The layout that a pass decided, or None while nobody did."""
        return cast("Layout | None", self.props.get("layout"))

    @property
    def mesh(self) -> str | None:
        """The view that the layout lives on: ``dense`` or ``expert``."""
        return cast("str | None", self.props.get("mesh"))


Node: TypeAlias = ModuleNode | TensorNode

_ITEM_SIZES = {"bool": 1, "complex32": 4, "complex64": 8, "complex128": 16}


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a tensor that lies in memory as torch makes it.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@cache
def item_size(dtype: str) -> int:
    """Bytes of one element, read off the name of a torch dtype.

    >>> item_size("bfloat16"), item_size("float8_e4m3fn"), item_size("int64")
    (2, 1, 8)
    """
    known = _ITEM_SIZES.get(dtype)
    if known is not None:
        return known
    digits = ""
    for char in dtype.lstrip("bqu"):
        if char.isdigit():
            digits += char
        elif digits:
            break
    return max(1, int(digits or 8) // 8)
