from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hpx.graph import ModuleGraph
from hpx.layout import Layout
from hpx.mesh import MeshSpec
from hpx.provenance import Event, Provenance, replay
from hpx.render import Options, draw
from hpx.run import Run

if TYPE_CHECKING:
    from tests.hpx.conftest import GraphOf, RunOf
    from tests.hpx.render.conftest import TreeOf

OF_LAYOUTS = {"token", "layout", "mesh", "pass", "rule", "reduce", "local_shape", "ranges"}


def json_of(target: Run | ModuleGraph, **options: object) -> Any:
    return json.loads(draw(target, "json", Options(**options)))  # type: ignore[arg-type]


def named(value: Any, name: str) -> Any:
    [found] = [param for param in value["parameters"] if param["name"] == name]
    return found


def test_every_parameter_is_unfolded(experts: ModuleGraph) -> None:
    value = json_of(experts, mesh=MeshSpec.parse("tp=2"))
    assert value["schema"] == "hpx.viz/1"
    assert len(value["parameters"]) == value["totals"]["parameters"] == 14849
    odd = named(value, "layers.30.experts.137.w.weight")
    assert (odd["mark"], odd["token"], odd["local_shape"]) == ("deviates", "R", [8, 4])
    assert sum(param["mark"] is not None for param in value["parameters"]) == 1


def test_groups_are_those_of_the_view(experts: ModuleGraph) -> None:
    value = json_of(experts)
    assert len(value["groups"]) < 10
    assert value["groups"][0]["parent"] is None
    assert any("2 variants: 255 / 1" in group["notes"] for group in value["groups"])
    below = [index for group in value["groups"] for index in group["groups"]]
    assert sorted(below) == list(range(1, len(value["groups"])))


def test_without_layouts_there_are_no_fields_of_them(tree: TreeOf) -> None:
    value = json_of(tree({"a.w": (2,)}))
    assert not OF_LAYOUTS & value["parameters"][0].keys()
    assert (value["layouts"], value["mesh"], value["rank"]) == (None, None, None)


def test_a_rule_is_told_with_file_and_line(moe: Run) -> None:
    value = json_of(moe)
    head = named(value, "lm_head.weight")
    rule = value["rules"][head["rule"]]
    assert (rule["pattern"], rule["file"], rule["line"]) == ("lm_head.weight", "plan.yaml", 13)
    assert (head["pass"], head["layout"]) == ("shard-params", {"tp": "S(0)"})


def test_a_history_has_the_events_of_what_a_parameter_is_made_of(moe: Run) -> None:
    value = json_of(moe)
    stacked = named(value, "model.layers.0.mlp.experts.up_proj")
    events = [value["events"][at] for at in value["histories"][stacked["history"]]["events"]]
    assert events[0]["kind"] == "derive"
    assert any(event.get("key") == "layout" for event in events)
    assert stacked["lineage"].startswith("stack(")


def test_equal_histories_are_one(moe: Run) -> None:
    value = json_of(moe)
    q = named(value, "model.layers.0.self_attn.q_proj.weight")
    v = named(value, "model.layers.1.self_attn.v_proj.weight")
    assert q["history"] == v["history"]


def test_an_event_that_a_later_one_overrides_is_kept_and_marked(
    graph_of: GraphOf, run_of: RunOf
) -> None:
    first = run_of(graph_of({"a.w": (4, 4)}), {"a.w": {"tp": "S(0)"}})
    node = first.graph.get("a.w").id
    later = Event(
        *(len(first.events), len(first.schedule), "later", "set", (node,), "layout"),
        *(Layout.parse("tp:S(0)"), Layout.parse("tp:S(1)"), "changed its mind"),
    )
    events = [*first.events, later]
    second = Run(
        model=first.model,
        mesh=first.mesh,
        plan=first.plan,
        pipeline=first.pipeline,
        options=first.options,
        schedule=first.schedule,
        facts=first.facts,
        problems=(),
        log=Provenance(events),
        timings=(),
        entry=first.entry,
        graph=replay(first.entry, events),
    )
    value = json_of(second)
    param = named(value, "a.w")
    history = value["histories"][param["history"]]
    gone = [value["events"][at] for at in history["overridden"]]
    assert [(event["pass"], event["key"]) for event in gone] == [("shard-params", "layout")]
    assert value["events"][history["events"][-1]]["why"] == "changed its mind"
    assert (param["token"], param["pass"]) == ("tp:S(1)", "later")


def test_names_no_rule_matched_are_listed(graph_of: GraphOf) -> None:
    from hpx.plan import ShardingPlan
    from hpx.run import run

    graph = graph_of({"a.w": (4,), "b.w": (4,), "c.0.w": (4,), "c.1.w": (4,)})
    made = run(graph, ShardingPlan({"a.w": {"tp": "S(0)"}}, default="replicate"), "tp=2")
    assert json_of(made)["without_rule"] == ["b.w", "c.{0-1}.w"]


def test_rules_that_matched_nothing_are_listed(graph_of: GraphOf, run_of: RunOf) -> None:
    assert (
        json_of(run_of(graph_of({"a.w": (4,)}), {"a.w": {"tp": "S(0)"}}))["unmatched_rules"] == []
    )


def test_a_comparison_brings_its_differences(tree: TreeOf) -> None:
    value = json_of(tree({"a.w": (2,)}), against=tree({"a.w": (3,)}))
    assert value["diff"]["changes"][0]["what"] == "changed"
    assert (value["parameters"][0]["mark"], value["parameters"][0]["was"]) == (
        *("changed", "shape [2]"),
    )


def test_hostile_names_come_back_as_they_were(tree: TreeOf) -> None:
    names = ['<"&|{\\', "</script>", "new\nline", "\U0001f680", "x" * 300]
    value = json_of(tree({f"{name}.w": (1,) for name in names}))
    assert [param["name"] for param in value["parameters"]] == [f"{name}.w" for name in names]


def test_the_same_input_gives_the_same_bytes(moe: Run) -> None:
    assert draw(moe, "json", Options()) == draw(moe, "json", Options())


def test_buffers_stand_apart(graph_of: GraphOf) -> None:
    value = json_of(graph_of({"bn.weight": (4,)}, buffers={"bn.running_mean": (4,)}))
    assert [buffer["name"] for buffer in value["buffers"]] == ["bn.running_mean"]
    assert [param["name"] for param in value["parameters"]] == ["bn.weight"]


def test_a_root_begins_at_a_module(moe: Run) -> None:
    value = json_of(moe, root="model.layers.1.mlp")
    assert {param["name"].split(".")[2] for param in value["parameters"]} == {"1"}
