from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hpx.errors import ContractError, PlacementMismatchError
from hpx.graph import ModuleGraph
from hpx.layout import Layout
from hpx.lineage import Source, Stack
from hpx.mesh import MeshSpec
from hpx.pipeline import Pass, PassInfo
from hpx.pipeline.context import PassContext, Problem
from hpx.pipeline.request import Request
from hpx.plan import ShardingPlan
from hpx.provenance import Provenance
from hpx.testing import graph_of


class Anything(Pass):
    """Declares every key that the tests write."""

    info = PassInfo(name="anything", writes={"layout", "mesh", "attributes", "structure", "attach"})

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None: ...


class Nothing(Anything):
    """Declares nothing."""

    info = PassInfo(name="nothing")


SHAPES = {"a.weight": (4, 2), "b.weight": (4, 2), "c.weight": (3,)}


class Case:
    """A graph, a log, and the context of one pass over both."""

    def __init__(self, pass_: Pass | None = None) -> None:
        self.graph = graph_of(SHAPES, attributes={"a": {"num_heads": 8}})
        self.log = Provenance()
        request = Request(ShardingPlan({"a.*": "R"}), MeshSpec.parse("tp=2"))
        self.ctx = PassContext(self.graph, request, self.log, pass_ or Anything())

    def id(self, path: str) -> int:
        found = self.graph.find(path)
        assert found is not None
        return found


def test_a_set_value_is_on_the_node_and_in_the_log() -> None:
    case = Case()
    node = case.id("a.weight")
    seq = case.ctx.set(node, "layout", Layout.parse("tp:S(0)"), why="because")
    (event,) = case.log.events
    assert str(case.graph.tensor(node).layout) == "tp:S(0)"
    assert (seq, event.kind, event.key, event.old, str(event.new), event.why) == (
        *(0, "set", "layout", None),
        *("tp:S(0)", "because"),
    )
    assert (event.step, event.pass_, list(event.nodes)) == (1, "anything", [node])


def test_a_set_over_many_nodes_is_one_event_for_each_old_value() -> None:
    case = Case()
    a, b, c = (case.id(f"{name}.weight") for name in "abc")
    case.ctx.set(a, "mesh", "expert", why="first")
    case.ctx.set([a, b, c], "mesh", "dense", why="then")
    assert [(list(event.nodes), event.old) for event in case.log.events[1:]] == [
        ([a], "expert"),
        ([b, c], None),
    ]


def test_setting_none_removes_the_key() -> None:
    case = Case()
    node = case.id("a.weight")
    case.ctx.set(node, "mesh", "dense", why="first")
    case.ctx.set(node, "mesh", None, why="then")
    assert "mesh" not in case.graph.nodes[node].props


def test_an_integer_attribute_is_set_over_the_models_own_value() -> None:
    case = Case()
    node = case.id("a")
    case.ctx.set(node, "attributes.num_heads", 4, why="half")
    assert case.graph.module(node).attributes == {"num_heads": 4}
    assert case.log.events[0].old == 8


@pytest.mark.parametrize("key", ["layout", "attributes.num_heads"])
def test_a_key_that_the_pass_does_not_declare_is_refused_and_nothing_changes(key: str) -> None:
    case = Case(Nothing())
    before = dict(case.graph.nodes)
    with pytest.raises(ContractError, match=f"pass nothing: wrote '{key.partition('.')[0]}'"):
        case.ctx.set(case.id("a"), key, 1, why="no reason")
    assert case.graph.nodes == before
    assert len(case.log) == 0


def test_structure_that_the_pass_does_not_declare_is_refused() -> None:
    case = Case(Nothing())
    a, b = case.id("a.weight"), case.id("b.weight")
    edits: list[Callable[[], object]] = [
        lambda: case.ctx.derive(0, "w", Stack((Source(a), Source(b))), why="x"),
        lambda: case.ctx.remove(a, why="x"),
        lambda: case.ctx.alias(a, b, why="x"),
        lambda: case.ctx.rename(a, 0, "w", why="x"),
        lambda: case.ctx.attach(a, "pkg:fn", {}, why="x"),
    ]
    for edit in edits:
        with pytest.raises(ContractError, match="which it does not declare"):
            edit()
    assert len(case.log) == 0


@pytest.mark.parametrize("what", ["a list", "a parameter", "no node"])
def test_what_is_not_one_module_has_nothing_attached(what: str) -> None:
    case = Case()
    a = case.id("a")
    node: Any = {"a list": [a], "a parameter": case.id("a.weight"), "no node": 99}[what]
    with pytest.raises(ContractError, match="attach takes the id of one module, not"):
        case.ctx.attach(node, "pkg:fn", {}, why="needed")
    assert len(case.log) == 0


def test_a_node_that_does_not_exist_is_refused() -> None:
    case = Case()
    with pytest.raises(ContractError, match="there is no node 99"):
        case.ctx.set(99, "mesh", "dense", why="x")


def test_a_derived_parameter_has_the_shape_of_its_lineage_and_a_fresh_id() -> None:
    case = Case()
    parts = (Source(case.id("a.weight")), Source(case.id("b.weight")))
    known = set(case.graph.nodes)
    node = case.ctx.derive(case.graph.root, "w", Stack(parts), why="stacked")
    assert node not in known
    assert case.graph.tensor(node).shape == (2, 4, 2)
    assert case.graph.tensor(node).lineage == Stack(parts)


def test_a_lineage_over_derived_parameters_is_closed_over_the_originals() -> None:
    case = Case()
    parts = (Source(case.id("a.weight")), Source(case.id("b.weight")))
    first = case.ctx.derive(case.graph.root, "w", Stack(parts), why="stacked")
    case.ctx.remove([case.id("a.weight"), case.id("b.weight")], why="stacked")
    second = case.ctx.derive(case.graph.root, "v", Stack((Source(first),)), why="again")
    assert case.graph.tensor(second).lineage == Stack((Stack(parts),))


def test_a_derived_name_that_exists_is_refused() -> None:
    case = Case()
    with pytest.raises(ContractError, match="'a' exists already"):
        case.ctx.derive(case.graph.root, "a", Source(case.id("b.weight")), why="x")


def test_an_alias_gives_all_names_to_one_parameter() -> None:
    case = Case()
    a, b = case.id("a.weight"), case.id("b.weight")
    case.ctx.alias(a, b, why="tied")
    assert case.graph.paths(a) == ["a.weight", "b.weight"]
    assert case.graph.find("b.weight") == a
    assert b not in case.graph.nodes


def test_a_rename_moves_a_node_and_keeps_its_place_among_its_siblings() -> None:
    case = Case()
    node = case.id("a")
    case.ctx.rename(node, case.graph.root, "first", why="clearer")
    assert list(case.graph.module(case.graph.root).children) == ["first", "b", "c"]
    assert case.graph.path(node) == "first"


def test_an_attachment_is_in_the_log_and_not_in_the_graph() -> None:
    case = Case()
    before = dict(case.graph.nodes)
    case.ctx.attach(case.id("a"), "pkg:fn", {"times": 2}, why="needed")
    assert case.log.events[0].new == {"function": "pkg:fn", "options": {"times": 2}}
    assert case.graph.nodes == before


def test_a_problem_is_kept_and_in_the_log_as_a_note() -> None:
    case = Case()
    node = case.id("a")
    case.ctx.problem("look here", node, hint="and there")
    assert case.ctx.problems == [Problem("warning", (node,), "look here", "and there")]
    assert [(event.kind, event.why) for event in case.log.events] == [
        ("note", "warning: look here")
    ]


def test_a_decision_is_the_event_that_gave_the_present_value() -> None:
    case = Case()
    node = case.id("a.weight")
    case.ctx.set(node, "mesh", "expert", why="first")
    case.ctx.set(node, "mesh", "dense", why="then")
    found = case.ctx.decision(node, "mesh")
    assert found is not None
    assert found.why == "then"
    assert case.ctx.decision(node, "layout") is None


def test_an_error_names_pass_parameters_and_rule() -> None:
    case = Case()
    rule = case.ctx.plan.params[0]
    nodes = [case.id("a.weight"), case.id("c.weight")]
    error = case.ctx.error("no", node=nodes, why="1 % 2", fix="yes", rule=rule)
    assert str(error) == "pass anything, a.weight, c.weight, rule 1: no: 1 % 2. Fix: yes"


def test_an_error_about_the_root_names_the_model() -> None:
    case = Case()
    assert str(case.ctx.error("no", node=0)) == "pass anything, the model: no"


def test_an_error_is_of_the_kind_asked_for() -> None:
    error = Case().ctx.error("no", kind=PlacementMismatchError)
    assert isinstance(error, PlacementMismatchError)


def test_the_entry_graph_stays_as_it_was() -> None:
    case = Case()
    case.ctx.remove(case.id("a.weight"), why="x")
    assert case.ctx.entry.find("a.weight") is not None
