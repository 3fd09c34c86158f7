"""Plans of transformers and of parallelize_module: translated, and compared with derived ones."""

from __future__ import annotations

import pytest
from torch import nn

import hpx
from hpx import MeshSpec, ModuleGraph, PlanError
from hpx.derive.compare import differences
from hpx.derive.tp_plan import plan_from_styles, read_styles
from tests.hpx.derive.models import FAMILIES, Attention, Expert, Layer, Stack, family, moe

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


# -- what entries name -------------------------------------------------------------------------


def reasons(graph: ModuleGraph, styles: dict[str, str], mesh: str = "tp=2") -> dict[str, str]:
    plan = plan_from_styles(graph, MeshSpec.parse(mesh), styles, "s.json")
    return {rule.pattern: f"{rule.layout}: {rule.reason}" for rule in plan.params}


@pytest.mark.parametrize("pattern", ["layers.*.mixer", "layers.*", ""])
def test_a_style_that_cuts_and_names_no_layer_is_an_error(pattern: str) -> None:
    with pytest.raises(PlanError, match=r"is colwise, and .* holds no parameter itself"):
        reasons(stack(), {pattern: "colwise"})


def test_the_inputs_of_the_whole_model_may_be_prepared() -> None:
    found = reasons(stack(), {"": "PrepareModuleInput()", **STYLES})
    assert found["layers.*.mixer.o_proj.weight"].startswith("tp:S(1)")


@pytest.mark.parametrize(
    ("style", "said"),
    [
        ("ColwiseParallel(output_layouts=Replicate())", "colwise_gather_output: hpx gathers"),
        (
            "ColwiseParallel(input_layouts=(Replicate(),), output_layouts=(Replicate(),))",
            "colwise_gather_output: hpx gathers",
        ),
        ("RowwiseParallel(input_layouts=Replicate())", "rowwise_split_input: hpx gathers"),
    ],
)
def test_what_torch_would_gather_or_split_inside_a_block_stays_whole(style: str, said: str) -> None:
    found = reasons(stack(), {**STYLES, "layers.*.mixer.o_proj": style})
    assert found["layers.*.mixer.o_proj.weight"].startswith(f"R: {said}")


def test_a_style_as_torch_prints_it_is_read() -> None:
    parallel = pytest.importorskip("torch.distributed.tensor.parallel")
    styles = {"layers.*.mixer.q_proj": parallel.ColwiseParallel()}
    styles["layers.*.mixer.o_proj"] = parallel.RowwiseParallel()
    found = reasons(stack(), {name: repr(style) for name, style in styles.items()})
    assert found["layers.*.mixer.q_proj.weight"].startswith("tp:S(0)")
    assert found["layers.*.mixer.o_proj.weight"].startswith("tp:S(1)")


def test_a_head_of_any_name_is_cut_where_its_scores_are_gathered() -> None:
    styles = {"score": "ColwiseParallel(output_layouts=Replicate())"}
    model = Stack([Layer(Attention(), Expert())])
    model.score = model.head
    del model.head
    found = reasons(ModuleGraph.from_module(model), styles)
    assert found["score.weight"].startswith("tp:S(0)")


def test_the_name_of_a_weight_stands_for_its_layer() -> None:
    found = reasons(stack(), {"layers.*.mixer.q_proj.weight": "colwise"})
    assert found["layers.*.mixer.q_proj.weight"].startswith("tp:S(0)")


def test_single_experts_are_named_by_the_stack_that_holds_them() -> None:
    entry = {"layers.*.feed.experts.*.w1": "colwise"}
    found = reasons(ModuleGraph.from_module(moe()), entry, "tp=2,ep=2")
    (said,) = [text for name, text in found.items() if "experts" in name and "colwise" in text]
    assert said.startswith("R: colwise of experts, which hpx cuts on ep alone")


def test_experts_without_an_ep_axis_are_not_said_to_be_shared_by_one() -> None:
    found = reasons(ModuleGraph.from_module(moe()), {"layers.*.feed.experts": "grouped_gemm"})
    assert any(
        text.startswith("R: grouped_gemm, and the mesh has no ep axis") for text in found.values()
    )


def test_two_names_of_one_parameter_with_different_styles_are_an_error() -> None:
    model = Stack([Layer(Attention(), Expert())])
    model.head.weight = model.embed.weight
    styles = {"embed": "replicate", "head": "colwise"}
    with pytest.raises(PlanError, match=r"'embed' is replicate and 'head' is colwise, and both"):
        reasons(ModuleGraph.from_module(model), styles)
