from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hpx.errors import PlanError, UsageError
from hpx.layout import REPLICATED, Layout
from hpx.mesh import MeshSpec
from hpx.plan import Heads, Packed, Rule, ShardingPlan, Tied

TEXT = """\
version: 1
mesh: dp=4,tp=8,ep=16
params:
  "model.embed_tokens.weight": {tp: S(0)}
  "model.layers.*.mlp.experts.*": {layout: {ep: S(0)}, reason: "experts over ep"}
  "**.norm.weight": replicate
experts: ["model.layers.*.mlp.experts"]
packed:
  "**.gate_up_proj.weight": {dim: 0, repeat: 1, parts: {gate: 14336, up: 14336}}
heads:
  "model.layers.*.self_attn": [num_heads, num_key_value_heads]
tied: [[model.embed_tokens.weight, lm_head.weight]]
default: error
boundaries: {}
"""


@pytest.fixture
def plan() -> ShardingPlan:
    return ShardingPlan.from_text(TEXT, file="plan.yaml")


def test_every_rule_keeps_its_file_and_line(plan: ShardingPlan) -> None:
    assert [rule.where for rule in plan.params] == ["plan.yaml:4", "plan.yaml:5", "plan.yaml:6"]


def test_a_rule_has_its_layout_and_its_reason(plan: ShardingPlan) -> None:
    assert [(str(rule.layout), rule.reason) for rule in plan.params] == [
        ("tp:S(0)", None),
        ("ep:S(0)", "experts over ep"),
        ("R", None),
    ]


def test_a_plan_file_says_more_than_rules(plan: ShardingPlan) -> None:
    assert plan.mesh == "dp=4,tp=8,ep=16"
    assert plan.experts == ("model.layers.*.mlp.experts",)
    parts = (("gate", 14336), ("up", 14336))
    assert plan.packed == (Packed("**.gate_up_proj.weight", 0, 1, parts, "plan.yaml", 9),)
    names = ("num_heads", "num_key_value_heads")
    assert plan.heads == (Heads("model.layers.*.self_attn", names, "plan.yaml", 11),)
    assert plan.tied == (Tied("model.embed_tokens.weight", "lm_head.weight", 12),)
    assert plan.where("default") == "plan.yaml:13"


def test_a_plan_round_trips_through_json(plan: ShardingPlan) -> None:
    assert ShardingPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_a_rule_round_trips_through_json(plan: ShardingPlan) -> None:
    rule = plan.params[1]
    assert Rule.from_json(json.loads(json.dumps(rule.to_json())), index=1) == rule


@pytest.mark.parametrize("value", [None, [], {}, {"version": 1}, {"version": 1, "params": [3]}])
def test_what_is_no_saved_plan_is_an_error(value: object) -> None:
    with pytest.raises(PlanError, match="saved"):
        ShardingPlan.from_json(value)


def test_a_plan_written_as_yaml_reads_back_with_equal_content(plan: ShardingPlan) -> None:
    again = ShardingPlan.from_text(plan.to_yaml())
    assert again.content_key() == plan.content_key()
    assert [rule.reason for rule in again.params] == [rule.reason for rule in plan.params]


def test_an_empty_plan_written_as_yaml_reads_back() -> None:
    plan = ShardingPlan(experts=[], default="replicate")
    assert ShardingPlan.from_text(plan.to_yaml()).content_key() == plan.content_key()


def test_the_content_does_not_know_where_the_plan_was_written(plan: ShardingPlan) -> None:
    moved = ShardingPlan.from_text("# moved\n" + TEXT, file="elsewhere.yaml")
    assert moved.content_key() == plan.content_key()
    assert "plan.yaml" not in json.dumps(plan.content_key())


def test_the_content_knows_the_order_of_the_rules() -> None:
    first = ShardingPlan({"a": "R", "b": "R"})
    second = ShardingPlan({"b": "R", "a": "R"})
    assert first.content_key() != second.content_key()


def test_a_plan_from_python_numbers_its_rules() -> None:
    plan = ShardingPlan({"a.*": {"tp": "S(0)"}, "b": "replicate"})
    assert [rule.where for rule in plan.params] == ["rule 1", "rule 2"]
    assert [rule.layout for rule in plan.params] == [Layout((("tp", 0),)), REPLICATED]


def test_a_plan_from_python_takes_placement_objects_of_torch() -> None:
    from torch.distributed.tensor import Replicate, Shard

    plan = ShardingPlan({"a": {"tp": Shard(1)}, "b": {"tp": Replicate()}})
    assert [str(rule.layout) for rule in plan.params] == ["tp:S(1)", "tp:R"]


def test_a_plan_from_python_takes_what_a_file_takes(plan: ShardingPlan) -> None:
    same = ShardingPlan(
        {
            "model.embed_tokens.weight": {"tp": "S(0)"},
            "model.layers.*.mlp.experts.*": {"layout": {"ep": "S(0)"}, "reason": "because"},
            "**.norm.weight": "replicate",
        },
        mesh=MeshSpec.parse("dp=4,tp=8,ep=16"),
        experts=["model.layers.*.mlp.experts"],
        packed={"**.gate_up_proj.weight": {"dim": 0, "parts": {"gate": 14336, "up": 14336}}},
        heads={"model.layers.*.self_attn": ["num_heads", "num_key_value_heads"]},
        tied=[("model.embed_tokens.weight", "lm_head.weight")],
    )
    assert same.content_key() == plan.content_key()


def test_a_bad_rule_from_python_is_named_by_its_number() -> None:
    with pytest.raises(PlanError, match=r"rule 2: .*a\.\.b.*character 3"):
        ShardingPlan({"a": "R", "a..b": "R"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"params": {"a": {"tp": "partial"}}}, "rule 1: axis tp is partial"),
        ({"params": {3: "R"}}, "rule 1: a pattern is 3"),
        ({"version": 2}, "version 2 is unknown"),
        ({"mesh": "tpp=3"}, "unknown axis 'tpp'"),
        ({"default": "replicat"}, "did you mean replicate"),
        ({"experts": "a"}, "experts is 'a': it has to be a list"),
        ({"experts": ["a..b"]}, "experts of the plan: pattern 'a..b'"),
        ({"heads": {"a": "num_heads"}}, "has to be a list"),
        ({"tied": [("a", "a")]}, "not two different names"),
    ],
)
def test_a_bad_argument_is_an_error_that_names_it(
    arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(PlanError) as caught:
        ShardingPlan(**arguments)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_a_mesh_other_than_the_plans_is_an_error_with_both(plan: ShardingPlan) -> None:
    with pytest.raises(PlanError) as caught:
        plan.check_mesh(MeshSpec.parse("dp=2,tp=4"))
    assert str(caught.value).startswith("plan.yaml:2: the plan is for mesh dp=4,tp=8,ep=16")
    assert "dp=2,tp=4" in str(caught.value)


def test_a_mesh_written_in_another_order_of_ep_is_the_plans(plan: ShardingPlan) -> None:
    plan.check_mesh(MeshSpec.parse("ep=16, dp=4, tp=8"))


def test_a_plan_without_mesh_takes_every_mesh() -> None:
    ShardingPlan({"a": "R"}).check_mesh(MeshSpec.parse("dp=8,tp=1"))


def test_the_default_replicate_is_a_rule_with_its_own_source() -> None:
    plan = ShardingPlan.from_text('params: {"a": R}\ndefault: replicate\n', file="plan.yaml")
    rule = plan.fallback
    assert rule is not None
    assert (rule.source, rule.where, str(rule.layout)) == ("default", "plan.yaml:2", "R")


def test_the_default_error_is_no_rule(plan: ShardingPlan) -> None:
    assert plan.fallback is None


def test_a_file_reads_like_its_text(tmp_path: Path, plan: ShardingPlan) -> None:
    path = tmp_path / "plan.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    read = ShardingPlan.from_file(path)
    assert read.content_key() == plan.content_key()
    assert read.params[0].where == f"{path}:4"


def test_a_file_that_does_not_exist_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no plan file"):
        ShardingPlan.from_file(tmp_path / "plan.yaml")


def test_a_file_that_does_not_exist_names_those_that_look_like_it(tmp_path: Path) -> None:
    for name in ("plan.yaml", "model.json"):
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match=r"Fix: did you mean plan\.yaml\?$"):
        ShardingPlan.from_file(tmp_path / "paln.yaml")


def test_a_folder_is_no_plan_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        ShardingPlan.from_file(tmp_path)


def test_a_file_that_is_not_utf8_is_an_error_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_bytes(b"version: 1\n# gr\xfc\xdfe\n")
    with pytest.raises(PlanError, match=r"plan\.yaml:2: the plan is not UTF-8"):
        ShardingPlan.from_file(path)


def test_plans_load_neither_torch_nor_yaml() -> None:
    code = "import sys, hpx.plan; print([m for m in ('torch', 'yaml') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
