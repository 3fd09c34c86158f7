"""What fits a rank's shapes and computes other numbers is found on fake tensors."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.hpx.prove.models import Attention, Model
from tests.hpx.prove.test_prove import proof, text_of

Function = Callable[[Tensor], Tensor]


def apart(x: Tensor, *sizes: int) -> Tensor:
    """The last dim as several."""
    return x.view(*x.shape[:-1], *sizes)


class Between(nn.Module):
    """An mlp with something between its matrices."""

    def __init__(self, between: Function) -> None:
        super().__init__()
        self.up = nn.Linear(32, 64, bias=False)
        self.down = nn.Linear(64, 32, bias=False)
        self.between = between

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.down(self.between(self.up(hidden)))
        return out


class Scored(Attention):
    """Attention by hand, with something done to its scores [batch, heads, length, length]."""

    def __init__(self, done: Function, split: Function | None = None) -> None:
        super().__init__()
        self.done = done
        self.split = split

    def heads(self, x: Tensor) -> Tensor:
        return self.split(x) if self.split is not None else apart(x, -1, 4)

    def forward(self, hidden: Tensor) -> Tensor:
        q, k, v = (self.heads(layer(hidden)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = self.done(q @ k.transpose(-1, -2)).softmax(-1) @ v
        out: Tensor = self.o(mixed.transpose(1, 2).flatten(2))
        return out


def _shuffled(x: Tensor) -> Tensor:
    return apart(x, 2, -1).transpose(-1, -2).flatten(-2)


def _slopes(scores: Tensor) -> Tensor:
    count = scores.shape[1]
    slopes = torch.tensor([2.0 ** -(head + 1) for head in range(count)])
    return scores * slopes.view(1, -1, 1, 1)


def _first_only(scores: Tensor) -> Tensor:
    mask = torch.zeros(scores.shape[1])
    mask[0] = 1.0
    return scores * mask.view(1, -1, 1, 1)


def _differences(scores: Tensor) -> Tensor:
    one, two = scores.chunk(2, dim=1)
    return torch.cat([one - two, two], dim=1)


def _by_size_first(x: Tensor) -> Tensor:
    return apart(x, 4, -1).transpose(-1, -2)


@pytest.mark.parametrize(
    ("between", "told"),
    [
        (lambda x: x.softmax(-1), "softmax goes along dim 2, of which a rank has 16 of 64"),
        (lambda x: functional.normalize(x, dim=-1), "goes along dim 2"),
        (lambda x: functional.layer_norm(x, x.shape[-1:]), "it normalises over dim 2"),
        (lambda x: x * x.pow(2).mean(-1, keepdim=True).rsqrt(), "mean goes along dim 2"),
        (lambda x: x / x.abs().amax(-1, keepdim=True), "amax goes along dim 2"),
        (lambda x: x.topk(8).values.sum(-1, keepdim=True) + x, "topk goes along dim 2"),
        (lambda x: x.cumsum(-1), "cumsum goes along dim 2"),
        (lambda x: x.roll(1, -1), "roll goes along dim 2"),
        (lambda x: x / math.sqrt(x.shape[-1]), "computes with 4, where the whole module has 8"),
        (lambda x: x / x.shape[-1], "computes with 16, where the whole module has 64"),
        (lambda x: (x @ x.transpose(-1, -2)) @ x, "multiplied over 16 of 64 values"),
        (lambda x: torch.cat([x[..., :8].relu(), x[..., 8:]], -1), "slice takes a piece"),
        (_shuffled, "a view has 2 x 32 values in that order"),
    ],
)
def test_between_the_matrices_of_an_mlp(between: Function, told: str) -> None:
    text = text_of(proof(Model(Between(between))))
    assert "it runs and computes something else" in text
    assert told in text


@pytest.mark.parametrize(
    ("done", "told"),
    [
        (lambda x: x - x.mean(1, keepdim=True), "mean goes along dim 1, of which a rank has 2"),
        (lambda x: x + x.flip(1), "flip goes along dim 1"),
        (lambda x: x * x.shape[1] ** -0.5, "it computes with"),
        (lambda x: x * torch.linspace(0, 1, x.shape[1]).view(-1, 1, 1), "it makes values for [8]"),
        (_slopes, "it makes values for [8], and every rank makes the same [2]"),
        (_first_only, "select takes a piece along dim 0"),
        (_differences, "split takes a piece along dim 1"),
    ],
)
def test_between_the_heads_of_attention(done: Function, told: str) -> None:
    assert told in text_of(proof(Model(Scored(done))))


def test_heads_whose_values_do_not_lie_together() -> None:
    text = text_of(proof(Model(Scored(torch.relu, _by_size_first))))
    assert "a view has 4 x 8 values in that order, and a rank has 4 x 2" in text


def test_groups_of_channels_that_nobody_counts() -> None:
    norm = nn.GroupNorm(8, 64, affine=False)
    text = text_of(proof(Model(Between(lambda x: norm(x.flatten(0, 1)).view_as(x)))))
    assert "it normalises groups of 2 channels, and the whole module of 8" in text


class Keyed(nn.Module):
    """Eight heads, and four of keys and values, laid side by side in one of two ways."""

    def __init__(self, spread: Function) -> None:
        super().__init__()
        self.q = nn.Linear(32, 32, bias=False)
        self.k, self.v = (nn.Linear(32, 16, bias=False) for _ in range(2))
        self.o = nn.Linear(32, 32, bias=False)
        self.head_dim = 4
        self.spread = spread

    def forward(self, hidden: Tensor) -> Tensor:
        q, k, v = (apart(f(hidden), -1, 4).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = (q @ self.spread(k).transpose(-1, -2)).softmax(-1) @ self.spread(v)
        out: Tensor = self.o(mixed.transpose(1, 2).flatten(2))
        return out


def test_keys_that_are_repeated_one_after_the_other_belong_to_other_queries() -> None:
    text = text_of(proof(Model(Keyed(lambda x: x.repeat(1, 2, 1, 1)))))
    assert "a rank's part of dim 1 is repeated 2 times" in text


@pytest.mark.parametrize(
    "layer",
    [
        Between(lambda x: functional.gelu(x) * 0.5),
        Between(lambda x: apart(functional.dropout(x), -1, 4).softmax(-1).flatten(-2)),
        Scored(lambda x: x - torch.arange(x.shape[-1])),
        Keyed(lambda x: x.repeat_interleave(2, 1)),
    ],
)
def test_what_stays_within_a_head_or_a_channel_is_proved(layer: nn.Module) -> None:
    assert proof(Model(layer)).status == "proved"
