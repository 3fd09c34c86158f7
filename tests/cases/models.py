"""The modules that the field cases speak of, as a user would write them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

__all__ = [
    "ATTENTION_PLAN",
    "Attention",
    "Expert",
    "Moe",
    "TiedLm",
    "Wrapped",
    "holding",
    "values_of",
]

COL, ROW = {"tp": "S(0)"}, {"tp": "S(1)"}
ATTENTION_PLAN: Mapping[str, object] = {
    "attn.{q,k,v}_proj.weight": COL,
    "attn.o_proj.weight": ROW,
}


class Attention(nn.Module):
    """Bias-free attention with heads of a size, and with ``integers`` as its attributes."""

    def __init__(self, heads: int, kv: int, size: int, hidden: int, **integers: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(hidden, heads * size, bias=False)
        self.k_proj = nn.Linear(hidden, kv * size, bias=False)
        self.v_proj = nn.Linear(hidden, kv * size, bias=False)
        self.o_proj = nn.Linear(heads * size, hidden, bias=False)
        self.__dict__.update(integers)


class Expert(nn.Module):
    """A gated block under the names of the original Mixtral: w1 and w3 up, w2 down."""

    def __init__(self, hidden: int = 8, width: int = 6) -> None:
        super().__init__()
        self.w1 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(hidden, width, bias=False)
        self.w2 = nn.Linear(width, hidden, bias=False)


class Moe(nn.Module):
    """A router and a list of experts."""

    def __init__(self, experts: list[nn.Module], hidden: int = 8) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, len(experts), bias=False)
        self.experts = nn.ModuleList(experts)


class TiedLm(nn.Module):
    """An embedding whose matrix is also the head: one object, or one storage."""

    def __init__(self, *, by_storage: bool, device: str = "cpu") -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8, device=device)
        self.norm = nn.LayerNorm(8, device=device)
        self.head = nn.Linear(8, 16, bias=False, device=device)
        weight = self.embed.weight
        self.head.weight = nn.Parameter(weight.data) if by_storage else weight


class Wrapped(nn.Module):
    """Two layers with an attention each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(holding(Attention(4, 4, 4, 16)) for _ in range(2))


def holding(attention: nn.Module) -> nn.Module:
    """A module with one child, ``attn``."""
    model = nn.Module()
    model.attn = attention
    return model


def values_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of every tensor, to tell later that none was touched."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}
