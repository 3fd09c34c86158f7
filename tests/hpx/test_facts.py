from __future__ import annotations

import pytest

from hpx.facts import (
    EXPERTS_STACKED,
    HEADS_LOCAL,
    LOCALIZED,
    SHARDED,
    SOURCE_INFO,
    TIED,
)
from hpx.graph import ModuleGraph
from hpx.mesh import MeshSpec
from hpx.passes.build_source_info import BuildSourceInfo
from hpx.passes.localize import Localize
from hpx.passes.stack_experts import StackExperts
from hpx.passes.tie_weights import TieWeights
from hpx.passes.update_heads import UpdateHeads
from hpx.pipeline import Fact
from hpx.pipeline.request import Request
from hpx.plan import ShardingPlan
from hpx.testing import graph_of, run_pass

PAIR = ShardingPlan({}, tied=[["a.weight", "b.weight"]])


def against(
    fact: Fact, graph: ModuleGraph, plan: ShardingPlan | None = None, mesh: str = "tp=2"
) -> list[str]:
    request = Request(plan or ShardingPlan({}), MeshSpec.parse(mesh))
    return list(fact.holds(graph, request))


def test_tied_names_the_declared_pairs_that_are_apart() -> None:
    graph = graph_of({"a.weight": (4,), "b.weight": (4,)})
    assert against(TIED, graph, PAIR) == ["a.weight and b.weight are two parameters"]
    assert against(TIED, run_pass(TieWeights(), graph, plan=PAIR).graph, PAIR) == []


def test_tied_holds_where_nothing_is_declared() -> None:
    assert against(TIED, graph_of({"a.weight": (4,), "b.weight": (4,)})) == []


def test_experts_stacked_names_the_containers_that_are_not() -> None:
    graph = graph_of({f"experts.{i}.w.weight": (4, 4) for i in range(2)})
    assert against(EXPERTS_STACKED, graph) == ["experts holds 2 separate experts"]
    assert against(EXPERTS_STACKED, run_pass(StackExperts(), graph).graph) == []


def test_experts_stacked_holds_where_the_plan_says_that_none_are_to_be() -> None:
    graph = graph_of({f"experts.{i}.w.weight": (4, 4) for i in range(2)})
    assert against(EXPERTS_STACKED, graph, ShardingPlan({}, experts=[])) == []


def test_sharded_names_the_parameters_without_a_layout() -> None:
    graph = graph_of({"a.weight": (4,), "b.weight": (4,)}, layouts={"a.weight": "R"})
    assert against(SHARDED, graph) == ["b.weight has no layout"]


def test_sharded_holds_where_no_weight_axis_is_active() -> None:
    assert against(SHARDED, graph_of({"a.weight": (4,)}), mesh="dp=8,tp=1") == []


def test_sharded_holds_where_an_expert_has_no_layout_because_ep_is_one() -> None:
    graph = graph_of({"a.weight": (4,), "experts.up": (2, 4)}, layouts={"a.weight": "tp:S(0)"})
    plan = ShardingPlan({"experts.up": {"ep": "S(0)"}, "a.weight": {"tp": "S(0)"}})
    assert against(SHARDED, graph, plan, "tp=2,ep=1") == []
    plan = ShardingPlan({"a.weight": {"tp": "S(0)"}})
    assert against(SHARDED, graph, plan, "tp=2,ep=1") == ["experts.up has no layout"]


def test_sharded_does_not_hold_where_rules_for_ep_are_not_yet_carried_out() -> None:
    plan = ShardingPlan({"experts.w": {"ep": "S(0)"}})
    graph = graph_of({"experts.w": (4, 6, 8), "router.weight": (4, 8)})
    assert against(SHARDED, graph, plan, "dp=4,ep=4") == [
        "the plan has rules for ep, and no parameter is on the expert mesh"
    ]
    done = graph_of(
        {"experts.w": (4, 6, 8), "router.weight": (4, 8)}, layouts={"experts.w": "ep:S(0)"}
    )
    assert against(SHARDED, done, plan, "dp=4,ep=4") == []


def attention(**integers: int) -> ModuleGraph:
    return graph_of(
        {"attn.q_proj.weight": (32, 32)},
        attributes={"attn": integers},
        layouts={"attn.q_proj.weight": "tp:S(0)"},
    )


def test_heads_local_names_the_counts_that_are_those_of_all_ranks() -> None:
    graph = attention(num_heads=8)
    assert against(HEADS_LOCAL, graph) == ["attn.num_heads is 8, as before sharding"]
    assert against(HEADS_LOCAL, run_pass(UpdateHeads(), graph).graph) == []


def test_heads_local_names_the_declared_counts_too() -> None:
    plan = ShardingPlan({}, heads={"attn": ["n"]}, default="replicate")
    graph = attention(n=8)
    assert against(HEADS_LOCAL, graph, plan) == ["attn.n is declared under heads:, and undivided"]
    assert against(HEADS_LOCAL, run_pass(UpdateHeads(), graph, plan=plan).graph, plan) == []


@pytest.mark.parametrize("fact", [SOURCE_INFO, LOCALIZED, HEADS_LOCAL])
def test_a_fact_about_layouts_holds_while_there_are_none(fact: Fact) -> None:
    assert against(fact, graph_of({"a.weight": (4,)})) == []


def test_source_info_names_the_parameters_without_a_record() -> None:
    graph = attention()
    assert against(SOURCE_INFO, graph) == ["attn.q_proj.weight has no source-layout record"]
    assert against(SOURCE_INFO, run_pass(BuildSourceInfo(), graph).graph) == []


def test_localized_names_the_parameters_that_nobody_decided() -> None:
    graph = attention()
    assert against(LOCALIZED, graph) == ["attn.q_proj.weight is not localized"]
    assert against(LOCALIZED, run_pass(Localize(), graph).graph) == []
