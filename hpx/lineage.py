"""How a parameter is computed from the model's original tensors, without any data.

A lineage is a closed, serialisable expression: `Source` is an original tensor (by node id), `Stack`
puts equal tensors side by side on a new dim, `Permute` reorders the parts of a fused matrix.
Forwards it gives shapes; printed it gives the line
``stack(model.layers.3.mlp.experts.{0-255}.gate_proj.weight)``. `pull` says which parts of which
original tensors one rank needs; `invert` says where every original tensor lies in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, cast

from hpx.errors import LayoutError
from hpx.layout import Range
from hpx.order import Order
from hpx.ranges import expand_ids, fold_names, pack_ids

__all__ = [
    "Lineage",
    "Permute",
    "Piece",
    "Place",
    "Source",
    "Spot",
    "Stack",
    "describe",
    "invert",
    "lineage_from_json",
    "lineage_to_json",
    "pull",
    "shape_of",
    "sources",
]


class Source(NamedTuple):
    """An original tensor of the model: the node with this id in the entry graph."""

    node: int


class Stack(NamedTuple):
    """Equal tensors put side by side on a new dim, as long as there are parts."""

    parts: tuple[Lineage, ...]
    dim: int = 0


class Permute(NamedTuple):
    """A tensor with a dim in another order, so that a contiguous cut takes some of every part."""

    part: Lineage
    order: Order


Lineage: TypeAlias = Source | Stack | Permute
Spot: TypeAlias = int | Range | tuple[Range, ...]
"""A slot, a range, or several ranges one after the other."""


class Piece(NamedTuple):
    """A part of an original tensor, and where it goes.

    Attributes:
        node: Id of the original tensor.
        source: What is taken of it, a range in each of *its* dims.
        dest: Where that goes in the pulled tensor, a range in each of *that* tensor's dims. Dims
            that a stack made have length 1 here and are not in ``source``, so the source part,
            reshaped to the lengths of ``dest`` (always a view), fits.
    """

    node: int
    source: tuple[Range, ...]
    dest: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an original tensor lies in a derived one.

    Attributes:
        node: Id of the original tensor.
        index: For each dim of the derived tensor a slot, where a stack made the dim, a range, or
            several ranges where the dim was reordered. Indexing with the slots and with
            ``slice(*range)``, and putting several ranges of a dim one after the other, gives the
            original tensor.
    """

    node: int
    index: tuple[Spot, ...]


def sources(lineage: Lineage) -> Iterator[int]:
    """The ids of the original tensors, in the order in which the expression reads them."""
    todo: list[Lineage] = [lineage]
    while todo:
        item = todo.pop()
        if isinstance(item, Source):
            yield item.node
        elif isinstance(item, Permute):
            todo.append(item.part)
        else:
            todo.extend(reversed(item.parts))


def shape_of(lineage: Lineage, source_shape: Callable[[int], tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that the expression gives.

    Args:
        lineage: The expression.
        source_shape: Shape of an original tensor by node id.
    """
    if isinstance(lineage, Source):
        return source_shape(lineage.node)
    if isinstance(lineage, Permute):
        inner = shape_of(lineage.part, source_shape)
        lineage.order.check(inner)
        return inner
    inner = shape_of(lineage.parts[0], source_shape)
    return (*inner[: lineage.dim], len(lineage.parts), *inner[lineage.dim :])


def pull(lineage: Lineage, ranges: Sequence[Range]) -> list[Piece]:
    """What an index range of the derived tensor is made of.

    The pieces fill the range, each element once, in the order in which the expression reads its
    sources. Only parts inside the range are visited; an empty range has no pieces.

    Args:
        lineage: The expression.
        ranges: A range for every dim of the derived tensor, such as `hpx.layout.index_range` gives.

    Raises:
        LayoutError: There are fewer ranges than dims, or one reaches outside a stack.

    >>> pull(Stack((Source(7), Source(8))), [(1, 2), (2, 4)])
    [Piece(node=8, source=((2, 4),), dest=((0, 1), (0, 2)))]
    """
    pieces: list[Piece] = []
    if all(start < end for start, end in ranges):
        dest = [(0, end - start) for start, end in ranges]
        _pull(lineage, list(ranges), tuple(range(len(ranges))), dest, pieces)
    return pieces


def _pull(
    lineage: Lineage,
    ranges: list[Range],
    dims: tuple[int, ...],
    dest: list[Range],
    pieces: list[Piece],
) -> None:
    """Append the pieces of ``lineage``, whose own dims are these dims of the derived tensor."""
    if isinstance(lineage, Source):
        pieces.append(Piece(lineage.node, tuple(ranges[dim] for dim in dims), tuple(dest)))
        return
    if isinstance(lineage, Permute):
        dim = _dim_of(lineage, dims)
        wanted, to = ranges[dim], dest[dim]
        at = to[0]
        for start, end in lineage.order.pull(wanted):
            ranges[dim], dest[dim] = (start, end), (at, at + end - start)
            _pull(lineage.part, ranges, dims, dest, pieces)
            at += end - start
        ranges[dim], dest[dim] = wanted, to
        return
    dim, inner = _split_dims(lineage, dims)
    start, end = ranges[dim]
    to = dest[dim]
    if start < 0 or end > len(lineage.parts):
        raise LayoutError(
            f"range {start}..{end} reaches outside the {len(lineage.parts)} tensors stacked on "
            f"dim {dim}"
        )
    for slot in range(start, end):
        dest[dim] = (to[0] + slot - start, to[0] + slot - start + 1)
        _pull(lineage.parts[slot], ranges, inner, dest, pieces)
    dest[dim] = to  # a part beside this stack may have this dim from its sources


def invert(lineage: Lineage, source_shape: Callable[[int], tuple[int, ...]]) -> list[Place]:
    """Where every original tensor lies in the derived one, in the order of `sources`.

    Args:
        lineage: The expression.
        source_shape: Shape of an original tensor by node id.

    Raises:
        LayoutError: A stack names a dim that its result does not have.

    >>> invert(Stack((Source(7), Source(8))), lambda node: (4,))
    [Place(node=7, index=(0, (0, 4))), Place(node=8, index=(1, (0, 4)))]
    """
    places: list[Place] = []
    at: list[int | list[Range]] = [[(0, size)] for size in shape_of(lineage, source_shape)]
    _invert(lineage, tuple(range(len(at))), at, places)
    return places


def _invert(
    lineage: Lineage, dims: tuple[int, ...], at: list[int | list[Range]], places: list[Place]
) -> None:
    """Append the places of ``lineage``, whose index i in dim d lies at the i-th of ``at[d]``."""
    if isinstance(lineage, Source):
        places.append(Place(lineage.node, tuple(map(_spot, at))))
        return
    if isinstance(lineage, Permute):
        dim, inner = _dim_of(lineage, dims), dims
        parts: Sequence[Lineage] = (lineage.part,)
    else:
        dim, inner = _split_dims(lineage, dims)
        parts = lineage.parts
    outer = cast(list[Range], at[dim])
    for slot, part in enumerate(parts):
        if isinstance(lineage, Permute):
            at[dim] = [cut for span in lineage.order.where() for cut in _through(outer, span)]
        else:
            at[dim] = _through(outer, (slot, slot + 1))[0][0]
        _invert(part, inner, at, places)
    at[dim] = outer


def _through(spans: Sequence[Range], wanted: Range) -> list[Range]:
    """The places of a range of positions, counted along spans that stand one after the other."""
    found: list[Range] = []
    position = 0
    for start, end in spans:
        low, high = (min(max(end_ - position, 0), end - start) for end_ in wanted)
        if low < high:
            found.append((start + low, start + high))
        position += end - start
    return found


def _spot(at: int | list[Range]) -> Spot:
    """A slot, or spans with neighbours joined; one span alone as it is."""
    if isinstance(at, int):
        return at
    joined: list[Range] = []
    for start, end in at:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined[0] if len(joined) == 1 else tuple(joined)


def _dim_of(permute: Permute, dims: tuple[int, ...]) -> int:
    """The dim of the derived tensor that a permutation reorders."""
    if not 0 <= permute.order.dim < len(dims):
        raise LayoutError(
            f"dim {permute.order.dim} is reordered, and the tensor has {len(dims)} dims here"
        )
    return dims[permute.order.dim]


def _split_dims(stack: Stack, dims: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """The dim that a stack made, and those of its parts."""
    if not 0 <= stack.dim < len(dims):
        raise LayoutError(
            f"a stack on dim {stack.dim} has {len(dims)} dim{'' if len(dims) == 1 else 's'} here",
            why="every dim of the derived tensor takes part, counted from the front",
        )
    return dims[stack.dim], (*dims[: stack.dim], *dims[stack.dim + 1 :])


def describe(lineage: Lineage, name_of: Callable[[int], str]) -> str:
    """The expression as text, numbered names folded: ``stack(experts.{0-255}.w1.weight)``."""
    if isinstance(lineage, Source):
        return name_of(lineage.node)
    if isinstance(lineage, Permute):
        return f"permute({describe(lineage.part, name_of)}, {lineage.order})"
    plain = [part for part in lineage.parts if isinstance(part, Source)]
    if len(plain) == len(lineage.parts):
        inner = ", ".join(fold_names([name_of(part.node) for part in plain]))
    else:
        inner = ", ".join(describe(part, name_of) for part in lineage.parts)
    return f"stack({inner})" if lineage.dim == 0 else f"stack({inner}, dim={lineage.dim})"


def lineage_to_json(lineage: Lineage) -> dict[str, object]:
    """A JSON form; a stack of plain sources keeps its ids as packed runs."""
    if isinstance(lineage, Source):
        return {"op": "source", "node": lineage.node}
    if isinstance(lineage, Permute):
        part = lineage_to_json(lineage.part)
        return {"op": "permute", "part": part, "order": lineage.order.to_json()}
    if all(isinstance(part, Source) for part in lineage.parts):
        ids = [part.node for part in lineage.parts if isinstance(part, Source)]
        return {"op": "stack", "dim": lineage.dim, "sources": pack_ids(ids)}
    parts = [lineage_to_json(part) for part in lineage.parts]
    return {"op": "stack", "dim": lineage.dim, "parts": parts}


def lineage_from_json(value: dict[str, object]) -> Lineage:
    """The inverse of `lineage_to_json`."""
    if value["op"] == "source":
        return Source(cast(int, value["node"]))
    if value["op"] == "permute":
        part = lineage_from_json(cast(dict[str, object], value["part"]))
        return Permute(part, Order.from_json(cast(Mapping[str, object], value["order"])))
    dim = cast(int, value["dim"])
    if "sources" in value:
        ids = expand_ids(cast(Sequence[int | list[int]], value["sources"]))
        return Stack(tuple(map(Source, ids)), dim)
    parts = cast(list[dict[str, object]], value["parts"])
    return Stack(tuple(lineage_from_json(part) for part in parts), dim)
