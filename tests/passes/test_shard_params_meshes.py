"""Which mesh a parameter is on, and which axes may cut it."""

from __future__ import annotations

import pytest

from hpx.passes.shard_params import ShardParams
from hpx.plan import ShardingPlan
from hpx.testing import Outcome, assert_pass, graph_of
from tests.passes.sharding import COL, ROW, WHOLE, layouts, refused, shard


def meshes(outcome: Outcome) -> dict[str, str | None]:
    graph = outcome.graph
    return {graph.path(node.id): node.mesh for node in graph.parameters()}


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
