from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpx.diff import FieldChange, diff_models
from hpx.graph import ModuleGraph
from hpx.plan import ShardingPlan
from hpx.run import Run, run

if TYPE_CHECKING:
    from tests.hpx.conftest import GraphOf, RunOf

MESH = "dp=2,tp=2,ep=4"


def test_equal_runs_do_not_differ(moe: Run, moe_run: Run) -> None:
    diff = moe.diff(moe_run)
    assert not diff
    assert str(diff) == "no difference"


def test_a_changed_layout_has_both_values_and_the_events_that_explain_them(
    moe_graph: ModuleGraph, moe: Run
) -> None:
    rules = {rule.pattern: rule.layout for rule in moe.plan.params}
    other = run(moe_graph, ShardingPlan({**rules, "lm_head.weight": "replicate"}), MESH)
    (change,) = moe.diff(other).changes
    assert change.names == ("lm_head.weight",)
    assert FieldChange("layout", "tp:S(0)", "R") in change.fields
    assert change.why_old == (
        "shard-params (step 4): rule says tp:S(0) [plan.yaml:13 'lm_head.weight' (user file)]",
    )
    assert change.why_new == (
        "shard-params (step 4): rule says replicate [rule 8 'lm_head.weight' (user, from Python)]",
    )


def test_a_rule_on_another_line_is_no_difference(moe_graph: ModuleGraph, moe: Run) -> None:
    text = ShardingPlan([*moe.plan.params], mesh=MESH).to_yaml()
    moved = ShardingPlan.from_text("# a comment\n\n" + text, "elsewhere.yaml")
    assert not moe.diff(run(moe_graph, moved, MESH))


def test_parameters_that_one_run_stacks_fold_to_a_few_lines(
    moe_graph: ModuleGraph, moe: Run
) -> None:
    diff = moe.diff(run(moe_graph, moe.plan, MESH, "tie-weights"))
    gate = next(c for c in diff.changes if c.what == "added" and "gate_proj" in c.names[0])
    assert len(gate.names) == 16
    assert list(gate.lines())[:2] == [
        "  [32, 64] float32, layout none  (16 parameters)",
        "    model.layers.{0-1}.mlp.experts.{0-7}.gate_proj.weight",
    ]
    assert gate.why_old == (
        "stacked into model.layers.{0-1}.mlp.experts.gate_proj by stack-experts (step 2)",
    )


def test_equal_changes_of_many_layers_are_one_change(graph_of: GraphOf, run_of: RunOf) -> None:
    graph = graph_of({f"layers.{i}.up.weight": (8, 8) for i in range(30)})
    a = run_of(graph, {"layers.*.up.weight": {"tp": "S(0)"}})
    b = run_of(graph, {"layers.*.up.weight": {"tp": "S(1)"}})
    (change,) = a.diff(b).changes
    assert change.to_json()["names"] == ["layers.{0-29}.up.weight"]
    assert change.to_json()["count"] == 30


def test_different_meshes_stand_in_the_header(moe_graph: ModuleGraph, moe: Run) -> None:
    plan = ShardingPlan(list(moe.plan.params))
    diff = moe.diff(run(moe_graph, plan, "dp=4,tp=2,ep=4"))
    assert ("mesh", "dp=2,tp=2,ep=4", "dp=4,tp=2,ep=4") in diff.header
    assert bool(diff)


def test_edited_attributes_are_compared(moe_graph: ModuleGraph, moe: Run) -> None:
    plan = ShardingPlan(list(moe.plan.params))
    diff = moe.diff(run(moe_graph, plan, "tp=4,ep=4"))
    heads = next(c for c in diff.changes if c.fields[:1] == (FieldChange("num_heads", "4", "2"),))
    assert heads.names == tuple(f"model.layers.{i}.self_attn.num_heads" for i in range(2))


def test_a_parameter_of_another_shape_is_changed(graph_of: GraphOf, run_of: RunOf) -> None:
    rules = {"a": {"tp": "S(0)"}}
    diff = run_of(graph_of({"a": (8,)}), rules).diff(run_of(graph_of({"a": (12,)}), rules))
    assert [field for change in diff.changes for field in change.fields] == [
        FieldChange("shape", "[8]", "[12]")
    ]
    assert diff.header[0][0] == "model"


def test_a_parameter_that_only_one_model_has(graph_of: GraphOf, run_of: RunOf) -> None:
    a = run_of(graph_of({"a": (8,)}), {"a": {"tp": "S(0)"}})
    b = run_of(graph_of({"a": (8,), "b": (8,)}), {"{a,b}": {"tp": "S(0)"}})
    added = next(change for change in a.diff(b).changes if change.what == "added")
    assert (added.names, added.why_old) == (("b",), ("it never had this name",))
    removed = next(change for change in b.diff(a).changes if change.what == "removed")
    assert (removed.names, removed.why_new) == (("b",), ("it never had this name",))


def test_a_tensor_of_several_names_is_found_under_any_of_them(graph_of: GraphOf) -> None:
    tied, single = graph_of({"head": (8,)}, ties={"z": "head"}), graph_of({"z": (12,)})
    for old, new, shapes, names in (
        (tied, single, ("[8]", "[12]"), ("head, z", "z")),
        (single, tied, ("[12]", "[8]"), ("z", "head, z")),
    ):
        (change,) = diff_models(old, new).changes
        assert (change.what, change.names) == ("changed", ("z",))
        assert change.fields == (FieldChange("shape", *shapes), FieldChange("names", *names))


def test_of_a_tie_that_is_gone_both_are_compared(graph_of: GraphOf) -> None:
    tied = graph_of({"a": (8,)}, ties={"b": "a"})
    apart = graph_of({"a": (8,), "b": (12,)})
    changes = {change.names: change.fields for change in diff_models(tied, apart).changes}
    assert changes == {
        ("a",): (FieldChange("names", "a, b", "a"),),
        ("b",): (FieldChange("shape", "[8]", "[12]"), FieldChange("names", "a, b", "b")),
    }


def test_a_diff_as_json(moe: Run, moe_run: Run, tmp_path: Path) -> None:
    loaded = Run.load(moe_run.save(tmp_path / "run.json"))
    assert moe.diff(loaded).to_json() == {"differs": False, "header": {}, "changes": []}
