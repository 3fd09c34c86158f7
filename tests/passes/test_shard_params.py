"""Which rule decides, and what `shard-params` leaves alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hpx.errors import ManyErrors
from hpx.graph import ModuleGraph
from hpx.passes.shard_params import ShardParams
from hpx.plan import ShardingPlan
from hpx.testing import assert_idempotent, assert_pass, check_contract, graph_of
from tests.passes.sharding import COL, MLP, ROW, WHOLE, layouts, refused, shard


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


def test_it_keeps_its_contract_and_shards_once() -> None:
    plan = {"up.*": COL, "down.weight": ROW}
    check_contract(ShardParams(), graph_of(MLP), plan)
    assert_idempotent(ShardParams(), graph_of(MLP), plan)
