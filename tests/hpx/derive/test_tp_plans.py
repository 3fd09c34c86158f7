"""Plans of transformers and of parallelize_module: translated, and compared with derived ones."""

from __future__ import annotations

import pytest
from torch import nn

import hpx
from hpx import MeshSpec, ModuleGraph, PlanError
from hpx.derive.compare import differences
from hpx.derive.tp_plan import plan_from_styles, read_styles
from tests.hpx.derive.models import FAMILIES, Attention, Expert, Layer, Stack, family

MESH = MeshSpec.parse("dp=1,tp=2,ep=2")
NO_PLAN = {"gpt2", "falcon", "bloom", "opt", "bert", "t5", "vit"}
"""Families for which transformers ships none."""
EXPLAINED = {
    "deepseek_v3": {"self_attn.q_b_proj", "self_attn.kv_b_proj", "self_attn.o_proj"},
    "qwen2_moe": {f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down")},
    "phi3": {"self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"},
    "gpt_oss": {f"self_attn.{name}" for name in ("sinks", "q_proj", "k_proj", "v_proj", "o_proj")},
}
"""Where a derived plan differs; the table of docs/reference/architectures.md says why."""


def graph_of_family(name: str) -> ModuleGraph:
    return ModuleGraph.from_module(family(name))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_derived_plan_differs_from_the_models_own_only_where_it_is_explained(name: str) -> None:
    graph = graph_of_family(name)
    styles = graph.hints.get("tp_plan")
    assert (styles is None) == (name in NO_PLAN)
    if styles is None:
        return
    done = hpx.run(graph, plan_from_styles(graph, MESH, read_styles(styles, name), name), MESH)
    lines = list(differences(graph, done.params, MESH))
    found = {line.split(":")[0].split(" x")[0].split("].")[1] for line in lines}
    bare = {name.removesuffix(".weight").removesuffix(".bias") for name in found}
    assert bare == EXPLAINED.get(name, set())


def stack() -> ModuleGraph:
    return ModuleGraph.from_module(Stack([Layer(Attention(), Expert()) for _ in range(2)]))


STYLES = {
    "layers.*.mixer.q_proj": "ColwiseParallel",
    "layers.*.mixer.k_proj": "ColwiseParallel()",
    "layers.*.mixer.v_proj": "ColwiseParallel(use_local_output=True)",
    "layers.*.mixer.o_proj": "RowwiseParallel",
    "layers.*.norm1": "SequenceParallel",
    "layers.*.mixer": "PrepareModuleInput",
    "embed": "RowwiseParallel",
}


def test_a_parallelize_module_dictionary_becomes_rules() -> None:
    plan = plan_from_styles(stack(), MeshSpec.parse("tp=2"), STYLES, "styles.json")
    found = {rule.pattern: (str(rule.layout), rule.source) for rule in plan.params}
    assert found["layers.*.mixer.{q,k,v}_proj.weight"] == ("tp:S(0)", "user")
    assert found["layers.*.mixer.o_proj.weight"] == ("tp:S(1)", "user")
    assert found["embed.weight"] == ("tp:S(0)", "user")
    assert hpx.run(stack(), plan, "tp=2", "@run").problems == ()


def test_what_is_not_named_is_whole_and_says_so() -> None:
    plan = plan_from_styles(stack(), MeshSpec.parse("tp=2"), STYLES, "styles.json")
    (rule,) = [rule for rule in plan.params if rule.pattern == "head.weight"]
    assert str(rule.layout) == "R"
    assert rule.reason == "not named (in the given plan)"


def test_a_plan_without_the_prefix_of_the_base_model_fits_too() -> None:
    graph = graph_of_family("llama")
    styles = {"layers.*.mlp.up_proj": "colwise", "layers.*.mlp.down_proj": "rowwise"}
    plan = plan_from_styles(graph, MeshSpec.parse("tp=2"), styles, "plan")
    assert "model.layers.*.mlp.up_proj.weight" in [rule.pattern for rule in plan.params]


def test_an_embedding_cut_on_its_width_stays_whole_with_the_reason() -> None:
    plan = plan_from_styles(
        stack(), MeshSpec.parse("tp=2"), {"embed": "ColwiseParallel"}, "styles.json"
    )
    (rule,) = [rule for rule in plan.params if rule.pattern == "embed.weight"]
    assert str(rule.layout) == "R"
    assert "cut on its width has no boundary" in (rule.reason or "")


def test_an_unknown_style_is_an_error_with_the_nearest() -> None:
    with pytest.raises(PlanError, match=r"'ColwisParallel'.*did you mean ColwiseParallel"):
        plan_from_styles(stack(), MESH, {"layers.*.mixer.q_proj": "ColwisParallel"}, "s.json")


def test_an_entry_that_names_nothing_is_an_error_with_the_nearest() -> None:
    with pytest.raises(PlanError, match=r"'layers.\*.mixer.q_prj' names nothing.*q_proj"):
        plan_from_styles(stack(), MESH, {"layers.*.mixer.q_prj": "colwise"}, "s.json")


@pytest.mark.parametrize("value", [[], {}, {"a": 3}, "colwise"])
def test_what_is_no_mapping_of_styles_is_refused(value: object) -> None:
    with pytest.raises(PlanError, match=r"s\.json"):
        read_styles(value, "s.json")


def test_equal_plans_have_no_differences() -> None:
    model: nn.Module = Stack([Layer(Attention(), Expert())])
    graph = ModuleGraph.from_module(model)
    done = hpx.run(graph, hpx.plan(graph, "tp=2"), "tp=2")
    assert list(differences(graph, done.params, MeshSpec.parse("tp=2"))) == []


def test_a_difference_names_the_parameters_both_layouts_and_the_reason() -> None:
    graph = stack()
    done = hpx.run(
        graph, hpx.ShardingPlan({"head.weight": {"tp": "S(0)"}, "**": "replicate"}), "tp=2"
    )
    lines = list(differences(graph, done.params, MeshSpec.parse("tp=2")))
    assert (
        "layers.[0-1].mixer.o_proj.weight x2: the plan says R, the derived one tp:S(1): row"
        " parallel, takes the heads that its rank has computed (from names)"
    ) in lines
