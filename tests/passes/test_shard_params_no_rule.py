"""Parameters without a rule: biases that follow their weight, and the rest."""

from __future__ import annotations

from hpx.plan import ShardingPlan
from hpx.testing import graph_of, run_pass
from tests.passes.sharding import COL, CONV1D, MLP, ROW, WHOLE, layouts, refused, shard


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
