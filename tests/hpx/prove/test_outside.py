"""What a region gives beside its first tensor: nobody puts it together from parts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import hpx
from tests.hpx.prove.models import HeadSize, Model
from tests.hpx.prove.test_prove import proof, text_of


class Mlp(nn.Module):
    """Gives its channels too."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(64, 32)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        inner = self.up(hidden).relu()
        return self.down(inner), inner


class Weighing(HeadSize):
    """Gives the weights of its heads too."""

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        q, k, v = (self.heads(layer(hidden)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.transpose(-1, -2), -1)
        return self.o((weights @ v).transpose(1, 2).flatten(2)), weights


class Silent(nn.Module):
    """Passes the second tensor over."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.inner(hidden)[0]
        return out


class Reading(Silent):
    """Scales the first tensor by a mean of the second."""

    def forward(self, hidden: Tensor) -> Tensor:
        out, more = self.inner(hidden)
        scaled: Tensor = out * more.flatten(1).mean(-1)[:, None, None]
        return scaled


class Giving(Model):
    """Gives out what its layers give beside the stream."""

    def forward(self, ids: Tensor) -> list[Tensor]:  # type: ignore[override]
        hidden: Tensor = self.embed(ids)
        given = []
        for layer in self.layers:
            out, more = layer(hidden)
            hidden = hidden + out
            given.append(more)
        return [hidden, *given]


@pytest.mark.parametrize("inner", [Mlp, Weighing])
def test_a_part_that_the_code_around_reads_fails_with_its_place(inner: type[nn.Module]) -> None:
    text = text_of(proof(Model(Reading(inner()))))
    assert "runs and computes something else: tensor 2 that it gives is" in text
    assert "nobody puts it together: layers.0 reads it at " in text
    assert "test_outside.py:" in text


def test_the_sizes_of_the_part_are_told() -> None:
    assert ", 16] of [" in text_of(proof(Model(Reading(Mlp()))))


@pytest.mark.parametrize("inner", [Mlp, Weighing])
def test_a_part_that_the_model_gives_out_fails(inner: type[nn.Module]) -> None:
    assert "the model gives it out" in text_of(proof(Giving(inner())))


@pytest.mark.parametrize("inner", [Mlp, Weighing])
def test_a_part_that_nobody_reads_fits(inner: type[nn.Module]) -> None:
    assert proof(Model(Silent(inner()))).status == "proved"


def test_a_part_that_is_read_after_the_last_region_is_seen() -> None:
    model = Model(Silent(Weighing()), Reading(Mlp()))
    assert "tensor 2" in text_of(proof(model))


def test_a_part_that_is_read_of_one_of_two_equal_regions_is_seen() -> None:
    model = Model(Silent(Mlp()), Reading(Mlp()))
    assert "layers.1 reads it" in text_of(proof(model))


def test_a_derived_plan_leaves_whole_what_is_read_in_parts() -> None:
    plan = hpx.plan(Model(Reading(Mlp()), Silent(Mlp())), "tp=2")
    layouts = {rule.pattern: str(rule.layout) for rule in plan.params}
    assert not any("tp" in layout for name, layout in layouts.items() if "layers" in name)
