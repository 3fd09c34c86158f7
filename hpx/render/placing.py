"""What one tensor's layout comes to: its token, what a rank holds, whether the cuts are even."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import TensorNode, TensorSpec, item_size
from hpx.layout import Layout, Range, index_range, is_even, per_rank_sizes
from hpx.mesh import MeshSpec

__all__ = ["Placer", "Placing"]


@dataclass(frozen=True, slots=True)
class Placing:
    """A layout worked out on a tensor.

    Attributes:
        token: ``tp:S(0)``, ``R``; ``-`` where nobody decided.
        decided: Whether anybody did.
        mesh: The view it lives on, ``dense`` or ``expert``, where a pass said so.
        local_shape: What the rank holds; None where the mesh is not known.
        ranges: The same as a range of indices in every dim.
        local_bytes: Its bytes; those of the whole tensor where the mesh is not known.
        pieces: Of an uneven cut, the size on every rank of the axis; else empty.
    """

    token: str
    decided: bool
    mesh: str | None
    local_shape: tuple[int, ...] | None
    ranges: tuple[Range, ...] | None
    local_bytes: int
    pieces: tuple[int, ...]


class Placer:
    """Works layouts out for one rank; equal tensors with equal layouts once.

    Args:
        mesh: The mesh; None if it is not known.
        rank: The global rank.

    Raises:
        MeshError: The mesh has no such rank.
    """

    def __init__(self, mesh: MeshSpec | None, rank: int = 0) -> None:
        self._mesh = mesh
        self._rank = rank
        self._made: dict[tuple[TensorSpec, Layout | None, str | None], Placing] = {}
        if mesh is not None:
            mesh.coordinate(rank)

    def of(self, node: TensorNode) -> Placing:
        """What the node's layout, or that of a DTensor, comes to."""
        key = (node.spec, node.layout, node.mesh)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._work_out(*key)
        return found

    def _work_out(self, spec: TensorSpec, layout: Layout | None, mesh: str | None) -> Placing:
        if layout is not None and self._mesh is not None:
            view = self._mesh.view_of(layout)
            return _placed(spec, layout, str(layout), mesh, view.sizes, view.coordinate(self._rank))
        if layout is not None:
            return Placing(str(layout), True, mesh, None, None, spec.num_bytes, ())
        if spec.placed is not None:
            return _of_dtensor(spec, spec.placed)
        return Placing("-", False, mesh, None, None, spec.num_bytes, ())


def meshes_of_dtensors(graph: ModuleGraph) -> list[tuple[tuple[str, int], ...]]:
    """The meshes, as axes and sizes, that DTensors bring; none that is a part of another."""
    found: dict[tuple[tuple[str, int], ...], None] = {}
    for node in graph.nodes.values():
        if isinstance(node, TensorNode) and node.spec.placed:
            found[tuple((axis, size) for axis, size, _ in node.spec.placed)] = None
    return [mesh for mesh in found if not any({*mesh} < {*other} for other in found)]


def _of_dtensor(spec: TensorSpec, placed: tuple[tuple[str, int, str], ...]) -> Placing:
    """A DTensor brings its own mesh; a partial one has no layout, only a token."""
    token = ",".join(f"{axis}:{text}" for axis, _, text in placed if text != "R") or "R"
    if any(text.startswith("P") for _, _, text in placed):
        return Placing(token, True, None, None, None, spec.num_bytes, ())
    layout = Layout.parse({axis: text for axis, _, text in placed})
    sizes = {axis: size for axis, size, _ in placed}
    return _placed(spec, layout, token, None, sizes, dict.fromkeys(sizes, 0))


def _placed(
    spec: TensorSpec,
    layout: Layout,
    token: str,
    mesh: str | None,
    sizes: Mapping[str, int],
    coordinate: Mapping[str, int],
) -> Placing:
    ranges = index_range(spec.shape, layout, sizes, coordinate)
    local = tuple(end - start for start, end in ranges)
    elements = 1
    for size in local:
        elements *= size
    return Placing(
        token=token,
        decided=True,
        mesh=mesh,
        local_shape=local,
        ranges=ranges,
        local_bytes=elements * item_size(spec.dtype),
        pieces=_pieces(spec.shape, layout, sizes),
    )


def _pieces(shape: tuple[int, ...], layout: Layout, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The sizes of the first uneven cut."""
    if is_even(shape, layout, sizes):
        return ()
    left = list(shape)
    for axis, dim in layout.shards:
        pieces = per_rank_sizes(left[dim], sizes[axis])
        if len(set(pieces)) > 1:
            return tuple(pieces)
        left[dim] = pieces[0]
    return ()
