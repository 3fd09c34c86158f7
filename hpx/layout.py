"""How a parameter is cut: named placements, and what each rank then holds.

- `Layout` maps mesh axes to placements: ``tp:S(0)`` cuts dim 0 over axis ``tp``; an axis that is
  absent replicates.
- `index_range` and `local_shape` say what one rank holds of a tensor, by torch's chunk rule.

Nothing here imports torch; its placement objects are accepted by what they answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from hpx.errors import LayoutError, did_you_mean
from hpx.mesh_axes import KNOWN_AXES, WEIGHT_AXES

if TYPE_CHECKING:
    from hpx.mesh import MeshSpec

__all__ = [
    "REPLICATED",
    "Layout",
    "Range",
    "chunk_range",
    "index_range",
    "is_even",
    "local_shape",
    "per_rank_sizes",
]

Range = tuple[int, int]
"""First index and one past the last."""

_FORBIDDEN: Final = {
    "dp": "it belongs to FSDP",
    "dp_replicate": "it belongs to FSDP",
    "dp_shard": "it belongs to FSDP",
    "edp": "it belongs to FSDP",
    "edp_replicate": "it belongs to FSDP",
    "edp_shard": "it belongs to FSDP",
    "cp": "it splits sequences and shards no weight here (FSDP may fold it in)",
    "pp": "it splits the layers into stages and shards no weight",
}
_AXIS: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ENTRY: Final = re.compile(r"\s*(\w+)\s*:\s*(.*)", re.ASCII | re.DOTALL)
_SHARD: Final = re.compile(
    r"(?:S|shard)\(\s*(?:dim\s*=\s*)?(-?[0-9]{1,9})\s*\)", re.ASCII | re.IGNORECASE
)
_REPLICATE: Final = re.compile(r"R|replicate(?:\(\s*\))?", re.IGNORECASE)
_PARTIAL: Final = re.compile(r"P|_?partial", re.IGNORECASE)
_GRAMMAR: Final = "write S(dim) or R, such as {tp: S(0)}, or replicate for the whole layout"


@runtime_checkable
class _TorchPlacement(Protocol):
    """What every placement object of torch can be asked."""

    def is_shard(self) -> bool: ...

    def is_replicate(self) -> bool: ...

    def is_partial(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Layout:
    """Placements by mesh axis.

    Attributes:
        entries: ``(axis, dim)`` pairs in the order in which the cuts apply; a dim of None says
            explicitly that the axis replicates.

    Raises:
        LayoutError: An axis appears twice.

    >>> layout = Layout.parse({"tp": "shard(0)"})
    >>> str(layout), str(layout.then("dp", 0)), str(Layout())
    ('tp:S(0)', 'tp:S(0),dp:S(0)', 'R')
    """

    entries: tuple[tuple[str, int | None], ...] = ()

    def __post_init__(self) -> None:
        names = [axis for axis, _ in self.entries]
        for index, axis in enumerate(names):
            if axis in names[:index]:
                raise LayoutError(
                    f"layout {self} names axis {axis} twice",
                    why="a tensor is cut on an axis once",
                    fix=f"keep one placement for {axis}",
                )

    @classmethod
    def parse(cls, value: object) -> Layout:
        """Read a layout in any of its forms.

        Args:
            value: ``"replicate"`` or ``"R"``; a mapping from axis to ``"S(0)"``, ``"shard(-1)"``,
                ``"R"`` or a placement object of torch; the printed form ``"tp:S(0)"``; or a
                layout, which is returned as it is. Negative dims stay until `resolve`.

        Raises:
            LayoutError: It is none of these, or names a partial placement.
        """
        if isinstance(value, Layout):
            return value
        if isinstance(value, str):
            return cls(_parse_text(value))
        if isinstance(value, Mapping):
            return cls(tuple(_parse_pair(axis, placement) for axis, placement in value.items()))
        if isinstance(value, _TorchPlacement) and value.is_replicate():
            return REPLICATED
        if isinstance(value, _TorchPlacement):
            raise LayoutError(f"{value} names no mesh axis", fix=f"write {{'tp': {value}}}")
        raise LayoutError(f"{value!r} is no layout", fix=_GRAMMAR)

    @classmethod
    def from_json(cls, value: object) -> Layout:
        """Read back what `to_json` wrote.

        Raises:
            LayoutError: It is no mapping from axes to placements.
        """
        if not isinstance(value, Mapping):
            raise LayoutError(f"{value!r} is no saved layout", why="it is not a mapping")
        return cls.parse(value)

    def to_json(self) -> dict[str, str]:
        """``{axis: placement}``; its order is the order of application."""
        return {axis: _placement_text(dim) for axis, dim in self.entries}

    def resolve(self, mesh: MeshSpec, ndim: int) -> Layout:
        """Fit the layout to a mesh and to a tensor.

        Cuts come out in mesh order with dims counted from the front; explicit replicates are
        dropped, and cuts on an axis of size 1 are kept.

        Args:
            mesh: The mesh whose axes the layout names.
            ndim: How many dims the tensor has.

        Raises:
            LayoutError: The mesh lacks an axis, or the axis shards no weight, or ``ep`` stands
                beside another axis, or a dim is out of range.
        """
        for axis, dim in self.entries:
            if dim is not None and axis in _FORBIDDEN:
                raise LayoutError(
                    f"layout {self} cuts a parameter on axis {axis}",
                    why=_FORBIDDEN[axis],
                    fix=f"cut on {' or '.join(WEIGHT_AXES)} only",
                )
            if not mesh.has(axis) and not _is_expert_axis(mesh, axis):
                raise _unknown_axis(self, axis, mesh)
        others = [axis for axis, _ in self.shards if axis != "ep"]
        if others and self.dim("ep") is not None:
            raise LayoutError(
                f"layout {self} cuts on ep together with {', '.join(others)}",
                why="an expert is whole within its expert rank, for now",
                fix="keep either the cut on ep or the other",
            )
        order = mesh.axis_names.index
        shards = sorted(self.shards, key=lambda shard: order(shard[0]))
        return Layout(tuple((axis, _normal_dim(self, dim, ndim)) for axis, dim in shards))

    @property
    def shards(self) -> tuple[tuple[str, int], ...]:
        """The real cuts as ``(axis, dim)``, in order."""
        return tuple((axis, dim) for axis, dim in self.entries if dim is not None)

    def dim(self, axis: str) -> int | None:
        """The dim that ``axis`` cuts; None if it replicates."""
        return next((dim for name, dim in self.entries if name == axis), None)

    def placement(self, axis: str) -> str:
        """``"S(0)"`` or ``"R"``: what the layout says of one axis."""
        return _placement_text(self.dim(axis))

    def axes_on(self, dim: int) -> tuple[str, ...]:
        """The axes that cut ``dim``, in the order in which they do."""
        return tuple(axis for axis, cut in self.shards if cut == dim)

    def then(self, axis: str, dim: int) -> Layout:
        """This layout with one more cut, applied to what the earlier ones leave.

        So FSDP cuts a parameter that tp has cut already.

        Raises:
            LayoutError: The layout names ``axis`` already.
        """
        return Layout((*self.entries, (axis, dim)))

    def __str__(self) -> str:
        parts = (f"{axis}:{_placement_text(dim)}" for axis, dim in self.entries)
        return ",".join(parts) or "R"


REPLICATED: Final = Layout()
"""Whole on every rank."""


def chunk_range(size: int, parts: int, index: int) -> Range:
    """The piece ``index`` of ``parts``, by the rule of ``torch.chunk``.

    Pieces have the size rounded up; the last ones may be shorter, or empty at the very end.

    Raises:
        LayoutError: There is no such piece.

    >>> [chunk_range(5, 4, i) for i in range(4)]
    [(0, 2), (2, 4), (4, 5), (5, 5)]
    """
    if not 0 <= index < parts:
        raise LayoutError(f"there is no piece {index} of {parts}", why="pieces count from 0")
    piece = -(-size // parts)
    return min(index * piece, size), min((index + 1) * piece, size)


def per_rank_sizes(size: int, parts: int) -> list[int]:
    """How much of a dim each of ``parts`` ranks holds.

    >>> per_rank_sizes(5, 4)
    [2, 2, 1, 0]
    """
    ranges = (chunk_range(size, parts, index) for index in range(parts))
    return [end - start for start, end in ranges]


def index_range(
    shape: Sequence[int],
    layout: Layout,
    sizes: Mapping[str, int],
    coordinate: Mapping[str, int],
) -> tuple[Range, ...]:
    """What one rank holds of a tensor: a range of indices in every dim.

    Args:
        shape: The global shape.
        layout: A resolved layout, with or without further cuts.
        sizes: Sizes of at least the axes that the layout cuts on.
        coordinate: The rank's position on them.

    Raises:
        LayoutError: A dim is out of range or negative, or an axis has no size or position.

    >>> layout = Layout.parse({"tp": "S(0)"}).then("dp", 0)
    >>> index_range((16, 16), layout, {"dp": 2, "tp": 4}, {"dp": 1, "tp": 2})
    ((10, 12), (0, 16))
    """
    ranges = [(0, size) for size in shape]
    for axis, dim in layout.shards:
        _check_cut(layout, axis, dim, len(shape), sizes)
        if axis not in coordinate:
            raise LayoutError(f"layout {layout} cuts on {axis}, where the rank has no position")
        start, end = ranges[dim]
        first, last = chunk_range(end - start, sizes[axis], coordinate[axis])
        ranges[dim] = (start + first, start + last)
    return tuple(ranges)


def local_shape(
    shape: Sequence[int],
    layout: Layout,
    sizes: Mapping[str, int],
    coordinate: Mapping[str, int],
) -> tuple[int, ...]:
    """The shape of what one rank holds; arguments and errors as for `index_range`.

    >>> local_shape((4, 10), Layout.parse({"tp": "S(1)"}), {"tp": 4}, {"tp": 3})
    (4, 1)
    """
    return tuple(end - start for start, end in index_range(shape, layout, sizes, coordinate))


def is_even(shape: Sequence[int], layout: Layout, sizes: Mapping[str, int]) -> bool:
    """Whether every cut leaves pieces of one size.

    Raises:
        LayoutError: A dim is out of range or negative, or an axis has no size.
    """
    left = list(shape)
    for axis, dim in layout.shards:
        _check_cut(layout, axis, dim, len(shape), sizes)
        left[dim], remainder = divmod(left[dim], sizes[axis])
        if remainder:
            return False
    return True


def _placement_text(dim: int | None) -> str:
    return "R" if dim is None else f"S({dim})"


def _parse_text(text: str) -> tuple[tuple[str, int | None], ...]:
    if _REPLICATE.fullmatch(text.strip()):
        return ()
    return tuple(_parse_entry(part, text) for part in text.split(","))


def _parse_entry(part: str, text: str) -> tuple[str, int | None]:
    part = part.strip()
    if _SHARD.fullmatch(part):
        raise LayoutError(f"layout {text!r} names no mesh axis", fix=f"write {{tp: {part}}}")
    if _PARTIAL.fullmatch(part.partition("(")[0]):
        raise _partial(f"layout {text!r}")
    entry = _ENTRY.fullmatch(part)
    if entry is None:
        raise LayoutError(f"{text!r} is no layout", fix=_GRAMMAR)
    return _parse_pair(entry[1], entry[2])


def _parse_pair(axis: object, placement: object) -> tuple[str, int | None]:
    if not isinstance(axis, str) or _AXIS.fullmatch(axis) is None:
        raise LayoutError(f"{axis!r} is no name of a mesh axis", fix=_GRAMMAR)
    return axis, _parse_placement(axis, placement)


def _parse_placement(axis: str, value: object) -> int | None:
    """The dim that is cut; None for replicate."""
    if isinstance(value, _TorchPlacement):
        return _parse_torch(axis, value)
    text = value.strip() if isinstance(value, str) else ""
    if _REPLICATE.fullmatch(text):
        return None
    if shard := _SHARD.fullmatch(text):
        return int(shard[1])
    if _PARTIAL.fullmatch(text.partition("(")[0]):
        raise _partial(f"axis {axis}")
    is_dim = isinstance(value, int) and not isinstance(value, bool)
    raise LayoutError(
        f"axis {axis} has placement {value!r}",
        why="a placement is S(dim) or R",
        fix=f"write {{{axis}: S({value})}}" if is_dim else _GRAMMAR,
    )


def _parse_torch(axis: str, placement: _TorchPlacement) -> int | None:
    if placement.is_partial():
        raise _partial(f"axis {axis}")
    if placement.is_replicate():
        return None
    dim = getattr(placement, "dim", None)
    if not placement.is_shard() or hasattr(placement, "split_factor") or not isinstance(dim, int):
        raise LayoutError(
            f"axis {axis} has placement {placement!r}", why="only Shard and Replicate are taken"
        )
    return dim


def _partial(what: str) -> LayoutError:
    return LayoutError(
        f"{what} is partial",
        why="a parameter holds values, and a partial one would be a sum not yet made",
        fix="write S(dim) or R",
    )


def _is_expert_axis(mesh: MeshSpec, axis: str) -> bool:
    return mesh.expert is not None and axis in mesh.expert.sizes


def _unknown_axis(layout: Layout, axis: str, mesh: MeshSpec) -> LayoutError:
    close = did_you_mean(axis.lower(), mesh.weight_axes)
    if axis in KNOWN_AXES:
        close = f"declare it as {axis}=1 if it is meant to be inactive"
    return LayoutError(
        f"layout {layout} names axis {axis!r}, which mesh {mesh} does not have",
        why=f"its weight axes are {', '.join(mesh.weight_axes) or 'none'}",
        fix=close or (f"use {' or '.join(mesh.weight_axes)}" if mesh.weight_axes else "write R"),
    )


def _normal_dim(layout: Layout, dim: int, ndim: int) -> int:
    if -ndim <= dim < ndim:
        return dim % ndim
    dims = f"dims are 0..{ndim - 1} or -{ndim}..-1" if ndim else "it has no dim to cut"
    raise LayoutError(
        f"layout {layout} cuts dim {dim} of a tensor of {ndim} dim{'' if ndim == 1 else 's'}",
        why=dims,
    )


def _check_cut(layout: Layout, axis: str, dim: int, ndim: int, sizes: Mapping[str, int]) -> None:
    if not 0 <= dim < ndim:
        raise LayoutError(
            f"layout {layout} cuts dim {dim} of a tensor of {ndim} dim{'' if ndim == 1 else 's'}",
            fix="resolve the layout on the mesh first, which counts dims from the front",
        )
    if axis not in sizes:
        raise LayoutError(
            f"layout {layout} cuts on axis {axis!r}, whose size is not given",
            why=f"given are {', '.join(sizes) or 'none'}",
        )
