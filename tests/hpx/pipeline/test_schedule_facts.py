"""Facts of a pipeline: at entry, provided, missing, and taken away again."""

from __future__ import annotations

import pytest

from hpx.errors import ManyErrors, PipelineError
from hpx.pipeline import as_passes, schedule
from tests.hpx.pipeline.toys import (
    REVERSE,
    SORT,
    SPLIT,
    UNIQUE,
    Order,
    names,
    order_of,
    refusal,
    toy,
)


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
    entry: list[str] | None, order: Order
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
