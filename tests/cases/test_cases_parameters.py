"""Field cases P1, P2 and P4 to P7: requires_grad, dtypes and ties."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hpx
from hpx import ShardingPlan
from hpx.graph import ModuleGraph
from tests.cases.models import TiedLm

TIED_PLAN = ShardingPlan({"embed.weight": {"tp": "S(0)"}}, default="replicate")


def test_p1_a_frozen_parameter_stays_frozen_through_all_passes() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[0].requires_grad_(False)
    plan = ShardingPlan({"0.weight": {"tp": "S(0)"}, "1.weight": {"tp": "S(1)"}})
    done = hpx.run(model, plan, "tp=2")
    assert {param.name: param.requires_grad for param in done.params} == {
        "0.weight": False,
        "1.weight": True,
    }
    assert {node.props["localized"] for node in done.graph.parameters()} == {"forward"}


def test_p2_two_dtypes_in_a_data_parallel_group_are_counted_at_plan_time() -> None:
    model = nn.Sequential(
        nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False, dtype=torch.bfloat16)
    )
    (problem,) = hpx.run(model, ShardingPlan({}, default="replicate"), "dp_shard=2").problems
    assert problem.text == "parameters of the dense mesh have 2 dtypes: float32 x1, bfloat16 x1"


@pytest.mark.parametrize("by_storage", [False, True], ids=["one object", "one storage"])
def test_p4_a_tie_by_storage_is_one_parameter_like_one_by_object(by_storage: bool) -> None:
    done = hpx.run(TiedLm(by_storage=by_storage), TIED_PLAN, "tp=2")
    param = done.by_name["head.weight"]
    assert param is done.by_name["embed.weight"]
    assert (param.name, param.aliases) == ("embed.weight", ("head.weight",))


@pytest.mark.parametrize("by_storage", [False, True], ids=["one object", "one storage"])
def test_p5_a_tie_on_meta_holds_to_the_end(by_storage: bool) -> None:
    done = hpx.run(TiedLm(by_storage=by_storage, device="meta"), TIED_PLAN, "tp=2")
    assert done.graph.find("embed.weight") == done.graph.find("head.weight")
    assert len(done.params) == 3


def test_p5_untied_parameters_on_meta_are_not_taken_for_tied() -> None:
    model = nn.Sequential(nn.Linear(4, 4, device="meta"), nn.Linear(4, 4, device="meta"))
    assert len(list(ModuleGraph.from_module(model).parameters())) == 4


def test_p6_keys_of_the_log_never_collide_however_often_an_id_is_reused() -> None:
    reused: set[int] = set()
    graphs = []
    for _ in range(200):
        layer = nn.Linear(2, 2, bias=False)
        reused.add(id(layer.weight))
        graphs.append(ModuleGraph.from_module(layer))
        del layer
    assert len(reused) < 200
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(200)))
    done = hpx.run(model, ShardingPlan({"**": {"tp": "S(0)"}}), "tp=2")
    assert len({node.id for node in done.graph.parameters()}) == 200
    histories = [[e.key for e in done.log.of(node.id)] for node in done.graph.parameters()]
    assert set(map(tuple, histories)) == {("layout", "mesh", "source", "reduce", "localized")}
    assert all(graph == graphs[0] for graph in graphs)


def test_p7_a_tied_embedding_and_head_are_one_node_with_one_history() -> None:
    done = hpx.run(TiedLm(by_storage=False), TIED_PLAN, "tp=2")
    by_either = [done.explain(name).events for name in ("embed.weight", "head.weight")]
    assert by_either[0] == by_either[1]
    assert [str(param.layout) for param in done.params if param.shape == (16, 8)] == ["tp:S(0)"]


def test_p7_two_rules_that_differ_for_one_tied_parameter_are_refused() -> None:
    plan = ShardingPlan(
        {"embed.weight": {"tp": "S(0)"}, "head.weight": "replicate"}, default="replicate"
    )
    with pytest.raises(hpx.HpxError, match=r"tied names embed.weight, head.weight are won by"):
        hpx.run(TiedLm(by_storage=False), plan, "tp=2")
