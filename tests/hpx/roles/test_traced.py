"""Boundaries along traced dataflow: seeded mistakes that only the code of a model shows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import hpx
from hpx.bundled import tiny_llama, tiny_moe
from tests.hpx.pairs import CUT, Around, Mlp, TakesTheWrongOne


class Early(nn.Module):
    """What it gives is taken before it is summed."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = Mlp()
        self.late = Mlp()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.late(self.mlp.up(x)[..., :8]) + self.mlp(x)
        return out


class Up(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.up(x)
        return out


class Down(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(16, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(x)
        return out


class Cousins(nn.Module):
    """The layers of one mlp in two modules, and a norm over all channels between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Up()
        self.norm = nn.LayerNorm(16)
        self.then = Down()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.then(self.norm(self.first(x)))
        return out


def traced(model: nn.Module, inputs: object = None) -> hpx.ModuleGraph:
    graph = hpx.ModuleGraph.from_module(model)
    assert graph.trace(model, inputs).how == "export"
    return graph


def run(model: nn.Module) -> hpx.Run:
    plan = hpx.ShardingPlan(CUT, default="replicate")
    return hpx.run(traced(model, torch.zeros(2, 3, 8)), plan, "tp=2", "@run")


def test_a_rowwise_layer_that_gets_the_whole_is_refused_before_it_runs() -> None:
    plan = hpx.ShardingPlan(CUT, default="replicate")
    hpx.run(Around(TakesTheWrongOne()), plan, "tp=2", "@run")  # by shapes and names all is well
    with pytest.raises(hpx.HpxError) as error:
        run(Around(TakesTheWrongOne()))
    assert (
        "mlp.down: it takes S(-1), and what reaches it from 'mlp.side' is R: over tp = 2 it expects"
        in str(error.value)
    )


def test_columns_that_leave_a_region_before_the_sum_are_refused() -> None:
    with pytest.raises(hpx.HpxError, match=r"late: it takes R, and what reaches it .* is S\(-1\)"):
        run(Early())


def test_a_norm_over_channels_of_which_a_rank_has_some_is_refused() -> None:
    with pytest.raises(hpx.HpxError, match=r"norm: it works on all 16 columns of 'first\.up'"):
        run(Cousins())


def test_a_model_whose_values_fit_passes() -> None:
    assert (
        run(Around(Mlp())).problems
        == hpx.run(
            Around(Mlp()), hpx.ShardingPlan(CUT, default="replicate"), "tp=2", "@run"
        ).problems
    )


@pytest.mark.parametrize("pipeline", ["@run", "@run, insert-collectives{sp=true}"])
@pytest.mark.parametrize("make", [tiny_llama, tiny_moe])
def test_bundled_models_fit(make: type[nn.Module], pipeline: str) -> None:
    graph = traced(make())
    hpx.run(graph, hpx.plan(graph, "tp=2"), "tp=2", pipeline)


def test_what_the_plan_leaves_to_the_model_is_not_followed() -> None:
    plan = hpx.ShardingPlan(CUT, default="replicate", boundaries={"mlp.down": {"output": "none"}})
    hpx.run(traced(Around(Mlp()), torch.zeros(2, 3, 8)), plan, "tp=2", "@run")
