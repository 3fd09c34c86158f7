from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpx.errors import UsageError
from hpx.graph import ModuleGraph
from hpx.pipeline.context import Problem
from hpx.render.conditions import failing, parse_conditions
from hpx.render.subject import Subject

if TYPE_CHECKING:
    from tests.hpx.render.conftest import TreeOf


def found(graph: ModuleGraph, text: str, *problems: Problem) -> list[str]:
    return failing(Subject(graph, "test", problems=problems), parse_conditions(text))


@pytest.fixture
def half(tree: TreeOf) -> ModuleGraph:
    """Three of four parameters are cut; the whole one has a tenth of the bytes."""
    shapes = {"a.w": (30,), "b.w": (30,), "c.w": (30,), "d.w": (10,)}
    cut = dict.fromkeys(("a.w", "b.w", "c.w"), "tp:S(0)")
    return tree(shapes, layouts={**cut, "d.w": "R"})


def test_a_condition_that_nothing_meets_is_fulfilled(half: ModuleGraph) -> None:
    assert found(half, "unset,conflict") == []


def test_a_condition_says_how_many_how_large_and_which(half: ModuleGraph) -> None:
    assert found(half, "unsharded") == [
        "unsharded: 1 parameter, 20 bytes, 10.0% of the bytes: d.w",
    ]


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("unsharded>9%", True),
        ("unsharded>10%", False),
        ("unsharded>0", True),
        ("replicated>1", False),
    ],
)
def test_limits_are_counts_or_shares_of_the_bytes(
    half: ModuleGraph, text: str, fails: bool
) -> None:
    assert bool(found(half, text)) is fails


def test_every_condition_that_fails_is_told(half: ModuleGraph) -> None:
    assert [line.split(":")[0] for line in found(half, "replicated, unset, unsharded>5%")] == [
        "replicated",
        "unsharded>5%",
    ]


def test_a_conflict_is_what_an_error_of_the_run_names(half: ModuleGraph) -> None:
    problem = Problem("error", (half.get("a.w").id,), "wrong", "")
    assert found(half, "conflict", problem)[0].startswith("conflict: 1 parameter")


def test_a_deviation_can_be_asked_for(experts: ModuleGraph) -> None:
    [line] = found(experts, "deviation")
    assert line.endswith("layers.30.experts.137.w.weight")


def test_conditions_on_layouts_are_refused_where_none_are_known(tree: TreeOf) -> None:
    with pytest.raises(UsageError, match="--fail-on unset asks for layouts"):
        found(tree({"a.w": (2,)}), "unset")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unste", "did you mean unset"),
        ("unsharded>x%", "conditions such as"),
        ("unsharded>5%,", "--fail-on has ''"),
        ("", "--fail-on has ''"),
        ("unsharded<5%", "conditions such as"),
    ],
)
def test_what_is_no_condition_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_conditions(text)
