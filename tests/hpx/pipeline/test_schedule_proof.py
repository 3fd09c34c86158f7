"""Of any passes: an order is found where there is one, and what is found is right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from hpx.errors import HpxError
from hpx.pipeline import Pass, Schedule
from tests.hpx.pipeline.toys import Order, order_of, toy

FACTS = ["f", "g"]
some_facts = st.sets(st.sampled_from(FACTS), max_size=1)


@st.composite
def toy_passes(draw: st.DrawFn, *, repeated: bool) -> list[Pass]:
    labels = list("abcde")[: draw(st.integers(0, 5))]
    made = []
    for name in labels:
        provides = draw(some_facts)
        made.append(
            toy(
                name,
                requires=draw(some_facts),
                provides=provides,
                invalidates=draw(some_facts) - provides,
                after=draw(st.sets(st.sampled_from(labels), max_size=1)) - {name},
            )
        )
    extra = draw(st.lists(st.sampled_from(made), max_size=2)) if made and repeated else []
    return draw(st.permutations([*made, *extra]))


def order_or_none(passes: Sequence[Pass], entry: Iterable[str], order: Order) -> Schedule | None:
    try:
        return order_of(passes, entry, order)
    except HpxError:
        return None


@given(toy_passes(repeated=False), st.sets(st.sampled_from(FACTS)))
def test_an_order_is_found_exactly_where_there_is_one(passes: list[Pass], entry: set[str]) -> None:
    possible = any(order_or_none(list(one), entry, "given") for one in permutations(passes))
    assert bool(order_or_none(passes, entry, "auto")) == possible


@given(toy_passes(repeated=True), st.sets(st.sampled_from(FACTS)))
def test_an_order_that_is_found_is_right_when_given(passes: list[Pass], entry: set[str]) -> None:
    found = order_or_none(passes, entry, "auto")
    sorted_passes = [step.pass_ for step in found.steps] if found else []
    again = order_of(sorted_passes, entry if found else FACTS, "given")
    assert [step.pass_ for step in again.steps] == sorted_passes
