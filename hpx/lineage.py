"""How a parameter is computed from the model's original tensors, without any data.

A lineage is a closed, serialisable expression: `Source` is an original tensor (by node id), `Stack`
puts equal tensors side by side on a new dim. Forwards it gives shapes; printed it gives the line
``stack(model.layers.3.mlp.experts.{0-255}.gate_proj.weight)``. `pull` says which parts of which
original tensors one rank needs; `invert` says where every original tensor lies in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, cast

from hpx.errors import LayoutError
from hpx.layout import Range
from hpx.ranges import expand_ids, fold_names, pack_ids

__all__ = [
    "Lineage",
    "Piece",
    "Place",
    "Source",
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


Lineage: TypeAlias = Source | Stack


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
        index: For each dim of the derived tensor a slot, where a stack made the dim, or a range.
            Indexing with the slots and with ``slice(*range)`` gives the original tensor.
    """

    node: int
    index: tuple[Range | int, ...]


def sources(lineage: Lineage) -> Iterator[int]:
    """The ids of the original tensors, in the order in which the expression reads them."""
    todo: list[Lineage] = [lineage]
    while todo:
        item = todo.pop()
        if isinstance(item, Source):
            yield item.node
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
        _pull(lineage, ranges, tuple(range(len(ranges))), dest, pieces)
    return pieces


def _pull(
    lineage: Lineage,
    ranges: Sequence[Range],
    dims: tuple[int, ...],
    dest: list[Range],
    pieces: list[Piece],
) -> None:
    """Append the pieces of ``lineage``, whose own dims are these dims of the derived tensor."""
    if isinstance(lineage, Source):
        pieces.append(Piece(lineage.node, tuple(ranges[dim] for dim in dims), tuple(dest)))
        return
    dim, inner = _split_dims(lineage, dims)
    start, end = ranges[dim]
    if start < 0 or end > len(lineage.parts):
        raise LayoutError(
            f"range {start}..{end} reaches outside the {len(lineage.parts)} tensors stacked on "
            f"dim {dim}"
        )
    for slot in range(start, end):
        dest[dim] = (slot - start, slot - start + 1)
        _pull(lineage.parts[slot], ranges, inner, dest, pieces)
    dest[dim] = (0, end - start)  # a part beside this stack may have this dim from its sources


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
    at: list[Range | int] = [(0, size) for size in shape_of(lineage, source_shape)]
    _invert(lineage, tuple(range(len(at))), at, places)
    return places


def _invert(
    lineage: Lineage, dims: tuple[int, ...], at: list[Range | int], places: list[Place]
) -> None:
    if isinstance(lineage, Source):
        places.append(Place(lineage.node, tuple(at)))
        return
    dim, inner = _split_dims(lineage, dims)
    for slot, part in enumerate(lineage.parts):
        at[dim] = slot
        _invert(part, inner, at, places)
    at[dim] = (0, len(lineage.parts))


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
    if all(isinstance(part, Source) for part in lineage.parts):
        ids = [part.node for part in lineage.parts if isinstance(part, Source)]
        return {"op": "stack", "dim": lineage.dim, "sources": pack_ids(ids)}
    parts = [lineage_to_json(part) for part in lineage.parts]
    return {"op": "stack", "dim": lineage.dim, "parts": parts}


def lineage_from_json(value: dict[str, object]) -> Lineage:
    """The inverse of `lineage_to_json`."""
    if value["op"] == "source":
        return Source(cast(int, value["node"]))
    dim = cast(int, value["dim"])
    if "sources" in value:
        ids = expand_ids(cast(Sequence[int | list[int]], value["sources"]))
        return Stack(tuple(map(Source, ids)), dim)
    parts = cast(list[dict[str, object]], value["parts"])
    return Stack(tuple(lineage_from_json(part) for part in parts), dim)
