"""The order of packed dims: forwards, pulled, inverted, and through the split over ranks (F5)."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpx.errors import LayoutError
from hpx.layout import Layout, index_range
from hpx.lineage import (
    Lineage,
    Permute,
    Source,
    Stack,
    describe,
    invert,
    lineage_from_json,
    lineage_to_json,
    pull,
    shape_of,
)
from hpx.order import Order
from hpx.runtime.gather import part_at
from hpx.runtime.proof import put_together

NAMES = ("q", "k", "v", "gate", "up")


@st.composite
def orders(draw: st.DrawFn, dim: int) -> Order:
    pieces = draw(st.sampled_from([1, 2, 3, 4]))
    shares = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    parts = tuple((NAMES[i], pieces * share) for i, share in enumerate(shares))
    return Order(dim, parts, pieces)


@st.composite
def reordered(draw: st.DrawFn) -> tuple[Lineage, dict[int, torch.Tensor]]:
    """A weight, a bias, a Conv1D or stacked experts, with distinct values."""
    ndim = draw(st.integers(1, 3))
    dim = draw(st.integers(0, ndim - 1))
    order = draw(orders(dim))
    shape = [draw(st.integers(1, 3)) for _ in range(ndim)]
    shape[dim] = sum(size for _, size in order.parts)
    experts = draw(st.integers(0, 3))
    count = max(1, experts)
    numel = int(torch.tensor(shape).prod())
    tensors = {i: torch.arange(i * numel, (i + 1) * numel).reshape(shape) for i in range(count)}
    if not experts:
        return Permute(Source(0), order), tensors
    at = draw(st.integers(0, ndim))
    stack = Stack(tuple(map(Source, range(count))), at)
    return Permute(stack, order._replace(dim=dim if dim < at else dim + 1)), tensors


def pulled(
    lineage: Lineage, tensors: dict[int, torch.Tensor], ranges: list[tuple[int, int]]
) -> torch.Tensor:
    out = torch.full([b - a for a, b in ranges], -1)
    for node, source, dest in pull(lineage, ranges):
        target = out[tuple(slice(*r) for r in dest)]
        assert bool((target == -1).all())
        target.copy_(tensors[node][tuple(slice(*r) for r in source)].reshape(target.shape))
    assert bool((out != -1).all())
    return out


@given(reordered())
def test_pulling_all_of_it_gives_what_the_straightforward_way_gives(
    case: tuple[Lineage, dict[int, torch.Tensor]],
) -> None:
    lineage, tensors = case
    whole = put_together(lineage, tensors)
    assert tuple(whole.shape) == shape_of(lineage, lambda node: tuple(tensors[node].shape))
    assert torch.equal(pulled(lineage, tensors, [(0, n) for n in whole.shape]), whole)


@given(reordered(), st.data())
def test_pulling_any_range_gives_that_range(
    case: tuple[Lineage, dict[int, torch.Tensor]], data: st.DataObject
) -> None:
    lineage, tensors = case
    whole = put_together(lineage, tensors)
    ranges: list[tuple[int, int]] = []
    for size in whole.shape:
        start = data.draw(st.integers(0, size - 1))
        ranges.append((start, data.draw(st.integers(start + 1, size))))
    expected = whole[tuple(slice(*r) for r in ranges)]
    assert torch.equal(pulled(lineage, tensors, ranges), expected)


@given(reordered())
def test_f5_what_is_gathered_of_all_ranks_is_every_original_bit_for_bit(
    case: tuple[Lineage, dict[int, torch.Tensor]],
) -> None:
    lineage, tensors = case
    assert isinstance(lineage, Permute)
    order = lineage.order
    shape = shape_of(lineage, lambda node: tuple(tensors[node].shape))
    layout, sizes = Layout((("tp", order.dim),)), {"tp": order.pieces}
    split = [
        pulled(lineage, tensors, list(index_range(shape, layout, sizes, {"tp": rank})))
        for rank in range(order.pieces)
    ]
    gathered = torch.cat(split, order.dim)
    places = invert(lineage, lambda node: tuple(tensors[node].shape))
    assert {place.node for place in places} == set(tensors)
    for place in places:
        assert torch.equal(part_at(gathered, place.index), tensors[place.node])


@given(reordered())
def test_every_rank_holds_its_share_of_every_part(
    case: tuple[Lineage, dict[int, torch.Tensor]],
) -> None:
    lineage, tensors = case
    assert isinstance(lineage, Permute)
    dim, parts, pieces = lineage.order
    plain = put_together(lineage.part, tensors)
    piece = put_together(lineage, tensors).chunk(pieces, dim)[pieces - 1]
    start = 0
    for part in torch.split(plain, [size for _, size in parts], dim):
        share = part.chunk(pieces, dim)[pieces - 1]
        got = piece.narrow(dim, start, share.shape[dim])
        assert torch.equal(got, share)
        start += share.shape[dim]


@given(reordered())
def test_a_permutation_survives_json(case: tuple[Lineage, dict[int, torch.Tensor]]) -> None:
    lineage, _ = case
    assert lineage_from_json(json.loads(json.dumps(lineage_to_json(lineage)))) == lineage


def test_a_permutation_of_a_permutation_is_inverted_too() -> None:
    inner = Permute(Source(0), Order(0, (("a", 4), ("b", 8)), 4))
    outer = Permute(inner, Order(0, (("c", 6), ("d", 6)), 2))
    tensors = {0: torch.arange(12)}
    whole = put_together(outer, tensors)
    assert torch.equal(pulled(outer, tensors, [(0, 12)]), whole)
    (place,) = invert(outer, lambda node: (12,))
    assert torch.equal(part_at(whole, place.index), tensors[0])


def test_stacked_tensors_that_are_reordered_among_themselves_come_back() -> None:
    lineage = Permute(
        Stack((Source(0), Source(1), Source(2), Source(3))), Order(0, (("a", 2), ("b", 2)), 2)
    )
    tensors = {i: torch.full((3,), i) for i in range(4)}
    whole = put_together(lineage, tensors)
    assert whole[:, 0].tolist() == [0, 2, 1, 3]
    for place in invert(lineage, lambda node: (3,)):
        assert torch.equal(part_at(whole, place.index), tensors[place.node])


def test_a_permutation_reads_as_its_parts_and_pieces() -> None:
    lineage = Permute(Source(3), Order(0, (("q", 64), ("k", 16), ("v", 16)), 2))
    assert describe(lineage, lambda node: f"w{node}") == (
        "permute(w3, dim 0: q 64, k 16, v 16, each in 2)"
    )


def test_neighbouring_pieces_are_one_range_on_the_way_back() -> None:
    (place,) = invert(Permute(Source(0), Order(0, (("a", 8),), 4)), lambda node: (8, 2))
    assert place.index == ((0, 8), (0, 2))


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (Order(0, (("a", 4), ("b", 2)), 4), "part b cannot be cut in 4"),
        (Order(0, (("a", 4), ("b", 4)), 2), "has 8 indices on dim 0"),
        (Order(2, (("a", 4), ("b", 2)), 2), "on dim 2"),
    ],
)
def test_an_order_that_a_tensor_cannot_have_is_refused(order: Order, why: str) -> None:
    with pytest.raises(LayoutError, match=why):
        shape_of(Permute(Source(0), order), lambda node: (6, 3))


def test_a_large_order_is_kept_as_its_parts_and_not_as_indices() -> None:
    lineage = Permute(Source(0), Order(0, (("q", 1 << 20), ("k", 1 << 18), ("v", 1 << 18)), 8))
    assert len(json.dumps(lineage_to_json(lineage))) < 200
    assert len(pull(lineage, [(0, (1 << 20) * 3 // 16), (0, 1)])) == 3
