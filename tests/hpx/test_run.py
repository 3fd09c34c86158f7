from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from hpx.errors import HpxError, InputError, PlanError, UsageError
from hpx.graph import ModuleGraph
from hpx.plan import ShardingPlan
from hpx.run import Run, run

MESH = "dp=2,tp=2,ep=4"


@pytest.fixture
def saved(moe_run: Run, tmp_path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(moe_run.save(tmp_path / "run.json").read_text())
    return value


def again(graph: ModuleGraph, plan: ShardingPlan, pipeline: str = "@default") -> Run:
    return run(graph, plan, MESH, pipeline)


# save and load


def test_a_run_loads_back_equal(moe_run: Run, tmp_path: Path) -> None:
    assert Run.load(moe_run.save(tmp_path / "run.json")) == moe_run


def test_a_loaded_run_saves_to_the_same_bytes(moe_run: Run, tmp_path: Path) -> None:
    first = moe_run.save(tmp_path / "a.json")
    second = Run.load(first).save(tmp_path / "b.json")
    assert first.read_bytes() == second.read_bytes()


def test_a_saved_run_has_the_keys_of_its_schema(saved: dict[str, Any]) -> None:
    assert saved["schema"] == "hpx.run/1"
    assert list(saved) == [
        *("schema", "model", "mesh", "plan", "options", "pipeline", "schedule", "facts"),
        *("problems", "graph", "params", "events", "timings", "request", "entry"),
    ]


def test_a_loaded_run_has_the_same_graphs(moe_run: Run, tmp_path: Path) -> None:
    loaded = Run.load(moe_run.save(tmp_path / "run.json"))
    assert loaded.entry == moe_run.entry
    assert loaded.graph == moe_run.graph


def test_runs_that_differ_in_time_alone_are_equal(moe_graph: ModuleGraph, moe_run: Run) -> None:
    assert again(moe_graph, moe_run.plan) == moe_run


def test_a_run_leaves_the_graph_that_it_was_given(moe_graph: ModuleGraph, moe_run: Run) -> None:
    before = dict(moe_graph.nodes)
    again(moe_graph, moe_run.plan)
    assert moe_graph.nodes == before


def test_one_parameter_is_the_same_as_in_the_list(moe: Run) -> None:
    for param in moe.params:
        assert moe.param(param.id) == param


def test_a_stacked_parameter_has_every_name_of_a_shared_container() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.ModuleDict({"experts": nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])})
            self.b = self.a

    graph = ModuleGraph.from_module(Twice())
    done = run(graph, ShardingPlan(default="replicate"), "dp=2,ep=2", "stack-experts")
    names = [(param.name, param.aliases) for param in done.params]
    assert names == [
        ("a.experts.weight", ("b.experts.weight",)),
        ("a.experts.bias", ("b.experts.bias",)),
    ]


def test_a_parameter_that_is_gone_has_no_record(moe: Run) -> None:
    old = moe.tree.find("model.layers.0.mlp.experts.5.gate_proj.weight")
    assert old is not None
    assert moe.param(old) is None


# steps


def test_step_0_is_the_model_as_it_came(moe: Run) -> None:
    assert moe.at(0) == moe.entry


def test_the_last_step_is_the_final_graph(moe: Run) -> None:
    assert moe.at(len(moe.schedule)) == moe.graph


def test_a_step_in_between_has_what_its_passes_did_and_no_more(moe: Run) -> None:
    stacked = moe.at(2).get("model.layers.0.mlp.experts.gate_proj")
    assert stacked.props == {}
    sharded = moe.at(4).get("model.layers.0.mlp.experts.gate_proj")
    assert sorted(sharded.props) == ["layout", "mesh"]


@pytest.mark.parametrize("step", [-1, 8])
def test_a_step_that_the_schedule_lacks_is_an_error(moe: Run, step: int) -> None:
    with pytest.raises(UsageError, match=f"there is no step {step}"):
        moe.at(step)


# fingerprints


def test_fingerprints_survive_saving(moe_run: Run, tmp_path: Path) -> None:
    loaded = Run.load(moe_run.save(tmp_path / "run.json"))
    assert loaded.request_fingerprint == moe_run.request_fingerprint
    assert loaded.entry_fingerprint == moe_run.entry_fingerprint


def test_the_path_and_the_lines_of_the_plan_are_not_hashed(
    moe_graph: ModuleGraph, moe_run: Run
) -> None:
    text = ShardingPlan(list(moe_run.plan.params), mesh=MESH).to_yaml()
    moved = ShardingPlan.from_text("\n\n" + text, "another/folder/p.yaml")
    assert again(moe_graph, moved).request_fingerprint == moe_run.request_fingerprint


def test_where_the_model_was_read_from_is_not_hashed(moe_graph: ModuleGraph, moe_run: Run) -> None:
    twin = moe_graph.copy()
    twin.source = "another/path"
    assert again(twin, moe_run.plan).entry_fingerprint == moe_run.entry_fingerprint


def test_another_layout_is_another_request(moe_graph: ModuleGraph, moe_run: Run) -> None:
    rules = {rule.pattern: rule.layout for rule in moe_run.plan.params}
    plan = ShardingPlan({**rules, "lm_head.weight": "replicate"}, mesh=MESH)
    assert again(moe_graph, plan).request_fingerprint != moe_run.request_fingerprint


def test_another_option_is_another_request(moe_graph: ModuleGraph, moe_run: Run) -> None:
    other = again(moe_graph, moe_run.plan, "@default, shard-params{uneven=allow}")
    assert other.request_fingerprint != moe_run.request_fingerprint
    assert other.entry_fingerprint == moe_run.entry_fingerprint


# what is refused


def test_a_plan_for_another_mesh_is_refused(moe_graph: ModuleGraph, moe_run: Run) -> None:
    with pytest.raises(PlanError, match="the plan is for mesh dp=2,tp=2,ep=4"):
        run(moe_graph, moe_run.plan, "dp=4,tp=2,ep=4")


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        Run.load(tmp_path / "none.json")


def test_a_file_that_is_not_there_names_those_that_look_like_it(tmp_path: Path) -> None:
    (tmp_path / "run.json").touch()
    with pytest.raises(UsageError, match=r"Fix: did you mean run\.json\?$"):
        Run.load(tmp_path / "run.jsn")


def test_what_a_failed_run_left_is_no_run_and_says_what_draws_it(tmp_path: Path) -> None:
    path = tmp_path / "run.failed.json"
    path.write_text('{"schema": "hpx.failed/1"}')
    with pytest.raises(InputError) as caught:
        Run.load(path)
    assert "not a saved run: it is what is left of a run that failed" in str(caught.value)
    assert str(caught.value).endswith(f"Fix: hpx passes {path} -o F.svg draws the step that failed")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"schema": "hpx.run/9"}', "\x00"])
def test_a_file_that_is_no_run_is_an_input_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match="not a saved run"):
        Run.load(tmp_path / "x.json")


def test_bytes_that_are_no_text_are_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match="not a text file"):
        Run.load(tmp_path / "x.json")


def test_a_truncated_run_is_an_input_error(moe_run: Run, tmp_path: Path) -> None:
    path = moe_run.save(tmp_path / "run.json")
    path.write_text(path.read_text()[:-100])
    with pytest.raises(InputError, match="not a saved run"):
        Run.load(path)


KEYS = [
    *("model", "mesh", "plan", "options", "pipeline", "schedule", "facts", "problems"),
    *("graph", "params", "events", "timings", "request", "entry"),
]


DAMAGE = [(key, damage) for key in KEYS for damage in ("missing", "null", "text", "number")]
DAMAGE.remove(("pipeline", "text"))  # any text may be one


@pytest.mark.parametrize(("key", "damage"), DAMAGE)
def test_a_damaged_run_is_an_error_of_hpx(
    saved: dict[str, Any], tmp_path: Path, key: str, damage: str
) -> None:
    del saved[key]
    if damage != "missing":
        saved[key] = {"null": None, "text": "x", "number": 7}[damage]
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(saved))
    with pytest.raises(HpxError, match="damaged"):
        Run.load(path)


@pytest.mark.parametrize("kind", ["set", "skip"])
@pytest.mark.parametrize("key", [1.5, [], {}])
def test_an_event_whose_key_is_no_text_is_damage(
    saved: dict[str, Any], tmp_path: Path, kind: str, key: object
) -> None:
    event = next(event for event in saved["events"] if event["kind"] == kind)
    event["key"] = key
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(saved))
    with pytest.raises(InputError, match=r"damaged.*events\[\d+\] has key"):
        Run.load(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("dtype", None), ("cls", {}), ("device", 3), ("requires_grad", 1), ("persistent", 0)],
        *[("attributes", [1]), ("strides", 7), ("strides", ["1"]), ("placed", [["tp", "2"]])],
    ],
)
@pytest.mark.parametrize("place", ["template", "event"])
def test_a_tensor_whose_fields_are_of_another_kind_is_damage(
    saved: dict[str, Any], tmp_path: Path, place: str, key: str, value: object
) -> None:
    if place == "event":
        event = next(event for event in saved["events"] if event["kind"] == "derive")
        event["new"]["spec"][key] = value
    else:
        next(one for one in saved["graph"]["templates"] if "dtype" in one)[key] = value
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(saved))
    with pytest.raises(InputError, match=rf"damaged.*(templates|events).*{key}"):
        Run.load(path)


@pytest.mark.parametrize("key", ["layout", "mesh"])
@pytest.mark.parametrize("side", ["old", "new"])
@pytest.mark.parametrize("value", [7, [[0, 1]]])
def test_an_event_that_sets_something_else_than_a_layout_or_a_mesh_is_damage(
    saved: dict[str, Any], tmp_path: Path, key: str, side: str, value: object
) -> None:
    event = next(event for event in saved["events"] if event.get("key") == key)
    event[side] = value
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(saved))
    with pytest.raises(InputError, match=rf"damaged.*events\[\d+\].*sets {key} to"):
        Run.load(path)


def test_a_run_that_cannot_be_written_leaves_the_old_file(moe_run: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        moe_run.save(tmp_path / "no" / "folder.json")


# the mesh


def test_the_mesh_of_the_plan_is_taken_where_none_is_given(moe_run: Run) -> None:
    plan = ShardingPlan(moe_run.plan.params, mesh=MESH, default="replicate")
    assert run(moe_run.entry, plan).mesh == moe_run.mesh


def test_without_any_mesh_the_error_says_where_to_write_one(moe_run: Run) -> None:
    plan = ShardingPlan(moe_run.plan.params, default="replicate")
    with pytest.raises(PlanError, match=r"the plan names no mesh.*write mesh: dp=2,tp=4"):
        run(moe_run.entry, plan)


def test_an_empty_pipeline_is_a_warning(moe_graph: ModuleGraph, moe: Run) -> None:
    empty = run(moe_graph, moe.plan, "dp=2,tp=2,ep=4", "")
    assert empty.problems[0].level == "warning"
    assert "the pipeline is empty" in empty.problems[0].text
    assert not any("the pipeline is empty" in problem.text for problem in moe.problems)
