"""The order of a pipeline: from declarations, near to the list, with reasons and a proof."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpx.errors import HpxError, ManyErrors, PipelineError
from hpx.pipeline import Fact, Pass, PassInfo, Schedule, as_passes, schedule


def fact(name: str) -> Fact:
    return Fact(name, lambda graph, request: [])


def toy(
    name: str,
    *,
    requires: Iterable[str] = (),
    provides: Iterable[str] = (),
    invalidates: Iterable[str] = (),
    before: Iterable[str] = (),
    after: Iterable[str] = (),
    conflicts: Iterable[str] = (),
    writes: Iterable[str] = (),
) -> Pass:
    """A pass that declares things and does nothing; facts are given by name."""
    declared = PassInfo(
        name=name,
        requires=map(fact, requires),
        provides=map(fact, provides),
        invalidates=map(fact, invalidates),
        before=before,
        after=after,
        conflicts=conflicts,
        writes=writes,
    )

    @dataclass(frozen=True, kw_only=True)
    class Toy(Pass):
        info = declared

        def run(self, graph: object, ctx: object) -> None: ...

    return Toy()


def order_of(
    passes: Sequence[Pass],
    entry_facts: Iterable[str] | None = (),
    order: Literal["auto", "given"] = "auto",
) -> Schedule:
    entry = None if entry_facts is None else list(entry_facts)
    return schedule(passes, entry, order, providers_of=lambda name: [])


def names(found: Schedule) -> list[str]:
    return [step.name for step in found.steps]


def refusal(
    passes: Sequence[Pass],
    entry_facts: Iterable[str] | None = (),
    order: Literal["auto", "given"] = "auto",
) -> str:
    with pytest.raises(PipelineError) as error:
        order_of(passes, entry_facts, order)
    return str(error.value)


SPLIT = toy("split", provides=["words"])
SORT = toy("sort", requires=["words"], provides=["sorted"])
UNIQUE = toy("unique", requires=["sorted"])
REVERSE = toy("reverse", invalidates=["sorted"])


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


def test_a_fact_that_holds_at_entry_satisfies_a_requirement() -> None:
    found = order_of([SORT], ["words"])
    assert found.steps[0].because == ("words holds at entry",)


def test_a_listed_provider_runs_first_even_where_the_fact_holds_at_entry() -> None:
    assert names(order_of([SORT, SPLIT], ["words"])) == ["split", "sort"]


def test_facts_are_replayed_with_what_each_step_provides_and_invalidates() -> None:
    found = order_of([SORT, UNIQUE, REVERSE], ["words"])
    assert found.facts_at_entry == frozenset({"words"})
    assert found.facts_after == (
        frozenset({"words", "sorted"}),
        frozenset({"words", "sorted"}),
        frozenset({"words"}),
    )


def test_a_missing_fact_names_the_pass_the_fact_and_who_provides_it() -> None:
    with pytest.raises(PipelineError) as error:
        schedule([SORT], [], providers_of=lambda name: [f"make-{name}", "split"])
    assert str(error.value) == (
        "sort requires words: it does not hold at entry and no listed pass provides it. "
        "Fix: add make-words or split, which provides it"
    )


def test_a_missing_fact_that_no_registered_pass_provides_says_so() -> None:
    assert "no registered pass provides it" in refusal([SORT])


def test_several_missing_facts_are_told_together() -> None:
    with pytest.raises(ManyErrors) as error:
        order_of([SORT, UNIQUE, toy("count", requires=["numbers"]), REVERSE])
    assert [finding.what for finding in error.value.findings] == [
        "sort requires words",
        "count requires numbers",
    ]


@pytest.mark.parametrize("order", ["auto", "given"])
@pytest.mark.parametrize("entry", [None, ["sorted"]])
def test_a_fact_that_a_listed_pass_takes_away_for_good_is_missing(
    entry: list[str] | None, order: Literal["auto", "given"]
) -> None:
    early = toy("reverse", invalidates=["sorted"], before=["unique"])
    with pytest.raises(PipelineError) as error:
        schedule([early, UNIQUE], entry, order, providers_of=lambda name: ["sort"])
    assert str(error.value) == (
        "unique requires sorted: reverse runs before it and invalidates it, and no listed pass "
        "provides it again. Fix: add sort, which provides it"
    )


def test_facts_that_shard_params_takes_away_name_the_passes_that_provide_them_again() -> None:
    with pytest.raises(ManyErrors) as error:
        schedule(as_passes("shard-params, localize"), None)
    assert str(error.value).startswith("the pipeline lacks 2 required facts")
    assert [finding.fix for finding in error.value.findings] == [
        "add update-heads, which provides it",
        "add build-source-info, which provides it",
    ]


def test_a_pass_that_requires_what_it_provides_does_not_satisfy_itself() -> None:
    assert "keep requires words" in refusal([toy("keep", requires=["words"], provides=["words"])])


def test_without_a_model_a_fact_that_nobody_provides_is_assumed() -> None:
    found = order_of([UNIQUE, SORT], None)
    assert found.assumed == ("words",)
    assert found.steps[0].because == ("words is assumed at entry",)
    assert found.facts_at_entry == frozenset({"words"})


def test_with_a_model_nothing_is_assumed() -> None:
    assert order_of([SORT], ["words"]).assumed == ()


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (["sort", "unique", "reverse"], ["sort", "unique", "reverse"]),
        (["reverse", "sort", "unique"], ["reverse", "sort", "unique"]),
        (["unique", "sort", "reverse"], ["sort", "unique", "reverse"]),
        (["reverse", "unique", "sort"], ["reverse", "sort", "unique"]),
        (["unique", "reverse", "sort"], ["sort", "unique", "reverse"]),
        (["sort", "reverse", "unique"], ["reverse", "sort", "unique"]),
    ],
)
def test_an_invalidator_never_stands_between_provider_and_requirer(
    listed: list[str], expected: list[str]
) -> None:
    by_name = {"sort": SORT, "unique": UNIQUE, "reverse": REVERSE}
    assert names(order_of([by_name[name] for name in listed], ["words"])) == expected


def test_an_invalidator_goes_the_other_way_where_the_preferred_one_is_closed() -> None:
    late = toy("reverse", invalidates=["sorted"], after=["sort"])
    assert names(order_of([late, SORT, UNIQUE], ["words"])) == ["sort", "unique", "reverse"]


def test_an_invalidator_of_an_entry_fact_runs_after_what_requires_it() -> None:
    found = order_of([REVERSE, UNIQUE], ["sorted"])
    assert names(found) == ["unique", "reverse"]
    assert found.steps[1].because == ("reverse invalidates sorted, which unique requires",)


def test_a_fact_may_be_provided_again_after_it_was_invalidated() -> None:
    assert names(order_of([SORT, UNIQUE, REVERSE, SORT, UNIQUE], ["words"])) == [
        "sort#1",
        "unique#1",
        "reverse",
        "sort#2",
        "unique#2",
    ]


def test_an_invalidator_of_two_facts_goes_where_both_allow_it() -> None:
    # For f alone x would go before p, as it is listed; for g it must come after s, thus after r.
    listed = [
        toy("x", invalidates=["f", "g"]),
        toy("p", provides=["f"]),
        toy("r", requires=["f"], before=["q"]),
        toy("q", provides=["g"], before=["s"]),
        toy("s", requires=["g"]),
        toy("y", after=["q"], before=["x"]),
    ]
    assert names(order_of(listed)) == ["p", "r", "q", "s", "y", "x"]


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


def test_two_that_write_one_key_with_no_order_between_them_are_reported() -> None:
    a, b = toy("a", writes=["layout", "structure"]), toy("b", writes=["structure", "heads"])
    (warning,) = order_of([a, toy("c", writes=["other"]), b]).warnings
    assert warning.startswith("a and b both write structure and nothing orders them")


def test_two_that_write_one_key_are_ordered_through_a_third() -> None:
    a = toy("a", writes=["layout"], before=["c"])
    b = toy("b", writes=["layout"], after=["c"])
    assert order_of([a, b, toy("c")]).warnings == ()


def test_a_given_order_is_an_order_between_all() -> None:
    listed = [toy("a", writes=["layout"]), toy("b", writes=["layout"])]
    assert order_of(listed, order="given").warnings == ()


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


def order_or_none(
    passes: Sequence[Pass], entry: Iterable[str], order: Literal["auto", "given"]
) -> Schedule | None:
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
