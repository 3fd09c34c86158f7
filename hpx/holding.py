"""What ranks hold of a parameter: index ranges, uneven pieces, and the originals behind them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from hpx.layout import REPLICATED, Layout, Range, index_range, is_even
from hpx.lineage import Lineage, Permute, Source
from hpx.ranges import fold_names, number_text

if TYPE_CHECKING:
    from hpx.mesh import MeshSpec, MeshView
    from hpx.params import Param

__all__ = ["Piece", "Pulled", "Uneven", "piece_of", "pieces", "pull", "ranges_text", "uneven"]

_MAX_POSITIONS = 4096


@dataclass(frozen=True)
class Piece:
    """What the ranks at one position hold.

    Attributes:
        coordinate: The position, by axis.
        ranges: First index and one past the last, of every dim.
    """

    coordinate: Mapping[str, int]
    ranges: tuple[Range, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(end - start for start, end in self.ranges)

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def position(self) -> str:
        """``edp=0, ep=3``."""
        return ", ".join(f"{axis}={place}" for axis, place in self.coordinate.items())

    def to_json(self) -> dict[str, object]:
        """``{coordinate, ranges, local_shape}``."""
        return {
            "coordinate": dict(self.coordinate),
            "ranges": [list(pair) for pair in self.ranges],
            "local_shape": list(self.shape),
        }


def ranges_text(ranges: Sequence[Range]) -> str:
    """Ranges as one writes them to index a tensor.

    >>> ranges_text([(12, 16), (0, 2048)])
    '[12:16, 0:2048]'
    """
    return f"[{', '.join(f'{start}:{end}' for start, end in ranges)}]"


def piece_of(param: Param, mesh: MeshSpec, rank: int) -> Piece:
    """What one rank holds, with its position on every axis of the parameter's mesh.

    Raises:
        MeshError: There is no such rank.
    """
    view = _view(param, mesh)
    return Piece(view.coordinate(rank), param.ranges(mesh, rank))


def pieces(param: Param, mesh: MeshSpec) -> Iterator[Piece]:
    """The different pieces, in the order of their positions on the axes that cut."""
    layout = param.layout or REPLICATED
    view = _view(param, mesh)
    axes = [axis for axis, _ in view.axes if layout.dim(axis) is not None]
    for position in product(*(range(view.size(axis)) for axis in axes)):
        at = dict(zip(axes, position, strict=True))
        yield Piece(at, index_range(param.shape, layout, view.sizes, at))


@dataclass(frozen=True)
class Pulled:
    """Originals of which a piece needs one and the same range.

    Attributes:
        names: Their names, folded.
        count: How many they are.
        ranges: The indices of each.
    """

    names: tuple[str, ...]
    count: int
    ranges: tuple[Range, ...]

    def __str__(self) -> str:
        each = " each" if self.count > 1 else ""
        return f"{', '.join(self.names)} {ranges_text(self.ranges)}{each}"

    def to_json(self) -> dict[str, object]:
        """``{names, count, ranges}``."""
        return {
            "names": list(self.names),
            "count": self.count,
            "ranges": [list(pair) for pair in self.ranges],
        }


def pull(
    lineage: Lineage, ranges: Sequence[Range], name_of: Callable[[int], str]
) -> tuple[Pulled, ...]:
    """The ranges of the original tensors that a range of the derived one is made of.

    Args:
        lineage: How the tensor is computed.
        ranges: A range of it, in every dim.
        name_of: The name of an original tensor.
    """
    needed: dict[tuple[Range, ...], list[int]] = {}
    todo: list[tuple[Lineage, tuple[Range, ...]]] = [(lineage, tuple(ranges))]
    while todo:
        item, wanted = todo.pop()
        if isinstance(item, Source):
            needed.setdefault(wanted, []).append(item.node)
            continue
        if isinstance(item, Permute):
            dim = item.order.dim
            cuts = [
                (*wanted[:dim], cut, *wanted[dim + 1 :]) for cut in item.order.pull(wanted[dim])
            ]
            todo.extend((item.part, one) for one in reversed(cuts))
            continue
        start, end = wanted[item.dim]
        inner = (*wanted[: item.dim], *wanted[item.dim + 1 :])
        todo.extend((part, inner) for part in reversed(item.parts[start:end]))
    return tuple(
        Pulled(tuple(fold_names(map(name_of, nodes))), len(nodes), each)
        for each, nodes in needed.items()
    )


@dataclass(frozen=True)
class Uneven:
    """Pieces of different sizes.

    Attributes:
        sizes: How many indices of the cut dim each position holds, by ``tp on dim 0``.
        empty: Positions that hold nothing.
        ranks: The ranks there, as ``3,7,11``.
    """

    sizes: Mapping[str, tuple[int, ...]]
    empty: tuple[str, ...]
    ranks: str

    def __str__(self) -> str:
        parts = [f"{cut}: {', '.join(map(str, sizes))}" for cut, sizes in self.sizes.items()]
        if self.empty:
            parts.append(f"empty at {' and '.join(self.empty)} (ranks {self.ranks})")
        return "; ".join(parts)


def uneven(param: Param, mesh: MeshSpec) -> Uneven | None:
    """How a parameter is cut where its pieces differ in size; None where all are equal."""
    layout = param.layout or REPLICATED
    view = _view(param, mesh)
    if is_even(param.shape, layout, view.sizes):
        return None
    if math.prod(view.size(axis) for axis, _ in layout.shards) > _MAX_POSITIONS:
        return Uneven({}, (), "")
    found = list(pieces(param, mesh))
    empty = [piece for piece in found if piece.num_elements == 0]
    return Uneven(
        {_cut_text(layout, dim): tuple(p.shape[dim] for p in found) for dim in _dims(layout)},
        tuple(piece.position for piece in empty),
        number_text(_ranks_at(view, empty)),
    )


def _view(param: Param, mesh: MeshSpec) -> MeshView:
    return mesh.view_of(param.layout or REPLICATED)


def _dims(layout: Layout) -> list[int]:
    return sorted({dim for _, dim in layout.shards})


def _cut_text(layout: Layout, dim: int) -> str:
    return f"{' and '.join(layout.axes_on(dim))} on dim {dim}"


def _ranks_at(view: MeshView, empty: Sequence[Piece]) -> list[int]:
    places = [piece.coordinate.items() for piece in empty]
    if not places:
        return []
    return [rank for rank in view.ranks if any(p <= view.coordinate(rank).items() for p in places)]
