"""Field case E4: a state dict of another dialect, and how much of each stack it covers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import hpx
from hpx import HpxError, ShardingPlan
from tests.cases.models import Expert


@pytest.fixture(autouse=True)
def first_of_four() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


def stacked() -> nn.Module:
    """Four stacked experts, one on each rank."""
    model = nn.Module()
    model.experts = nn.ModuleList(Expert() for _ in range(4))
    plan = ShardingPlan({"experts.*": {"ep": "S(0)"}}, experts=["experts"])
    hpx.apply(model, plan, "dp=4,ep=4")
    return model


def refused(model: nn.Module, state: dict[str, torch.Tensor]) -> str:
    with pytest.raises(HpxError) as caught:
        hpx.load_state_dict(model, state)
    return str(caught.value)


def test_e4_experts_of_another_dialect_cover_none_of_their_stack() -> None:
    model = stacked()
    state = {f"moe.{name}": value for name, value in hpx.state_dict(model).items()}
    assert "0 of 4 sources found, 0 of " in refused(model, state)


def test_e4_a_missing_expert_is_counted_in_elements() -> None:
    model = stacked()
    state = hpx.state_dict(model)
    size = next(value for name, value in state.items() if name.startswith("experts.3.")).numel()
    kept = {name: value for name, value in state.items() if not name.startswith("experts.3.")}
    assert f"3 of 4 sources found, {3 * size:,} of {4 * size:,} elements" in refused(model, kept)
