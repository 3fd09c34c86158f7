"""Pipelines that have no order, and orders that are given."""

from __future__ import annotations

import pytest

from hpx.errors import PipelineError
from hpx.pipeline import schedule
from tests.hpx.pipeline.toys import REVERSE, SORT, SPLIT, UNIQUE, names, order_of, refusal, toy


def test_a_cycle_is_printed_as_a_chain_with_its_reasons() -> None:
    listed = [
        toy("a", requires=["f"], provides=["g"]),
        toy("b", requires=["g"], provides=["f"]),
        toy("c"),
    ]
    assert refusal(listed) == (
        "these passes have no order: a must run before b (a provides g); "
        "b must run before a (b provides f). Fix: drop one of them, or mend what they declare"
    )


def test_the_shortest_cycle_is_printed() -> None:
    listed = [
        toy("a", before=["b", "d"]),
        toy("b", before=["c"]),
        toy("c", before=["a"]),
        toy("d", before=["a"]),
    ]
    message = refusal(listed)
    assert "a must run before d (a asks to run before d); d must run before a" in message
    assert "b must" not in message


def test_an_invalidator_with_no_place_is_a_cycle_that_tells_why() -> None:
    stuck = toy("stuck", invalidates=["sorted"], after=["sort"], before=["unique"])
    assert refusal([SORT, stuck, UNIQUE], ["words"]).startswith(
        "these passes have no order: sort must run before stuck (stuck asks to run after sort); "
        "stuck must run before sort (stuck invalidates sorted, which sort provides for unique)"
    )


def test_two_that_use_up_one_fact_have_no_order() -> None:
    listed = [
        SORT,
        toy("a", requires=["sorted"], invalidates=["sorted"]),
        toy("b", requires=["sorted"], invalidates=["sorted"]),
    ]
    assert "invalidates sorted" in refusal(listed, ["words"])


def test_passes_that_conflict_are_refused() -> None:
    assert refusal([toy("a"), toy("b", conflicts=["a"])]) == (
        "b and a cannot be in one pipeline: b declares a conflict with a. Fix: drop one: !b or !a"
    )


def test_a_conflict_with_what_is_not_listed_is_none() -> None:
    assert names(order_of([toy("b", conflicts=["a"])])) == ["b"]


def test_the_given_order_is_kept_where_it_holds() -> None:
    assert names(order_of([toy("z"), SPLIT, toy("a"), SORT], order="given")) == [
        "z",
        "split",
        "a",
        "sort",
    ]


def test_a_wrong_given_order_names_every_wrong_pair_and_why() -> None:
    message = refusal([UNIQUE, SORT, SPLIT], order="given")
    assert message.startswith(
        "the given order is wrong: sort must run before unique (sort provides sorted); "
        "split must run before sort (split provides words)"
    )
    assert "order auto" in message


def test_a_given_order_that_loses_a_fact_names_who_invalidates_it() -> None:
    assert refusal([SORT, REVERSE, UNIQUE], ["words"], "given") == (
        "the given order is wrong: unique requires sorted, which reverse invalidates before it. "
        "Fix: list reverse after unique, or a pass that provides sorted between them"
    )


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"no order 'atuo'.*did you mean auto\?"):
        schedule([], [], "atuo")  # type: ignore[arg-type]


def test_a_given_order_is_an_order_between_all() -> None:
    listed = [toy("a", writes=["layout"]), toy("b", writes=["layout"])]
    assert order_of(listed, order="given").warnings == ()
