"""Attention with head norms, some of whose projections have LoRA around them, as peft makes it."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import hpx
from hpx.numeric.pool import Pool

WIDTH, HEAD = 32, 8
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
ADAPTED = {"query": ("q_proj",), "output": ("o_proj",), "every": PROJECTIONS}


class Adapted(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base
        inputs, outputs = base.in_features, base.out_features
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inputs, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, outputs, bias=False)})

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base_layer(x) + 2 * self.lora_B["default"](self.lora_A["default"](x))
        return out


def projection(adapted: bool, bias: bool) -> nn.Module:
    layer = nn.Linear(WIDTH, WIDTH, bias=bias)
    return Adapted(layer) if adapted else layer


class Attention(nn.Module):
    def __init__(self, adapted: tuple[str, ...]) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            projection(name in adapted, bias=name == "o_proj") for name in PROJECTIONS
        )
        self.q_norm, self.k_norm = nn.LayerNorm(HEAD), nn.LayerNorm(HEAD)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            layer(x).view(batch, length, -1, HEAD).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, is_causal=True)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return out


class Layer(nn.Module):
    def __init__(self, adapted: tuple[str, ...]) -> None:
        super().__init__()
        self.norm, self.self_attn = nn.LayerNorm(WIDTH), Attention(adapted)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.self_attn(self.norm(x))
        return out


class Model(nn.Module):
    def __init__(self, adapted: tuple[str, ...]) -> None:
        super().__init__()
        self.embed = nn.Linear(8, WIDTH)
        self.layers = nn.ModuleList(Layer(adapted) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return x


def made(adapted: tuple[str, ...]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Model(adapted), (torch.randn(2, 7, 8),)


query = partial(made, ADAPTED["query"])
output = partial(made, ADAPTED["output"])
every = partial(made, ADAPTED["every"])


def plan_of(adapted: tuple[str, ...]) -> hpx.ShardingPlan:
    cuts = {}
    for name in PROJECTIONS:
        dim = "S(1)" if name == "o_proj" else "S(0)"
        cuts[f"**.{name}.{'base_layer.' if name in adapted else ''}weight"] = {"tp": dim}
        if name in adapted:
            follows = "lora_A" if name == "o_proj" else "lora_B"
            cuts[f"**.{name}.{follows}.default.weight"] = {"tp": dim}
    return hpx.ShardingPlan(cuts, default="replicate")


@pytest.mark.parametrize("pipeline", ["@run", "@run, insert-collectives{sp=true}"])
@pytest.mark.parametrize("adapted", ADAPTED)
def test_a_step_equals_the_unsharded_one(adapted: str, pipeline: str, gloo: Pool) -> None:
    plan = plan_of(ADAPTED[adapted])
    report = hpx.check(f"{__name__}:{adapted}", plan, "tp=2", pipeline, pool=gloo)
    report.raise_if_different()
    assert report.held < 0.7
