"""Field cases F1 to F3 and F5 with real values: which rows each rank holds, and that all come back.

F4 stands with the experts and with the derived plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import hpx
from hpx import ShardingPlan
from hpx.testing import prove_conservation

QKV = {"dim": 0, "parts": {"q": 8, "k": 4, "v": 4}}
GATE_UP = {"dim": 1, "parts": {"gate": 4, "up": 4}}


class Fused(nn.Module):
    """Two rows a head: q0 q1 q2 q3 k0 k1 v0 v1."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(3, 16)


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Module()
        self.qkv.weight = nn.Parameter(torch.randn(3, 16))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up = nn.Linear(5, 8)
        self.down = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        out: Tensor = self.down(gate * up)
        return out


class Experts(nn.Module):
    """Three experts in the form of transformers: ``[E, 2F, H]``."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(3, 8, 5))
        self.gate_up_proj_bias = nn.Parameter(torch.randn(3, 8))
        self.down_proj = nn.Parameter(torch.randn(3, 5, 4))


class Mixture(nn.Module):
    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        self.gate = nn.Linear(5, 3, bias=False)
        self.experts = experts

    def forward(self, x: Tensor) -> Tensor:
        experts: Any = self.experts
        out: Tensor = experts[int(self.gate(x).sum(0).argmax())](x)
        return out


def cut(rules: dict[str, str], packed: dict[str, object]) -> ShardingPlan:
    return ShardingPlan(
        {name: {"tp": place} for name, place in rules.items()},
        default="replicate",
        packed={name: packed[name] for name in packed},
    )


STACKED = cut(
    {
        "experts.gate_up_proj": "S(1)",
        "experts.gate_up_proj_bias": "S(1)",
        "experts.down_proj": "S(2)",
    },
    {"experts.gate_up_proj": GATE_UP, "experts.gate_up_proj_bias": GATE_UP},
)
SEPARATE = cut({"experts.gate_up": "S(1)", "experts.down": "S(2)"}, {"experts.gate_up": GATE_UP})
CASES = {
    "a layer with its bias": (Fused, cut({"qkv.weight": "S(0)"}, {"qkv.weight": QKV})),
    "a transposed layer": (
        Transposed,
        cut({"qkv.weight": "S(1)"}, {"qkv.weight": {**QKV, "dim": -1}}),
    ),
    "head by head": (
        Fused,
        cut({"qkv.weight": "S(0)"}, {"qkv.weight": {**QKV, "repeat": 2}}),
    ),
    "stacked experts": (lambda: Mixture(Experts()), STACKED),
    "experts as modules": (
        lambda: Mixture(nn.ModuleList(Gated() for _ in range(3))),
        SEPARATE,
    ),
}


@pytest.fixture(params=[0, 1])
def rank(request: pytest.FixtureRequest) -> Iterator[int]:
    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=2)
    yield request.param
    dist.destroy_process_group()


def held(model: Any, name: str, plan: ShardingPlan) -> Tensor:
    hpx.apply(model, plan, "tp=2", verify="full")
    found: Tensor = model.get_parameter(name).detach().to_local()
    return found


def test_f1_a_rank_holds_its_q_heads_and_the_k_and_v_heads_they_read(rank: int) -> None:
    model: Any = Fused()
    heads = model.qkv.weight.detach().clone().view(8, 2, 3)
    expected = heads[[[0, 1, 4, 6], [2, 3, 5, 7]][rank]]
    plan = cut({"qkv.weight": "S(0)"}, {"qkv.weight": QKV})
    assert torch.equal(held(model, "qkv.weight", plan), expected.flatten(0, 1))


def test_f2_a_rank_holds_its_gate_rows_and_then_its_up_rows(rank: int) -> None:
    model: Any = Gated()
    gate, up = model.gate_up.weight.detach().clone().chunk(2)
    plan = cut(
        {"gate_up.weight": "S(0)", "down.weight": "S(1)"},
        {"gate_up.weight": {"dim": 0, "parts": {"gate": 4, "up": 4}}},
    )
    mine = torch.cat([gate.chunk(2)[rank], up.chunk(2)[rank]])
    assert torch.equal(held(model, "gate_up.weight", plan), mine)


@pytest.mark.parametrize("separate", [False, True])
def test_f3_a_rank_holds_half_of_gate_and_then_half_of_up_for_every_expert(
    rank: int, separate: bool
) -> None:
    experts: Any = nn.ModuleList(Gated() for _ in range(3)) if separate else Experts()
    if separate:
        whole = torch.stack([one.gate_up.weight.detach().clone() for one in experts])
    else:
        whole = experts.gate_up_proj.detach().clone()
    gate, up = whole.chunk(2, dim=1)
    name = "experts.gate_up" if separate else "experts.gate_up_proj"
    found = held(Mixture(experts), name, SEPARATE if separate else STACKED)
    assert torch.equal(found, torch.cat([gate.chunk(2, 1)[rank], up.chunk(2, 1)[rank]], dim=1))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mesh", ["tp=2", "dp=2,tp=2"])
def test_f5_every_element_is_held_once_and_all_come_back_in_their_order(
    case: str, mesh: str
) -> None:
    make, plan = CASES[case]
    model = make()
    proven = prove_conservation(model, plan, mesh)
    assert proven.elements == sum(parameter.numel() for parameter in model.parameters())


def test_f3_cut_experts_do_not_run_without_what_puts_them_together(rank: int) -> None:
    model = Mixture(nn.ModuleList(Gated() for _ in range(3)))
    hpx.apply(model, SEPARATE, "tp=2")
    with pytest.raises(hpx.NotRunnableError):
        model(torch.randn(2, 5))
