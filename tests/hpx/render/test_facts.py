"""What the header and the problems say besides the numbers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from hpx.errors import UsageError
from hpx.graph import GraphBuilder, ModuleGraph, ModuleSpec, TensorSpec
from hpx.plan import ShardingPlan
from hpx.render import Options, draw, view
from hpx.render.subject import subject_of
from hpx.run import Run, run

if TYPE_CHECKING:
    from tests.hpx.conftest import GraphOf, RunOf
    from tests.hpx.render.conftest import TreeOf


def text_of(target: Run | ModuleGraph) -> str:
    return draw(target, "text", Options()).decode()


def test_foreign_names_of_a_file_are_a_problem_in_every_format(tree: TreeOf) -> None:
    graph = tree({"a.w": (2,)})
    graph.hints["foreign"] = ["posix.system", "builtins.eval"]
    line = "the file holds 2 foreign names, which could run code: posix.system, builtins.eval"
    assert line in text_of(graph)
    assert line in draw(graph, "dot", Options()).decode()
    assert line in draw(graph, "html", Options()).decode()
    assert json.loads(draw(graph, "json", Options()))["problems"][0]["text"] == line


def test_what_the_reader_of_a_file_noted_is_told(tree: TreeOf) -> None:
    graph = tree({"a.w": (2,)})
    graph.hints["notes"] = ["this file is one rank's piece: rows 0..2 of 8"]
    assert "info: this file is one rank's piece: rows 0..2 of 8" in text_of(graph)


def test_what_is_left_out_of_a_file_is_told(tree: TreeOf) -> None:
    graph = tree({"a.w": (2,)})
    graph.hints["ignored"] = ["step"]
    assert "info: left out 1 entry that is no tensor of the model: step" in text_of(graph)
    graph.hints["ignored"] = ["a", "b\n", "c", "d"]
    line = "info: left out 4 entries that are no tensors of the model: a, b\\n, c and 1 more"
    assert line in text_of(graph)


def test_parameters_without_a_rule_stand_in_the_header(graph_of: GraphOf) -> None:
    graph = graph_of({"a.w": (4,), "b.0.w": (4,), "b.1.w": (4,)})
    made = run(graph, ShardingPlan({"a.w": {"tp": "S(0)"}}, default="replicate"), "tp=2")
    assert "no rule     2 parameters, whole by the plan's default: b.{0-1}.w" in text_of(made)


def test_rules_that_matched_nothing_stand_in_the_header(graph_of: GraphOf, run_of: RunOf) -> None:
    made = run_of(graph_of({"a.w": (4,), "b.w": (4,)}), {"a.w": {"tp": "S(0)"}, "b.w": "replicate"})
    value = json.loads(json.dumps(made.to_json()))
    value["events"] = [e for e in value["events"] if e.get("rule", {}).get("index") != 1]
    for seq, event in enumerate(value["events"]):
        event["seq"] = seq
        event.pop("cause", None)
    text = text_of(Run.from_json(value))
    assert "1 rule matched nothing: " in text
    assert "'b.w'" in text


def test_a_step_before_the_plan_is_read_has_no_unmatched_rules(moe: Run) -> None:
    assert "unmatched" not in dict(view(moe, Options(step=1), picture=False).extra)


def test_a_run_up_to_a_step_has_the_events_up_to_it(moe: Run) -> None:
    subject = subject_of(moe, step=2)
    assert subject.run is not None
    assert {event.step for event in subject.run.events} == {1, 2}
    assert len(subject.run.schedule) == 2


def test_100_000_parameters_are_a_short_text_and_whole_json() -> None:
    builder = GraphBuilder()
    root = builder.module(-1, "", ModuleSpec("M"))
    layers = builder.module(root, "layers", ModuleSpec("ModuleList"))
    spec, odd = TensorSpec((4, 4), "bfloat16"), TensorSpec((4, 5), "bfloat16")
    for i in range(100):
        layer = builder.module(layers, str(i), ModuleSpec("Layer"))
        experts = builder.module(layer, "experts", ModuleSpec("ModuleList"))
        for j in range(1000):
            expert = builder.module(experts, str(j), ModuleSpec("Expert"))
            builder.tensor("parameter", expert, "w", odd if (i, j) == (77, 777) else spec)
    graph = builder.finish(source="test")
    text = text_of(graph)
    assert len(text.splitlines()) < 25
    assert "layers.77.experts.777.w has shape [4, 5], not [4, 4]" in text
    assert len(json.loads(draw(graph, "json", Options()))["parameters"]) == 100_000


def of_dtensors(*meshes: tuple[tuple[str, int, str], ...]) -> ModuleGraph:
    builder = GraphBuilder()
    root = builder.module(-1, "", ModuleSpec("M"))
    for number, placed in enumerate(meshes):
        spec = TensorSpec((8, 2), "float32", placed=placed)
        builder.tensor("parameter", root, f"w{number}", spec)
    return builder.finish()


def test_the_mesh_of_dtensors_stands_in_the_header() -> None:
    two = (("dp", 2, "R"), ("tp", 4, "S(0)"))
    made = of_dtensors((("tp", 4, "S(0)"),), two, two)
    assert "  mesh        dp=2,tp=4, by the DTensors in it" in text_of(made)
    made = of_dtensors(two, (("ep", 8, "S(0)"),))
    assert "mesh        dp=2,tp=4 and ep=8, by the DTensors in it" in text_of(made)


def test_an_axis_of_dtensors_can_be_drawn_alone() -> None:
    made = of_dtensors((("dp", 2, "S(1)"), ("tp", 4, "S(0)")))
    assert "layout on dp" in draw(made, "dot", Options(axis="dp")).decode()
    with pytest.raises(UsageError, match="there is no axis 'ep': the mesh has dp, tp"):
        draw(made, "dot", Options(axis="ep"))
