"""The order of a pipeline: from declarations, near to the list, with reasons."""

from __future__ import annotations

import subprocess
import sys
from itertools import permutations

import pytest

from hpx.pipeline import Pass
from tests.hpx.pipeline.toys import SORT, SPLIT, UNIQUE, names, order_of, toy


def test_a_pipeline_of_no_pass_has_no_step() -> None:
    found = order_of([], ["words"])
    assert (found.steps, found.facts_at_entry) == ((), frozenset({"words"}))


@pytest.mark.parametrize("listed", list(permutations([SPLIT, SORT, UNIQUE])))
def test_a_provider_runs_before_what_requires_it_however_they_are_listed(
    listed: tuple[Pass, ...],
) -> None:
    assert names(order_of(listed)) == ["split", "sort", "unique"]


def test_passes_that_nothing_orders_stay_as_they_are_listed() -> None:
    listed = [toy(name) for name in "dacb"]
    assert names(order_of(listed)) == ["d", "a", "c", "b"]


def test_a_pass_moves_no_further_than_its_dependencies_ask() -> None:
    assert names(order_of([toy("a"), SORT, toy("b"), SPLIT, toy("c")])) == [
        "a",
        "b",
        "split",
        "sort",
        "c",
    ]


def test_before_and_after_order_passes_that_are_listed() -> None:
    listed = [toy("a", after=["b", "not-listed"]), toy("b"), toy("c", before=["b"])]
    assert names(order_of(listed)) == ["c", "b", "a"]


def test_every_step_says_why_it_runs_no_earlier() -> None:
    found = order_of([UNIQUE, SORT, SPLIT, toy("a", before="b"), toy("b", after="split")])
    assert found.to_json() == [
        {"step": 1, "pass": "split", "because": []},
        {"step": 2, "pass": "sort", "because": ["split provides words"]},
        {"step": 3, "pass": "unique", "because": ["sort provides sorted"]},
        {"step": 4, "pass": "a", "because": []},
        {
            "step": 5,
            "pass": "b",
            "because": ["b asks to run after split", "a asks to run before b"],
        },
    ]


def test_the_schedule_keeps_its_edges_for_pictures() -> None:
    (edge,) = order_of([SORT, SPLIT]).edges
    assert (edge.first, edge.then, edge.why) == ("split", "sort", "split provides words")


def test_every_provider_of_a_fact_runs_before_what_requires_it() -> None:
    assert names(order_of([SORT, SPLIT, toy("parse", provides=["words"])])) == [
        "split",
        "parse",
        "sort",
    ]


def test_a_pass_listed_twice_is_two_steps_in_their_listed_order() -> None:
    first, second = toy("trim", writes=["text"]), toy("trim", writes=["text"])
    found = order_of([first, toy("a"), second])
    assert names(found) == ["trim#1", "a", "trim#2"]
    assert found.steps[0].pass_ is first
    assert found.steps[2].pass_ is second
    assert found.steps[2].because == ("trim#1 is listed first",)
    assert found.warnings == ()


def test_a_second_instance_of_a_provider_stays_behind_what_it_is_listed_behind() -> None:
    assert names(order_of([SPLIT, SORT, SPLIT, SORT])) == ["split#1", "sort#1", "split#2", "sort#2"]


def test_two_that_write_one_key_with_no_order_between_them_are_reported() -> None:
    a, b = toy("a", writes=["layout", "structure"]), toy("b", writes=["structure", "heads"])
    (warning,) = order_of([a, toy("c", writes=["other"]), b]).warnings
    assert warning.startswith("a and b both write structure and nothing orders them")


def test_two_that_write_one_key_are_ordered_through_a_third() -> None:
    a = toy("a", writes=["layout"], before=["c"])
    b = toy("b", writes=["layout"], after=["c"])
    assert order_of([a, b, toy("c")]).warnings == ()


def test_scheduling_needs_no_torch_and_listing_no_networkx() -> None:
    program = (
        "import sys, hpx.pipeline; from hpx.pipeline import registry, schedule\n"
        "registry.names(); loaded = 'networkx' in sys.modules\n"
        "schedule([], []); print(loaded, 'torch' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["False", "False"]
