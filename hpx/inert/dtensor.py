"""How a saved DTensor was placed, and which piece of it the file has."""

from __future__ import annotations

from math import prod
from typing import Final, NamedTuple

from hpx.errors import HpxError
from hpx.inert.values import Object, Tensor
from hpx.layout import Layout, index_range

__all__ = ["Piece", "Placed", "piece_of", "piece_text", "placed_as"]

Placed = tuple[tuple[str, int, str], ...]
"""(axis, size, placement) in mesh order, as in `hpx.graph.TensorSpec`."""

_REPLICATE: Final = "Replicate"
_SHARDS: Final = ("Shard", "_StridedShard")


class Piece(NamedTuple):
    """The part of a tensor that one rank held when it saved it."""

    coordinate: tuple[tuple[str, int], ...]
    """The rank's place on each axis of the mesh."""
    rank: int | None
    ranges: tuple[tuple[int, int], ...]
    """First index and one past the last, in every dim."""


def placed_as(tensor: Tensor) -> Placed | None:
    """The layout of a DTensor; None for every other tensor."""
    spec = tensor.attribute("_spec") if tensor.cls.endswith(".DTensor") else None
    if not isinstance(spec, Object):
        return None
    mesh, placements = spec.field("mesh"), spec.field("placements")
    if not isinstance(mesh, Object) or not isinstance(placements, tuple):
        return None
    sizes = _mesh_sizes(mesh)
    if sizes is None or len(sizes) != len(placements):
        return None
    names = _axis_names(mesh, len(sizes))
    return tuple(
        (name, size, _placement(placement))
        for name, size, placement in zip(names, sizes, placements, strict=True)
    )


def piece_of(tensor: Tensor, placed: Placed) -> Piece | None:
    """What the file has of a DTensor; None where it has all of it, or does not say which part."""
    spec, local = tensor.attribute("_spec"), tensor.attribute("_local_tensor")
    mesh = spec.field("mesh") if isinstance(spec, Object) else None
    if not isinstance(mesh, Object) or not isinstance(local, Tensor):
        return None
    place = mesh.field("_coordinate_on_dim")
    if not isinstance(place, tuple | list) or len(place) != len(placed):
        return None
    axes = [axis for axis, _, _ in placed]
    coordinate = {axis: at for axis, at in zip(axes, place, strict=True) if type(at) is int}
    try:
        layout = Layout.parse({axis: text for axis, _, text in placed})
        sizes = {axis: size for axis, size, _ in placed}
        ranges = index_range(tensor.shape, layout, sizes, coordinate)
    except (HpxError, KeyError, IndexError):
        return None
    held = tuple(stop - start for start, stop in ranges)
    if held != local.shape or held == tensor.shape:
        return None
    rank = _first(mesh, "_rank")
    return Piece(tuple(coordinate.items()), rank if type(rank) is int else None, tuple(ranges))


def piece_text(name: str, shape: tuple[int, ...], piece: Piece, others: int) -> str:
    """What a reader should know of a file with pieces.

    Args:
        name: A tensor of which the file has a piece.
        shape: Its whole shape.
        piece: The piece.
        others: Of how many more tensors the file has pieces.
    """
    place = ", ".join(f"{axis}={at}" for axis, at in piece.coordinate)
    who = place if piece.rank is None else f"rank {piece.rank} at {place}"
    parts = [
        f"{'rows' if dim == 0 else f'dim {dim}'} {start}..{stop} of {size}"
        for dim, ((start, stop), size) in enumerate(zip(piece.ranges, shape, strict=True))
        if stop - start != size
    ]
    more = f", and parts of {others:,} more" if others else ""
    return f"this file is one rank's piece ({who}): {' and '.join(parts)} of '{name}'{more}"


def _axis_names(mesh: Object, count: int) -> tuple[str, ...]:
    found = _first(mesh, "_mesh_dim_names", "mesh_dim_names")
    if isinstance(found, tuple) and len(found) == count:
        names = tuple(name for name in found if type(name) is str)
        if len(names) == count:
            return names
    return tuple(f"axis{number}" for number in range(count))


def _mesh_sizes(mesh: Object) -> tuple[int, ...] | None:
    ranks = mesh.field("mesh")
    if isinstance(ranks, Tensor):
        return ranks.shape
    layout = mesh.field("_layout")
    if not isinstance(layout, Object):
        return None
    axes = layout.field("axes")
    shape = layout.field("shape")
    if isinstance(axes, tuple):
        shape = tuple(axis.field("shape") for axis in axes if isinstance(axis, Object))
    if type(shape) is int:
        shape = (shape,)
    if not isinstance(shape, tuple):
        return None
    sizes = [_size(part) for part in shape]
    return None if None in sizes else tuple(size for size in sizes if size is not None)


def _size(part: object) -> int | None:
    """The size of an axis that may be made of several."""
    if type(part) is int:
        return part if part > 0 else None
    if type(part) is not tuple or not all(type(size) is int and size > 0 for size in part):
        return None
    return prod(part)


def _placement(placement: object) -> str:
    if not isinstance(placement, Object):
        return "P"
    kind = placement.text.rpartition(".")[2]
    if kind in _SHARDS:
        dim = placement.field("dim")
        if type(dim) is not int and isinstance(placement.args, tuple):
            dim = next((value for value in placement.args if type(value) is int), None)
        return f"S({dim})" if type(dim) is int else "P"
    return "R" if kind == _REPLICATE else "P"


def _first(value: Object, *names: str) -> object:
    return next((found for name in names if (found := value.field(name)) is not None), None)
