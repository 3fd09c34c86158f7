"""Tensors that pass the cut layers of a region by, and sums that something is done to too early."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.hpx.prove.models import Attention, HeadSize, Model
from tests.hpx.prove.test_prove import proof, text_of


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 64, bias=False)
        self.down = nn.Linear(64, 32)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.down(self.up(hidden).relu())
        return out


class Residual(Mlp):
    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + super().forward(hidden)


class Twice(Mlp):
    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(super().forward(hidden))


class Scaled(Mlp):
    def forward(self, hidden: Tensor) -> Tensor:
        return torch.tanh(super().forward(hidden) * 0.5)


class OfItsOwn(nn.Linear):
    """What it does to its product is no sum of what is done to parts."""

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.tanh(super().forward(hidden))


class PlusOne(nn.Linear):
    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden) + 1


class Half(nn.Linear):
    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden) * 0.5


def with_down(layer: nn.Linear) -> Mlp:
    made = Mlp()
    made.down = layer
    return made


class Gated(HeadSize):
    """A gate of one value that starts the module out as nothing: after the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(1))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.alpha * super().forward(hidden)


class Warm(HeadSize):
    """A temperature: before the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(1))

    def heads(self, x: Tensor) -> Tensor:
        return super().heads(x) * self.alpha


def test_a_residual_inside_a_module_gets_its_gradient_once_on_every_rank() -> None:
    text = text_of(proof(Model(Residual())))
    assert "its input reaches its output beside the cut layers" in text


def test_a_gate_behind_the_sum_has_all_of_its_gradient_on_every_rank() -> None:
    assert "alpha reaches its output beside the cut layers" in text_of(proof(Model(Gated())))


def test_what_was_summed_and_is_cut_again_has_parts_of_a_gradient_that_nobody_sums() -> None:
    assert "what was summed over tp is read by a cut layer" in text_of(proof(Model(Twice())))


@pytest.mark.parametrize(("layer", "name"), [(OfItsOwn(64, 32), "tanh"), (PlusOne(64, 32), "add")])
def test_a_rowwise_layer_that_does_more_than_sum(layer: nn.Linear, name: str) -> None:
    text = text_of(proof(Model(with_down(layer))))
    assert f"{name} is computed of a rank's part of a sum, before it is summed" in text


@pytest.mark.parametrize("layer", [Mlp(), Scaled(), Warm(), with_down(Half(64, 32))])
def test_what_is_done_to_parts_or_to_the_sum_as_it_may_be_is_proved(layer: Attention) -> None:
    assert proof(Model(layer)).status == "proved"
