from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpx.graph import ModuleGraph, TensorSpec
from hpx.layout import Layout
from hpx.lineage import Source, Stack
from hpx.mesh import MeshSpec
from hpx.pipeline import Pass, PassInfo
from hpx.pipeline.context import PassContext
from hpx.pipeline.request import Request
from hpx.plan import Rule, ShardingPlan
from hpx.provenance import Derivation, Event, Provenance, replay
from hpx.testing import graph_of, outline

RULE = Rule(3, "a.*", Layout.parse("tp:S(0)"), "user", "plan.yaml", 7, "column parallel")
SPEC = TensorSpec((2, 4), "bfloat16", (4, 1), False, "cpu", "P", ("note",), (("tp", 2, "R"),), True)
EVENTS = [
    Event(0, 1, "p", "set", (1,), "layout", None, Layout.parse("tp:S(0)"), "w", RULE, 0),
    Event(0, 1, "p", "set", (1,), "layout", Layout.parse("R"), Layout.parse("ep:S(0)"), "w"),
    Event(0, 1, "p", "set", (1, 5), "mesh", "dense", "expert", "w", None, 4),
    Event(0, 1, "p", "set", (1,), "attributes.num_heads", 8, 2, "w"),
    Event(0, 1, "p", "set", (1,), "source", None, {"axis": "tp", "placements": ["S(0)"]}, "w"),
    Event(0, 1, "p", "set", (1,), "reduce", (), ("tp",), "w"),
    Event(0, 2, "p#2", "derive", (9,), "lineage", None,
          Derivation(1, "w", Stack((Source(3), Source(4))), SPEC), "stacked"),
    Event(0, 2, "p", "derive", (9,), "lineage", None,
          Derivation(1, "w", Stack((Stack((Source(3),)), Stack((Source(4),))), 1), SPEC), "w"),
    Event(0, 1, "p", "alias", (2,), None, 6, None, "tied"),
    Event(0, 1, "p", "remove", (2, 3, 4), None, None, None, "gone"),
    Event(0, 1, "p", "rename", (2,), "place", (0, "a"), (1, "b"), "clearer"),
    Event(0, 1, "p", "attach", (2,), None, None, {"function": "m:f", "options": {"n": 1}}, "w"),
    Event(0, 1, "p", "skip", (2,), "layout", None, None, "lost", RULE),
    Event(0, 1, "p", "note", (), None, None, None, "remark"),
]  # fmt: skip


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: f"{event.kind}-{event.key}")
def test_an_event_of_every_kind_survives_json(event: Event) -> None:
    back = Event.from_json(json.loads(json.dumps(event.to_json())))
    assert back._replace(nodes=tuple(back.nodes)) == event


def test_the_place_of_a_rule_made_in_python_survives_json() -> None:
    rule = Rule(2, "a.*", Layout.parse("R"))
    back = Event.from_json(Event(0, 1, "p", "skip", (1,), None, None, None, "w", rule).to_json())
    assert back.rule is not None
    assert back.rule.where == "rule 3"


@given(st.lists(st.integers(0, 300), unique=True, max_size=60))
def test_a_list_of_nodes_survives_json_in_its_order(nodes: list[int]) -> None:
    event = Event(0, 1, "p", "note", tuple(nodes), None, None, None, "w")
    back = Event.from_json(json.loads(json.dumps(event.to_json())))
    assert list(back.nodes) == nodes


def test_a_long_regular_list_of_nodes_is_short_in_json() -> None:
    event = Event(0, 1, "p", "note", range(10, 10_000, 7), None, None, None, "w")
    assert event.to_json()["node"] == [[10, 1428, 7]]


# -- the log builds the graph ------------------------------------------------------------------


class Everything(Pass):
    """Makes one event of every kind."""

    info = PassInfo(name="everything", writes={"layout", "structure", "attributes", "attach"})

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        a, b, c, d = (graph.find(f"{name}.weight") or -1 for name in "abcd")
        stacked = ctx.derive(graph.root, "w", Stack((Source(a), Source(b))), why="stacked")
        ctx.remove([a, b], why="stacked")
        ctx.alias(c, d, why="tied")
        ctx.rename(stacked, graph.root, "v", why="clearer")
        ctx.set([stacked, c], "layout", Layout.parse("tp:S(0)"), why="cut")
        ctx.set(graph.find("a") or -1, "attributes.n", 2, why="half")
        ctx.attach(graph.root, "m:f", {}, why="needed")
        ctx.skip(c, why="considered")
        ctx.note("done")


@pytest.fixture(name="done")
def _done() -> tuple[ModuleGraph, ModuleGraph, Provenance]:
    before = graph_of({f"{name}.weight": (4, 2) for name in "abcd"}, attributes={"a": {"n": 4}})
    after, log = before.copy(), Provenance()
    request = Request(ShardingPlan({}), MeshSpec.parse("tp=2"))
    pass_ = Everything()
    pass_.run(after, PassContext(after, request, log, pass_))
    return before, after, log


Done = tuple[ModuleGraph, ModuleGraph, Provenance]


def test_replaying_the_log_on_the_entry_graph_gives_the_graph(done: Done) -> None:
    before, after, log = done
    assert replay(before, log.events) == after


def test_replaying_a_log_that_was_saved_gives_the_same_graph(done: Done) -> None:
    before, after, log = done
    saved = json.loads(json.dumps([event.to_json() for event in log.events]))
    again = replay(before, map(Event.from_json, saved))
    assert outline(again, before) == outline(after, before)


def test_replaying_leaves_the_entry_graph_as_it_was(done: Done) -> None:
    before, _, log = done
    nodes = dict(before.nodes)
    replay(before, log.events)
    assert before.nodes == nodes


def test_replaying_a_part_gives_the_graph_at_that_time(done: Done) -> None:
    before, _, log = done
    half = replay(before, log.events[:2])
    assert half.find("w") is not None
    assert half.find("v") is None


def test_a_stacked_and_renamed_parameter_keeps_the_events_of_both_names(done: Done) -> None:
    _, after, log = done
    kinds = [event.kind for event in log.of(after.find("v") or -1)]
    assert kinds == ["derive", "rename", "set"]


def test_a_source_keeps_the_event_that_stacked_it_after_it_is_gone(done: Done) -> None:
    before, _, log = done
    kinds = [event.kind for event in log.of(before.find("b.weight") or -1)]
    assert kinds == ["derive", "remove"]


def test_a_name_that_was_tied_away_keeps_the_event_that_tied_it(done: Done) -> None:
    before, _, log = done
    (event,) = log.of(before.find("d.weight") or -1)
    assert event.kind == "alias"


def test_the_index_follows_events_that_are_recorded_later(done: Done) -> None:
    _, _, log = done
    assert log.of(77) == []
    log.record(Event(len(log), 1, "p", "note", range(70, 80), None, None, None, "late"))
    log.record(Event(len(log), 1, "p", "note", (77, 3), None, None, None, "later"))
    assert [event.why for event in log.of(77)] == ["late", "later"]


def test_an_event_out_of_its_place_is_not_recorded() -> None:
    with pytest.raises(AssertionError):
        Provenance().record(Event(5, 1, "p", "note", (), None, None, None, "w"))
