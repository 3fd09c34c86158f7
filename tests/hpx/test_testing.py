from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest

from hpx.errors import ContractError
from hpx.facts import SHARDED
from hpx.graph import ModuleGraph
from hpx.pipeline import Pass, PassInfo
from hpx.pipeline.context import PassContext
from hpx.testing import (
    assert_idempotent,
    assert_pass,
    assert_same_graph,
    check_contract,
    graph_of,
    outline,
)

BEFORE = graph_of({"a.weight": (4, 2), "b.weight": (2,)}, attributes={"a": {"num_heads": 4}})


@dataclass(frozen=True, kw_only=True)
class Mark(Pass):
    """Marks every parameter, and halves ``num_heads``."""

    info = PassInfo(name="mark", writes={"marked", "attributes"})

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        ctx.set([node.id for node in graph.parameters()], "marked", True, why="it is there")
        for module in graph.modules():
            if module.attribute("num_heads") is not None:
                ctx.set(module.id, "attributes.num_heads", 2, why="half")


@dataclass(frozen=True, kw_only=True)
class Again(Pass):
    """Counts how often it ran."""

    info = PassInfo(name="again", writes={"times"})

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        root = graph.nodes[graph.root]
        times = root.props.get("times", 0)
        assert isinstance(times, int)
        ctx.set(graph.root, "times", times + 1, why="once more")


@dataclass(frozen=True, kw_only=True)
class BehindTheLog(Pass):
    """Edits the graph without its context."""

    info = PassInfo(name="behind-the-log")

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        node = next(graph.parameters())
        graph.nodes[node.id] = node._replace(props={"marked": True})


@dataclass(frozen=True, kw_only=True)
class InPlace(Pass):
    """Edits the graph that it was not given."""

    info = PassInfo(name="in-place")

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        node = next(ctx.entry.parameters())
        ctx.entry.nodes[node.id] = node._replace(props={"marked": True})


@dataclass(frozen=True, kw_only=True)
class LosesLayouts(Pass):
    """Needs layouts, and takes them away."""

    info = PassInfo(name="loses-layouts", requires=SHARDED, writes={"layout"})

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        ctx.set([node.id for node in graph.parameters()], "layout", None, why="gone")


def test_a_pass_that_does_what_was_expected_passes() -> None:
    changes: dict[str, dict[str, object]] = {
        "a": {"num_heads": 2},
        "a.weight": {"marked": True},
        "b.weight": {"marked": True},
    }
    events = ["set marked True: a.weight, b.weight", "set num_heads 2: a"]
    outcome = assert_pass(Mark(), BEFORE, changes, events=events)
    assert [event.why for event in outcome.events] == ["it is there", "half"]


def test_the_expected_graph_may_be_given_whole() -> None:
    after = graph_of({"a.weight": (4, 2)}, layouts={"a.weight": "R"})
    before = graph_of({"a.weight": (4, 2)}, layouts={"a.weight": "R"})
    assert_pass(Again(), before, {"": {"times": 1}})
    assert_same_graph(before, after)


def test_a_difference_is_shown_by_path_with_both_values() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_pass(Mark(), BEFORE, {"a": {"num_heads": 3}, "a.weight": {"marked": True}})
    assert str(caught.value).splitlines() == [
        "the graphs differ:",
        "--- expected",
        "+++ got",
        "-a  num_heads = 3",
        "+a  num_heads = 2",
        "+b.weight  marked = True",
    ]


def test_a_difference_of_events_is_shown_line_by_line() -> None:
    changes = {"": {"times": 1}}
    with pytest.raises(AssertionError, match=r"-set times 2: \(root\)\n\+set times 1: \(root\)"):
        assert_pass(Again(), BEFORE, changes, events=["set times 2: (root)"])


def test_an_expected_removal_of_what_never_was_there_is_an_error() -> None:
    with pytest.raises(AssertionError, match="'c' is expected to go, and was never there"):
        assert_pass(Mark(), BEFORE, {"c": None})


def test_graphs_that_differ_in_a_dtype_differ() -> None:
    other = graph_of(
        {"a.weight": (4, 2), "b.weight": (2,)},
        attributes={"a": {"num_heads": 4}},
        dtypes={"b.weight": "bfloat16"},
    )
    with pytest.raises(AssertionError, match=r"b.weight  dtype = bfloat16"):
        assert_same_graph(BEFORE, other)


def test_graphs_that_differ_in_the_order_of_their_children_differ() -> None:
    with pytest.raises(AssertionError, match="children"):
        assert_same_graph(graph_of({"a": (1,), "b": (1,)}), graph_of({"b": (1,), "a": (1,)}))


def test_a_tied_name_is_part_of_the_outline() -> None:
    graph = graph_of({"e.weight": (4, 2)}, tied={"head.weight": "e.weight"})
    assert outline(graph)["e.weight"]["aliases"] == ["head.weight"]


def test_a_pass_that_keeps_its_word_passes_its_contract() -> None:
    assert len(check_contract(Mark(), BEFORE).events) == 2


def test_a_pass_that_edits_behind_the_log_breaks_its_contract() -> None:
    with pytest.raises(AssertionError, match=r"a.weight  marked = True"):
        check_contract(BehindTheLog(), BEFORE)


def test_a_pass_that_changes_the_graph_it_was_given_breaks_its_contract() -> None:
    graph = graph_of({"a.weight": (4, 2)})
    with pytest.raises(AssertionError, match="in-place changed the graph that it was given"):
        check_contract(InPlace(), graph)


def test_a_pass_that_loses_a_fact_without_saying_so_breaks_its_contract() -> None:
    graph = graph_of({"a.weight": (4, 2)}, layouts={"a.weight": "tp:S(0)"})
    with pytest.raises(AssertionError, match="'sharded' held before loses-layouts and not after"):
        check_contract(LosesLayouts(), graph)


def test_a_pass_that_writes_what_it_does_not_declare_breaks_its_contract() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Sneaky(Mark):
        info = PassInfo(name="sneaky")

    with pytest.raises(ContractError, match="pass sneaky: wrote 'marked', which it does not decl"):
        check_contract(Sneaky(), BEFORE)


def test_a_pass_that_changes_its_own_result_is_not_idempotent() -> None:
    assert_idempotent(Mark(), BEFORE)
    with pytest.raises(AssertionError, match=r"\(root\)  times = 2"):
        assert_idempotent(Again(), BEFORE)


def test_importing_the_test_helpers_does_not_import_torch() -> None:
    code = "import sys, hpx.testing; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
