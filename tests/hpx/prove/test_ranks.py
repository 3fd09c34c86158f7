"""The shape proof on each rank that holds pieces of other shapes, and what it says of experts."""

from __future__ import annotations

import pytest
from torch import Tensor, nn
from torch.nn import functional

import hpx
from hpx import Run, ShardingPlan
from hpx.prove import Proof, prove
from hpx.prove.regions import regions_of
from tests.hpx.prove.models import Model

RULES = {
    "**.up.weight": {"tp": "S(0)"},
    "**.down.weight": {"tp": "S(1)"},
}
UNEVEN = ["@default", "!shard-params", "shard-params{uneven=allow}"]


class Reading(nn.Module):
    """An mlp whose code asks for a number of channels at least."""

    def __init__(self, width: int, channel: int = 0) -> None:
        super().__init__()
        self.up = nn.Linear(32, width, bias=False)
        self.down = nn.Linear(width, 32, bias=False)
        self.channel = channel

    def forward(self, hidden: Tensor) -> Tensor:
        wide = self.up(hidden)
        if self.channel:
            wide.unfold(-1, self.channel + 1, 1)
        out: Tensor = self.down(functional.relu(wide))
        return out


def run(model: nn.Module) -> Run:
    return hpx.run(model, ShardingPlan(RULES, default="replicate"), "tp=4", UNEVEN)


def proof(width: int, channel: int = 0) -> Proof:
    model = Model(Reading(width, channel))
    return prove(run(model), model, seconds=60.0)


def test_a_region_has_one_entry_for_each_shape_that_a_rank_holds() -> None:
    (region,) = regions_of(run(Model(Reading(30))))
    shapes = [(rank, held["up.weight"], held["down.weight"]) for rank, held in region.ranks]
    assert shapes == [(0, (8, 32), (32, 8)), (3, (6, 32), (32, 6))]


def test_ranks_of_equal_shapes_are_replayed_once() -> None:
    (region,) = regions_of(run(Model(Reading(32))))
    assert [rank for rank, _ in region.ranks] == [0]


def test_pieces_of_different_sizes_are_proved() -> None:
    found = proof(30, 5)
    assert (found.status, found.distinct, found.proved) == ("proved", 1, 1)


def test_what_fails_on_the_last_rank_alone_is_found_and_names_it() -> None:
    (problem,) = proof(30, 7).problems
    assert problem.text.startswith("with the shapes of tp rank 3 it fails: ")
    assert problem.check == "shapes"


def test_ranks_that_hold_nothing_are_tried_too() -> None:
    model = Model(Reading(3))
    (region,) = regions_of(run(model))
    assert [held["up.weight"] for _, held in region.ranks] == [(1, 32), (0, 32)]
    assert prove(run(model), model, seconds=60.0).status == "proved"


def test_experts_that_are_cut_on_ep_are_said_to_be_unproven_with_the_reason() -> None:
    pytest.importorskip("transformers")
    from tests.hpx.derive.models import family

    model = family("mixtral")
    mesh = "dp=1,tp=2,ep=2"
    found = prove(hpx.run(model, hpx.plan(model, mesh), mesh), model, seconds=60.0)
    assert found.status == "proved"
    assert "experts unproven: model.layers.*.mlp.experts is cut on ep and not replayed" in str(
        found
    )
    assert found.to_json()["experts"] == found.experts


def test_without_ep_nothing_is_said_of_experts() -> None:
    assert proof(32).experts == ""
