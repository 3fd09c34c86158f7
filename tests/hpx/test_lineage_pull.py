"""Pulling one rank's part out of a lineage, and writing a derived tensor back to its sources."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpx.errors import LayoutError
from hpx.layout import Layout, Range, index_range, local_shape
from hpx.lineage import Lineage, Piece, Place, Source, Stack, invert, pull, shape_of, sources

AXES = ("dp", "tp", "ep")


class Case(NamedTuple):
    """An expression with distinct values in its sources."""

    lineage: Lineage
    tensors: dict[int, torch.Tensor]

    def shape(self, node: int) -> tuple[int, ...]:
        return tuple(self.tensors[node].shape)

    def apply(self) -> torch.Tensor:
        return straightforward(self.lineage, self.tensors)


def straightforward(lineage: Lineage, tensors: dict[int, torch.Tensor]) -> torch.Tensor:
    if isinstance(lineage, Source):
        return tensors[lineage.node]
    assert isinstance(lineage, Stack)
    return torch.stack([straightforward(part, tensors) for part in lineage.parts], lineage.dim)


def assembled(pieces: Sequence[Piece], case: Case, shape: Sequence[int]) -> torch.Tensor:
    """The pieces put together, every element exactly once."""
    out = torch.full(tuple(shape), -1, dtype=torch.int64)
    for node, source, dest in pieces:
        target = out[slices(dest)]
        assert bool((target == -1).all())
        target.copy_(case.tensors[node][slices(source)].reshape(target.shape))
    assert bool((out != -1).all())
    return out


def slices(ranges: Sequence[Range]) -> tuple[slice, ...]:
    return tuple(slice(start, end) for start, end in ranges)


def part_at(place: Place, whole: torch.Tensor) -> torch.Tensor:
    return whole[tuple(at if isinstance(at, int) else slice(*at) for at in place.index)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Expressions made from the outside in, so that parts side by side are stacked differently."""
    tensors: dict[int, torch.Tensor] = {}
    numbers = iter(draw(st.permutations(range(125))))

    def expression(shape: tuple[int, ...], depth: int) -> Lineage:
        dims = [dim for dim, size in enumerate(shape) if size]
        if depth and dims and draw(st.booleans()):
            dim = draw(st.sampled_from(dims))
            rest = shape[:dim] + shape[dim + 1 :]
            return Stack(tuple(expression(rest, depth - 1) for _ in range(shape[dim])), dim)
        node = next(numbers)
        values = sum(tensor.numel() for tensor in tensors.values()) + torch.arange(625)
        tensors[node] = values[: math.prod(shape)].reshape(shape)
        return Source(node)

    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    return Case(expression(shape, 3), tensors)


@st.composite
def layouts(draw: st.DrawFn, ndim: int) -> Layout:
    axes = draw(st.permutations(AXES)) if ndim else []
    cuts = axes[: draw(st.integers(0, len(axes)))]
    return Layout(tuple((axis, draw(st.integers(0, ndim - 1))) for axis in cuts))


@given(st.data(), cases(), st.lists(st.integers(1, 4), min_size=3, max_size=3))
def test_what_every_rank_pulls_is_its_slice_of_the_stacked_tensor(
    data: st.DataObject, case: Case, counts: list[int]
) -> None:
    whole = case.apply()
    layout = data.draw(layouts(whole.ndim))
    sizes = dict(zip(AXES, counts, strict=True))
    for position in itertools.product(*(range(size) for size in counts)):
        place = dict(zip(AXES, position, strict=True))
        ranges = index_range(whole.shape, layout, sizes, place)
        local = assembled(
            pull(case.lineage, ranges), case, local_shape(whole.shape, layout, sizes, place)
        )
        assert torch.equal(local, whole[slices(ranges)])


@given(cases())
def test_the_whole_range_pulls_every_source_whole_and_once(case: Case) -> None:
    whole = case.apply()
    pieces = pull(case.lineage, [(0, size) for size in whole.shape])
    if whole.numel():
        assert [piece.node for piece in pieces] == list(sources(case.lineage))
        assert all(
            piece.source == tuple((0, size) for size in case.shape(piece.node)) for piece in pieces
        )
    else:
        assert pieces == []


@given(cases())
def test_a_derived_tensor_writes_back_to_exactly_its_sources(case: Case) -> None:
    whole = case.apply()
    places = invert(case.lineage, case.shape)
    assert [place.node for place in places] == list(sources(case.lineage))
    for place in places:
        assert torch.equal(part_at(place, whole), case.tensors[place.node])


@given(cases())
def test_the_shape_without_data_is_that_of_the_stacked_tensor(case: Case) -> None:
    assert shape_of(case.lineage, case.shape) == tuple(case.apply().shape)


def test_an_original_tensor_pulls_the_range_itself() -> None:
    assert pull(Source(3), [(2, 4), (0, 5)]) == [Piece(3, ((2, 4), (0, 5)), ((0, 2), (0, 5)))]


def test_a_scalar_pulls_as_one_piece_without_ranges() -> None:
    assert pull(Source(3), []) == [Piece(3, (), ())]


def test_an_expert_rank_needs_no_tensor_of_the_others() -> None:
    experts = Stack(tuple(Source(10 + slot) for slot in range(8)))
    assert [piece.node for piece in pull(experts, [(4, 6), (0, 3)])] == [14, 15]


def test_stacks_in_stacks_name_both_slots() -> None:
    inner = [Stack((Source(2 * i), Source(2 * i + 1)), dim=1) for i in range(3)]
    nested = Stack(tuple(inner))
    assert pull(nested, [(2, 3), (1, 4), (1, 2)]) == [Piece(5, ((1, 4),), ((0, 1), (0, 3), (0, 1)))]
    assert invert(nested, lambda node: (7,))[5] == Place(5, (2, (0, 7), 1))


def test_parts_of_one_shape_may_be_stacked_differently_inside() -> None:
    tensors = {node: torch.arange(2) + 2 * node for node in range(4)}
    rows, columns = Stack((Source(0), Source(1))), Stack((Source(2), Source(3)), dim=1)
    case = Case(Stack((rows, columns), dim=1), tensors)
    assert torch.equal(
        assembled(pull(case.lineage, [(1, 2), (0, 2), (0, 2)]), case, (1, 2, 2)), case.apply()[1:]
    )
    for place in invert(case.lineage, case.shape):
        assert torch.equal(part_at(place, case.apply()), tensors[place.node])


@pytest.mark.parametrize("ranges", [[(0, 3), (0, 4)], [(-1, 2), (0, 4)]])
def test_a_range_outside_a_stack_is_an_error(ranges: list[Range]) -> None:
    with pytest.raises(LayoutError, match="outside the 2 tensors stacked on dim 0"):
        pull(Stack((Source(0), Source(1))), ranges)


def test_fewer_ranges_than_dims_are_an_error() -> None:
    with pytest.raises(LayoutError, match="a stack on dim 2 has 2 dims here"):
        pull(Stack((Source(0), Source(1)), dim=2), [(0, 4), (0, 4)])


def test_lineages_do_not_import_torch() -> None:
    code = "import sys, hpx.lineage; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
