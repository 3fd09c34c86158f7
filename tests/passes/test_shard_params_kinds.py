"""Tensors of other kinds: unknown types, parametrised weights, DTensors."""

from __future__ import annotations

import pytest
from torch import nn

from hpx.errors import ManyErrors, PlacementMismatchError
from hpx.graph import ModuleGraph, TensorSpec
from hpx.plan import ShardingPlan
from hpx.testing import graph_of
from tests.passes.sharding import COL, ROW, WHOLE, layouts, refused, shard


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
