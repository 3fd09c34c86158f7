"""Groups of ``hpx.fully_shard`` and what it refuses, on a fake group; norms without numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

import hpx
from hpx.errors import MeshError
from tests.hpx.runtime.conftest import FakeGroup

SPREAD = hpx.ShardingPlan(params={"experts.weight": {"ep": "S(0)"}}, default="replicate")


def mixture(number: int) -> nn.Module:
    model = nn.Module()
    model.experts = nn.Module()
    model.experts.weight = nn.Parameter(torch.zeros(number, 4, 4))
    return model


def test_an_ep_group_that_holds_a_part_of_a_data_rank_is_refused(fake_group: FakeGroup) -> None:
    fake_group(0, 6)
    passes = "@default, shard-params{nothing=allow}"
    applied = hpx.apply(mixture(3), SPREAD, "dp=3,tp=2,ep=3", passes)
    with pytest.raises(MeshError, match=r"a data rank has 2 ranks, and an ep group 3") as caught:
        hpx.fully_shard(applied)
    assert caught.value.fix == "use an ep that divides 2, or is a multiple of it"


@pytest.mark.parametrize("modules", [["", "1"], ["1", ""]])
def test_the_model_itself_is_the_last_group_wherever_it_is_named(
    fake_group: FakeGroup, modules: list[str]
) -> None:
    fake_group(0, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8))
    plan = hpx.ShardingPlan(params={"0.weight": {"tp": "S(0)"}}, default="replicate")
    hpx.fully_shard(hpx.apply(model, plan, "dp=2,tp=2"), modules=modules)
    assert [isinstance(module, FSDPModule) for module in model.modules()] == [True, False, True]


def test_a_norm_that_is_not_finite_is_an_error_if_one_says_so() -> None:
    model = nn.Linear(2, 2, bias=False)
    model.weight.grad = torch.full((2, 2), torch.inf)
    assert hpx.clip_grad_norm_(model, 1.0).isinf()
    model.weight.grad = torch.full((2, 2), torch.inf)
    with pytest.raises(RuntimeError, match="the norm of the gradients is inf"):
        hpx.clip_grad_norm_(model, 1.0, error_if_nonfinite=True)
    assert model.weight.grad.isinf().all()


def test_a_group_is_made_of_a_module(fake_group: FakeGroup) -> None:
    fake_group(0, 2)
    applied = hpx.apply(
        nn.Sequential(nn.Linear(4, 4)), hpx.ShardingPlan(default="replicate"), "dp=2,tp=1"
    )
    with pytest.raises(hpx.HpxError, match=r"'0\.weight' is a parameter.*name '0'"):
        hpx.fully_shard(applied, modules=["0.weight"])
