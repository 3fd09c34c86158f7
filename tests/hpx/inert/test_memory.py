"""Tensors on shared memory, where somebody made it hard to tell them apart."""

from __future__ import annotations

import pytest

from hpx.errors import InputError, TooLargeError
from hpx.graph import claims
from hpx.inert.memory import Memory
from hpx.inert.values import Storage, Tensor


def column(number: int, columns: int) -> Tensor:
    """One column of a matrix of eight rows."""
    storage = Storage("0", "float32", 8 * columns, "cpu", 32 * columns)
    return Tensor(storage, number, (8,), (columns,), False, "float32")


def claim_columns(columns: int) -> list[int | None]:
    found = Memory()
    names = [f"c{number}" for number in range(columns)]
    return [
        found.claim(number, column(number, columns), (-1, name), lambda *place: str(place))
        for number, name in enumerate(names)
    ]


def test_columns_of_one_matrix_are_apart() -> None:
    assert claim_columns(6) == [None] * 6


def test_too_many_tensors_in_between_each_other_are_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claims, "_MOST_COMPARED", 20)
    with pytest.raises(TooLargeError, match="lie in between each other"):
        claim_columns(20)


def test_a_view_that_overlaps_itself_is_compared_in_bounded_time() -> None:
    found = Memory()
    size = 1 << 40
    storage = Storage("0", "uint8", 4 * size, "cpu", 4 * size)
    first = Tensor(storage, 0, (size, size, size), (1, 1, 1), False, "uint8")
    second = Tensor(storage, 1, (size, size, size), (1, 1, 1), False, "uint8")
    found.claim(0, first, (-1, "a"), lambda *_: "a")
    with pytest.raises(InputError, match="overlaps a part"):
        found.claim(1, second, (-1, "b"), lambda *_: "b")
