from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from hpx.ranges import compact_ids, expand_ids, fold_names, number_text, pack_ids

IDS = st.lists(st.integers(-50, 400), max_size=40)
PARTS = st.sampled_from(["layers", "w", "w1", "0a", "01", "x-2", ""])


def expand_name(name: str) -> set[str]:
    """All names that a folded name stands for."""
    choices = []
    for part in name.split("."):
        if part.startswith("{"):
            numbers: list[str] = []
            for run in part[1:-1].split(","):
                low, _, high = run.partition("-")
                numbers += map(str, range(int(low), int(high or low) + 1))
            choices.append(numbers)
        else:
            choices.append([part])
    return {".".join(parts) for parts in itertools.product(*choices)}


@given(IDS)
def test_packed_ids_expand_to_the_same_list(ids: list[int]) -> None:
    assert expand_ids(pack_ids(ids)) == ids


@given(IDS)
def test_compact_ids_are_the_same_sequence(ids: list[int]) -> None:
    assert list(compact_ids(ids)) == ids


@given(st.integers(0, 100), st.integers(3, 50), st.integers(1, 9))
def test_a_run_of_one_step_is_one_entry(start: int, count: int, step: int) -> None:
    ids = range(start, start + count * step, step)
    assert pack_ids(ids) == [[start, count, step]]


@given(st.lists(st.integers(0, 60), max_size=30))
def test_number_text_names_exactly_the_numbers(numbers: list[int]) -> None:
    text = number_text(numbers)
    assert expand_name(f"{{{text}}}") == set(map(str, numbers)) if numbers else text == ""


@given(
    st.lists(
        st.tuples(PARTS, st.integers(0, 4), PARTS, st.integers(0, 4)).map(
            lambda parts: ".".join(map(str, parts))
        ),
        unique=True,
        max_size=25,
    )
)
def test_folded_names_stand_for_exactly_the_names_that_were_given(names: list[str]) -> None:
    folded = [expand_name(name) for name in fold_names(names)]
    assert set().union(*folded) == set(names)
    assert sum(map(len, folded)) == len(names)


def test_a_grid_with_a_hole_is_not_folded_over_the_hole() -> None:
    names = ["a.0.b.0", "a.0.b.1", "a.1.b.0"]
    assert fold_names(names) == ["a.0.b.{0-1}", "a.1.b.0"]


def test_a_number_inside_a_part_is_part_of_the_name() -> None:
    assert fold_names(["l.0.w1", "l.0.w2"]) == ["l.0.w1", "l.0.w2"]


def test_a_part_with_a_leading_zero_is_a_name() -> None:
    assert fold_names(["l.00", "l.01"]) == ["l.00", "l.01"]
