"""Small mixtures of experts, and what `stack-experts` says when it refuses them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import nn

from hpx.errors import HpxError
from hpx.graph import ModuleGraph
from hpx.passes.stack_experts import StackExperts
from hpx.plan import ShardingPlan
from hpx.testing import run_pass

__all__ = ["Expert", "Moe", "graph", "moe", "naming", "refused"]


class Expert(nn.Module):
    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.width = 6
        self.up = nn.Linear(8, 6, bias=bias)
        self.down = nn.Linear(6, 8, bias=bias)


class Moe(nn.Module):
    def __init__(self, experts: list[nn.Module]) -> None:
        super().__init__()
        self.gate = nn.Linear(8, len(experts), bias=False)
        self.experts = nn.ModuleList(experts)

    def expert(self, index: int) -> Expert:
        found = self.experts[index]
        assert isinstance(found, Expert)
        return found


def moe(count: int = 4, make: Callable[[], nn.Module] = Expert) -> Moe:
    return Moe([make() for _ in range(count)])


def graph(model: nn.Module) -> ModuleGraph:
    return ModuleGraph.from_module(model)


def naming(*patterns: str) -> ShardingPlan:
    return ShardingPlan({}, experts=patterns, default="replicate")


def refused(model: nn.Module | ModuleGraph, plan: ShardingPlan | None = None) -> str:
    before = model if isinstance(model, ModuleGraph) else graph(model)
    with pytest.raises(HpxError) as caught:
        run_pass(StackExperts(), before, plan=plan)
    return str(caught.value)
