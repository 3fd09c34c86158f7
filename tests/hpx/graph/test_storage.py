from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpx.errors import InputError
from hpx.graph.storage import Storages

BASE = torch.zeros(64)


def name_of(number: int, name: str = "") -> str:
    return name or str(number)


def elements(view: torch.Tensor) -> set[int]:
    places = torch.arange(64).as_strided(view.shape, view.stride(), view.storage_offset())
    return set(places.flatten().tolist())


@st.composite
def pairs_of_views(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Two views of equal strides in one storage."""
    strides = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    views = []
    for _ in range(2):
        shape = [draw(st.integers(1, 3)) for _ in strides]
        offset = draw(st.integers(0, 9))
        views.append(BASE.as_strided(shape, strides, offset))
    return views[0], views[1]


def claim_both(first: torch.Tensor, second: torch.Tensor) -> int | None:
    """What the second tensor is told after the first got the number 7."""
    storages = Storages()
    assert storages.claim(7, first, (0, "a"), name_of) is None
    return storages.claim(8, second, (0, "b"), name_of)


@given(pairs_of_views())
def test_views_are_refused_exactly_if_they_share_elements(
    views: tuple[torch.Tensor, torch.Tensor],
) -> None:
    first, second = views
    if first.shape == second.shape and first.storage_offset() == second.storage_offset():
        assert claim_both(first, second) == 7
    elif elements(first) & elements(second):
        with pytest.raises(InputError, match=r"'b' .* overlaps a part of '7'"):
            claim_both(first, second)
    else:
        assert claim_both(first, second) is None


def test_tensors_of_their_own_memory_are_told_apart() -> None:
    assert claim_both(BASE, BASE.clone()) is None


def test_extents_are_compared_in_bytes() -> None:
    memory = torch.zeros(8, dtype=torch.uint8)
    assert claim_both(memory[:4], memory[4:].view(torch.float32)) is None


def test_one_memory_under_two_dtypes_is_an_overlap() -> None:
    with pytest.raises(InputError, match=r"bytes 0\.\.256 and 0\.\.256"):
        claim_both(BASE, BASE.view(torch.int32))


def test_tensors_without_elements_overlap_nothing() -> None:
    assert claim_both(BASE[:8], BASE[4:4]) is None
