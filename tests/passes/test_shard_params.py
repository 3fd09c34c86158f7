from __future__ import annotations

import pytest
import torch
from torch import nn

from hpx.errors import HpxError, ManyErrors, PlacementMismatchError
from hpx.graph import ModuleGraph, TensorSpec
from hpx.passes.shard_params import ShardParams
from hpx.plan import ShardingPlan
from hpx.testing import (
    Outcome,
    PlanLike,
    assert_idempotent,
    assert_pass,
    check_contract,
    graph_of,
    run_pass,
)

CONV1D = "transformers.pytorch_utils.Conv1D"
MLP = {"up.weight": (8, 4), "up.bias": (8,), "down.weight": (4, 8), "down.bias": (4,)}
COL, ROW, WHOLE = {"tp": "S(0)"}, {"tp": "S(1)"}, "replicate"


def shard(
    before: ModuleGraph, params: PlanLike, mesh: str = "tp=2", pass_: ShardParams | None = None
) -> Outcome:
    return run_pass(pass_ or ShardParams(), before, plan=params, mesh=mesh)


def refused(
    before: ModuleGraph, params: PlanLike, mesh: str = "tp=2", pass_: ShardParams | None = None
) -> str:
    nodes = dict(before.nodes)
    with pytest.raises(HpxError) as caught:
        shard(before, params, mesh, pass_)
    assert before.nodes == nodes
    return str(caught.value)


def layouts(outcome: Outcome) -> dict[str, str]:
    graph = outcome.graph
    return {graph.path(node.id): str(node.layout) for node in graph.parameters()}


def meshes(outcome: Outcome) -> dict[str, str | None]:
    graph = outcome.graph
    return {graph.path(node.id): node.mesh for node in graph.parameters()}


# -- which rule decides ------------------------------------------------------------------------


def test_every_parameter_gets_the_layout_of_its_rule_and_the_mesh_it_lives_on() -> None:
    plan = {"up.*": COL, "down.weight": ROW, "down.bias": WHOLE}
    outcome = assert_pass(
        ShardParams(),
        graph_of(MLP),
        {
            "up.weight": {"layout": "tp:S(0)", "mesh": "dense"},
            "up.bias": {"layout": "tp:S(0)", "mesh": "dense"},
            "down.weight": {"layout": "tp:S(1)", "mesh": "dense"},
            "down.bias": {"layout": "R", "mesh": "dense"},
        },
        plan=plan,
        events=[
            "set layout tp:S(0): up.weight, up.bias",
            "set mesh dense: up.weight, up.bias",
            "set layout tp:S(1): down.weight",
            "set mesh dense: down.weight",
            "set layout R: down.bias",
            "set mesh dense: down.bias",
        ],
    )
    assert [event.rule.pattern for event in outcome.events if event.rule] == [
        "up.*",
        "down.weight",
        "down.bias",
    ]


def test_one_rule_over_all_layers_is_one_event() -> None:
    before = graph_of({f"layers.{i}.up.weight": (4, 4) for i in range(3)})
    outcome = shard(before, {"layers.*.up.weight": COL})
    assert [len(event.nodes) for event in outcome.events if event.key == "layout"] == [3]


def test_the_first_rule_wins_and_the_later_one_is_logged_as_lost() -> None:
    outcome = shard(graph_of(MLP), {"up.weight": COL, "**": WHOLE})
    lost = [event for event in outcome.events if event.kind == "skip"]
    assert layouts(outcome)["up.weight"] == "tp:S(0)"
    assert [(event.rule.pattern if event.rule else "", event.why) for event in lost] == [
        ("**", "rule '**' (rule 2) lost: an earlier rule matches")
    ]


def test_a_rule_matches_any_name_of_a_tied_parameter() -> None:
    before = graph_of({"embed.weight": (8, 4)}, tied={"head.weight": "embed.weight"})
    assert layouts(shard(before, {"head.weight": COL})) == {"embed.weight": "tp:S(0)"}


def test_a_negative_dim_is_normalised() -> None:
    assert layouts(shard(graph_of({"w": (4, 8)}), {"w": {"tp": "S(-1)"}})) == {"w": "tp:S(1)"}


def test_a_reason_in_the_plan_is_part_of_the_log() -> None:
    outcome = shard(graph_of({"w": (4, 8)}), {"w": {"layout": COL, "reason": "column parallel"}})
    assert outcome.events[0].why == "rule says tp:S(0): column parallel"


# -- parameters without a rule -----------------------------------------------------------------


def test_a_bias_without_a_rule_is_cut_with_its_colwise_weight() -> None:
    outcome = shard(graph_of(MLP), {"up.weight": COL, "down.*": WHOLE})
    bias = next(event for event in outcome.events if "colwise" in event.why)
    assert layouts(outcome)["up.bias"] == "tp:S(0)"
    assert bias.why == "bias of a colwise layer: cut with its weight"
    assert bias.cause == 0


def test_a_bias_without_a_rule_stays_whole_with_its_rowwise_weight() -> None:
    outcome = shard(graph_of(MLP), {"up.*": COL, "down.weight": ROW})
    assert layouts(outcome)["down.bias"] == "R"
    assert any("rowwise layer: replicated, added once" in event.why for event in outcome.events)


def test_the_bias_of_a_transposed_linear_follows_its_output_dim() -> None:
    before = graph_of(
        {"fc.weight": (4, 8), "fc.bias": (8,), "proj.weight": (8, 4), "proj.bias": (4,)},
        classes={"fc": CONV1D, "proj": CONV1D},
    )
    assert layouts(shard(before, {"fc.weight": ROW, "proj.weight": COL})) == {
        "fc.weight": "tp:S(1)",
        "fc.bias": "tp:S(0)",
        "proj.weight": "tp:S(0)",
        "proj.bias": "R",
    }


def test_the_bias_of_a_convolution_follows_its_output_channels() -> None:
    before = graph_of(
        {"conv.weight": (8, 4, 3), "conv.bias": (8,)}, classes={"conv": "torch.nn.Conv1d"}
    )
    assert layouts(shard(before, {"conv.weight": COL}))["conv.bias"] == "tp:S(0)"


def test_without_classes_a_bias_as_long_as_dim_1_tells_a_transposed_weight() -> None:
    names = {"fc.weight": (4, 8), "fc.bias": (8,)}
    before = graph_of(names, classes={"": "", "fc": ""})
    assert layouts(shard(before, {"fc.weight": ROW}))["fc.bias"] == "tp:S(0)"


def test_without_classes_the_bias_of_a_square_weight_among_transposed_ones_needs_a_rule() -> None:
    names = {"fc.weight": (4, 8), "fc.bias": (8,), "proj.weight": (4, 4), "proj.bias": (4,)}
    before = graph_of(names, classes={"": "", "fc": "", "proj": ""})
    assert "1 parameter has no rule: proj.bias" in refused(
        before, {"fc.weight": ROW, "proj.weight": COL}
    )


def test_the_bias_of_stacked_experts_is_on_ep_with_its_weight() -> None:
    from hpx.passes.stack_experts import StackExperts

    shapes = {
        f"experts.{i}.up.{name}": shape
        for i in range(4)
        for name, shape in (("weight", (6, 8)), ("bias", (6,)))
    }
    before = run_pass(StackExperts(), graph_of(shapes)).graph
    outcome = shard(before, {"experts.up": {"ep": "S(0)"}}, "tp=2,ep=2")
    assert layouts(outcome) == {"experts.up": "ep:S(0)", "experts.up_bias": "ep:S(0)"}


def test_a_bias_whose_rule_contradicts_its_weight_is_pointed_out() -> None:
    outcome = shard(graph_of(MLP), {"up.weight": COL, "up.bias": WHOLE, "down.*": WHOLE})
    assert [problem.text for problem in outcome.problems] == [
        "up.bias is R, and its weight tp:S(0) asks for tp:S(0)"
    ]


def test_parameters_without_a_rule_are_one_error_that_folds_their_names() -> None:
    before = graph_of({"w": (4, 4), **{f"layers.{i}.norm.weight": (4,) for i in range(3)}})
    text = refused(before, {"w": COL})
    assert "3 parameters have no rule: layers.[0-2].norm.weight x3" in text


def test_parameters_without_a_rule_are_replicated_where_the_plan_says_so() -> None:
    plan = ShardingPlan({"up.weight": COL}, default="replicate")
    outcome = shard(graph_of({"up.weight": (8, 4), "norm.weight": (4,)}), plan)
    event = next(e for e in outcome.events if e.rule and e.rule.source == "default")
    assert layouts(outcome)["norm.weight"] == "R"
    assert event.why == "no rule matches: the plan's default is replicate"


def test_expert_weights_without_a_rule_are_told_apart_and_listed() -> None:
    before = graph_of({"gate.weight": (4, 4), "experts.w1": (4, 6, 8), "experts.w2": (4, 8, 6)})
    text = refused(before, {"gate.weight": COL})
    assert "2 expert weights with no rule: experts.w1, experts.w2" in text


# -- meshes ------------------------------------------------------------------------------------


def test_without_an_active_weight_axis_nothing_is_touched() -> None:
    events = ["skip layout: up.weight", "skip layout: down.weight"]
    before = graph_of({"up.weight": (8, 4), "down.weight": (4, 8)})
    for mesh in ("dp=8", "dp=8,tp=1"):
        whole: dict[str, object] = {"up.weight": WHOLE, "down.weight": WHOLE}
        rules = whole if mesh == "dp=8" else {"up.weight": COL, "down.weight": ROW}
        outcome = assert_pass(ShardParams(), before, {}, plan=rules, mesh=mesh, events=events)
        assert "no active weight axis on the dense mesh (tp=1)" in outcome.events[0].why


def test_a_parameter_is_on_the_expert_mesh_if_its_layout_shards_on_ep() -> None:
    before = graph_of({"experts.w": (4, 6, 8), "router.weight": (4, 8), "q.weight": (8, 8)})
    plan = {"experts.w": {"ep": "S(0)"}, "router.weight": WHOLE, "q.weight": COL}
    outcome = shard(before, plan, "dp=2,tp=2,ep=4")
    assert meshes(outcome) == {"experts.w": "expert", "router.weight": "dense", "q.weight": "dense"}


def test_with_only_ep_active_dense_parameters_stay_untouched() -> None:
    before = graph_of({"experts.w": (4, 6, 8), "router.weight": (4, 8)})
    outcome = shard(before, {"experts.w": {"ep": "S(0)"}, "router.weight": WHOLE}, "dp=4,ep=4")
    assert layouts(outcome) == {"experts.w": "ep:S(0)", "router.weight": "None"}


def test_an_ep_axis_that_cuts_nothing_is_pointed_out() -> None:
    outcome = shard(graph_of({"w": (4, 8)}), {"w": COL}, "dp=2,tp=2,ep=4")
    assert [problem.text for problem in outcome.problems] == [
        "the mesh has ep=4, and no parameter is sharded on ep"
    ]


def test_experts_that_stay_whole_beside_others_on_ep_are_pointed_out() -> None:
    before = graph_of({"a.experts.w": (4, 6, 8), "b.experts.w": (4, 6, 8)})
    plan = ShardingPlan({"a.experts.w": {"ep": "S(0)"}}, default="replicate")
    outcome = shard(before, plan, "tp=2,dp=2,ep=4")
    assert [problem.text for problem in outcome.problems] == [
        "1 expert parameter not sharded on ep, while 1 are: b.experts.w"
    ]


# -- what it refuses ---------------------------------------------------------------------------


def test_a_rule_that_matches_nothing_is_an_error_with_the_nearest_names() -> None:
    text = refused(graph_of({"up.weight": (8, 4)}), {"up.weihgt": COL, "**": WHOLE})
    assert "rule 1: rule 'up.weihgt' matches no parameter. Fix: did you mean up.weight?" in text


def test_a_rule_that_never_wins_is_an_error() -> None:
    text = refused(graph_of({"up.weight": (8, 4)}), {"**": COL, "up.weight": ROW})
    assert "rule 'up.weight' never wins" in text


def test_a_rule_for_names_that_stacking_replaced_points_to_the_stacked_name() -> None:
    from hpx.mesh import MeshSpec
    from hpx.pipeline import as_passes
    from hpx.pipeline.manager import PassManager
    from hpx.pipeline.request import Request

    before = graph_of({f"layers.0.experts.{i}.up.weight": (6, 8) for i in range(4)})
    plan = ShardingPlan({"layers.*.experts.*.up.weight": {"ep": "S(0)"}})
    request = Request(plan, MeshSpec.parse("tp=2,dp=2,ep=4"))
    with pytest.raises(ManyErrors, match=r"write 'layers.\*.experts.up'"):
        PassManager(as_passes("stack-experts, shard-params, tie-weights")).run(before, request)


def test_tied_names_that_different_rules_win_are_an_error() -> None:
    before = graph_of({"embed.weight": (8, 4)}, tied={"head.weight": "embed.weight"})
    text = refused(before, {"embed.weight": COL, "head.weight": WHOLE})
    assert "tied names embed.weight, head.weight are won by different rules" in text


def test_an_uneven_cut_is_refused_with_the_sizes_that_would_do() -> None:
    text = refused(graph_of({"w": (6, 4)}), {"w": COL}, "tp=4")
    assert "w, rule 1: dim 0 of [6, 4] cannot be cut evenly by tp=4" in text
    assert "6 % 4 = 2, ranks would hold 2,2,2,0" in text
    assert "use a tp of 1, 2, 3, 6, or shard-params{uneven=allow}" in text


def test_equal_findings_in_all_layers_are_one_error() -> None:
    before = graph_of({f"layers.{i}.w": (6, 4) for i in range(80)})
    text = refused(before, {"layers.*.w": COL}, "tp=4")
    assert len(text.splitlines()) == 2
    assert "layers.{0-79}.w" in text


def test_an_uneven_cut_may_be_allowed_and_its_sizes_are_reported() -> None:
    outcome = shard(graph_of({"w": (5, 4)}), {"w": COL}, "tp=4", ShardParams(uneven="allow"))
    assert layouts(outcome) == {"w": "tp:S(0)"}
    assert [problem.text for problem in outcome.problems] == [
        "dim 0 of size 5 over tp=4 is uneven: 2,2,1,0; tp rank 3 holds nothing"
    ]


def test_an_uneven_number_of_experts_is_never_allowed() -> None:
    before = graph_of({"experts.w": (6, 4, 4)})
    plan, pass_ = {"experts.w": {"ep": "S(0)"}}, ShardParams(uneven="allow")
    text = refused(before, plan, "dp=4,ep=4", pass_)
    assert "6 experts cannot be shared by ep=4: E = 6, ep = 4, 6 % 4 = 2" in text
    assert "use an ep of 1, 2, 3, 6" in text


def test_an_uneven_cut_of_heads_names_the_count_even_where_uneven_is_allowed() -> None:
    before = graph_of({"attn.q_proj.weight": (18, 8)}, attributes={"attn": {"num_heads": 6}})
    text = refused(before, {"attn.q_proj.weight": COL}, "tp=4", ShardParams(uneven="allow"))
    assert "heads cannot be cut by tp=4: 6 % 4 = 2 (num_heads)" in text
    assert "use a tp of 1, 2, 3, 6" in text


def test_nothing_cut_while_tp_is_active_is_an_error() -> None:
    before = graph_of({"w": (4, 4), "v": (4, 4)})
    text = refused(before, ShardingPlan({"w": WHOLE}, default="replicate"))
    assert "0 of 2 parameters sharded, and tp is 2" in text


def test_nothing_cut_is_pointed_out_where_rules_say_of_all_that_they_are_whole() -> None:
    outcome = shard(graph_of({"w": (4, 4)}), {"w": WHOLE})
    assert layouts(outcome) == {"w": "R"}
    assert [problem.text for problem in outcome.problems] == [
        "0 of 1 parameters sharded, and tp is 2: rules say of all that they are whole"
    ]


def test_nothing_cut_while_tp_is_active_may_be_allowed() -> None:
    outcome = shard(graph_of({"w": (4, 4)}), {"w": WHOLE}, "tp=2", ShardParams(nothing="allow"))
    assert layouts(outcome) == {"w": "R"}


def test_an_axis_that_the_mesh_does_not_have_is_an_error_with_the_rule() -> None:
    text = refused(graph_of({"w": (4, 4)}), {"w": {"pt": "S(0)"}})
    assert "rule 1: w [4, 4]: layout pt:S(0) names axis 'pt', which mesh tp=2 does not have" in text


@pytest.mark.parametrize("axis", ["dp", "cp", "pp"])
def test_an_axis_that_belongs_to_fsdp_or_to_no_weight_is_refused(axis: str) -> None:
    text = refused(graph_of({"w": (4, 4)}), {"w": {axis: "S(0)"}}, f"{axis}=2,tp=2")
    assert f"axis '{axis}'" in text or f"axis {axis}" in text


def test_ep_together_with_another_axis_is_refused() -> None:
    before = graph_of({"experts.w": (4, 4, 4)})
    text = refused(before, {"experts.w": {"ep": "S(0)", "tp": "S(1)"}}, "tp=2,dp=2,ep=2")
    assert "ep" in text
    assert "tp" in text


def test_a_dim_that_the_parameter_does_not_have_is_refused() -> None:
    text = refused(graph_of({"w": (4,)}), {"w": ROW})
    assert "cuts dim 1 of a tensor of 1 dim" in text


def test_ep_on_a_dense_parameter_is_refused() -> None:
    before = graph_of({"q.weight": (8, 8), "experts.w": (4, 6, 8)})
    text = refused(before, {"**": {"ep": "S(0)"}}, "dp=4,ep=4")
    assert "q.weight, rule 1: ep cuts stacked experts only, and this is none" in text


def test_ep_on_another_dim_than_the_experts_is_refused() -> None:
    text = refused(graph_of({"experts.w": (4, 8, 8)}), {"**": {"ep": "S(1)"}}, "dp=4,ep=4")
    assert "ep cuts dim 1, and experts are whole on their rank" in text


def test_a_bias_that_stays_whole_beside_experts_on_ep_is_refused() -> None:
    before = graph_of({"experts.w": (4, 6, 8), "experts.w_bias": (4, 6)})
    plan = ShardingPlan({"experts.w": {"ep": "S(0)"}}, default="replicate")
    text = refused(before, plan, "dp=4,ep=4")
    assert "experts.w_bias" in text
    assert "its slot i would be of another expert than theirs" in text


@pytest.mark.parametrize("cls", ["torch.nn.modules.normalization.RMSNorm", "my.LlamaRMSNorm"])
def test_a_norm_that_is_cut_is_refused(cls: str) -> None:
    before = graph_of({"q_norm.weight": (8,), "up.weight": (8, 4)}, classes={"q_norm": cls})
    text = refused(before, {"**": COL})
    assert "q_norm.weight, rule 1: a norm cannot be cut" in text


def test_a_norm_with_a_row_a_head_may_be_cut_on_its_heads() -> None:
    before = graph_of({"q_norm.weight": (8, 4)}, classes={"q_norm": "cohere.CohereLayerNorm"})
    assert layouts(shard(before, {"**": COL})) == {"q_norm.weight": "tp:S(0)"}


def test_a_tensor_of_an_unknown_type_that_is_cut_is_refused_by_name() -> None:
    spec = TensorSpec((8, 4), "uint8", cls="bitsandbytes.nn.modules.Params4bit")
    text = refused(graph_of({"q.weight": spec}), {"q.weight": COL})
    assert "q.weight, rule 1: cannot shard type Params4bit" in text


def test_a_parametrised_module_is_refused_whole() -> None:
    model = nn.Module()
    model.up = nn.utils.parametrizations.weight_norm(nn.Linear(4, 8))
    model.down = nn.Linear(8, 4)
    plan = ShardingPlan({"up.weight": COL, "down.weight": ROW}, default="replicate")
    text = refused(ModuleGraph.from_module(model), plan)
    assert "up, rule 1: up.weight cannot be sharded" in text
    assert "1 problem with the plan; nothing was changed" in text


def test_the_parts_of_a_parametrised_weight_are_refused_too() -> None:
    model = nn.Module()
    model.up = nn.utils.parametrizations.weight_norm(nn.Linear(4, 8))
    plan = ShardingPlan({"up.parametrizations.weight.original1": COL}, default="replicate")
    assert "up.weight cannot be sharded" in refused(ModuleGraph.from_module(model), plan)


def test_a_parametrised_module_that_stays_whole_is_no_problem() -> None:
    model = nn.Module()
    model.up = nn.utils.parametrizations.weight_norm(nn.Linear(4, 8))
    model.down = nn.Linear(8, 4)
    plan = ShardingPlan({"down.weight": ROW}, default="replicate")
    outcome = shard(ModuleGraph.from_module(model), plan)
    assert layouts(outcome)["up.parametrizations.weight.original1"] == "R"


def dtensor(*placed: tuple[str, int, str]) -> ModuleGraph:
    spec = TensorSpec((8, 4), "float32", cls="torch.distributed.tensor.DTensor", placed=placed)
    return graph_of({"w": spec})


def test_a_dtensor_that_is_placed_as_the_plan_says_stays() -> None:
    assert layouts(shard(dtensor(("tp", 2, "S(0)")), {"w": COL})) == {"w": "tp:S(0)"}


@pytest.mark.parametrize("placed", [("tp", 2, "S(1)"), ("tp", 4, "S(0)"), ("tp", 2, "P")])
def test_a_dtensor_that_is_placed_differently_is_a_mismatch(placed: tuple[str, int, str]) -> None:
    with pytest.raises(ManyErrors) as caught:
        shard(dtensor(placed), {"w": COL})
    (finding,) = caught.value.findings
    assert isinstance(finding, PlacementMismatchError)
    assert f"expected tp=2:S(0), found tp={placed[1]}:{placed[2]}" in str(finding)


def test_a_dtensor_sharded_on_tp_is_a_mismatch_on_a_mesh_without_tp() -> None:
    with pytest.raises(ManyErrors, match=r"expected tp=1:R, found tp=2:S\(0\)"):
        shard(dtensor(("tp", 2, "S(0)")), {"w": WHOLE}, "dp=4")


def test_a_dtensor_that_fsdp_sharded_is_refused() -> None:
    text = refused(dtensor(("dp", 2, "S(0)")), {"w": COL})
    assert "it is sharded on dp already (dp=2:S(0))" in text
    assert "fully_shard after it" in text


def test_frozen_weights_stay_frozen() -> None:
    before = graph_of({"w": (4, 4)}, frozen=["w"])
    node = next(shard(before, {"w": COL}).graph.parameters())
    assert node.spec.requires_grad is False


def test_buffers_get_no_layout() -> None:
    before = graph_of({"w": (4, 4), "inv_freq": (4,)}, buffers=["inv_freq"])
    outcome = shard(before, {"w": COL})
    assert next(outcome.graph.buffers()).layout is None


def test_a_real_module_is_sharded_without_being_touched() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    shard(ModuleGraph.from_module(model), {"0.weight": COL, "1.weight": ROW})
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


# -- declarations ------------------------------------------------------------------------------


def test_it_keeps_its_contract_and_shards_once() -> None:
    plan = {"up.*": COL, "down.weight": ROW}
    check_contract(ShardParams(), graph_of(MLP), plan)
    assert_idempotent(ShardParams(), graph_of(MLP), plan)
