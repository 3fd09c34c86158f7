"""Attention modules that read their heads in the ways that people write."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["PLAN", "ByAttribute", "ByNumber", "Counted", "HeadSize", "HeldApart", "Mlp", "Model"]

PLAN = {
    "**.{q,k,v}.weight": {"tp": "S(0)"},
    "**.o.weight": {"tp": "S(1)"},
    "**.up.weight": {"tp": "S(0)"},
    "**.down.weight": {"tp": "S(1)"},
}


class Attention(nn.Module):
    """Eight heads of four; subclasses say how the heads are told apart."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32, bias=False) for _ in range(4))

    def heads(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        q, k, v = (self.heads(layer(hidden)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.o(mixed.transpose(1, 2).reshape(batch, length, -1))
        return out


class ByAttribute(Attention):
    """A count under a name that nobody knows, and the size of a head."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 8

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.n, 4)


class Counted(Attention):
    """A count, and -1 for the size of a head: no view fails, and every head is cut."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 8

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.n, -1)


class ByNumber(Attention):
    """Numbers in the code."""

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], 8, 4)


class HeadSize(Attention):
    """The size of a head, and -1 for their number, which follows."""

    def __init__(self) -> None:
        super().__init__()
        self.head_dim = 4

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.head_dim)


class HeldApart(Attention):
    """The shape is made on one line and used on another."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 8

    def heads(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], self.n, 4)
        return x.view(shape)


class Mlp(nn.Module):
    """Reads its width from an attribute."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.up = nn.Linear(32, width, bias=False)
        self.down = nn.Linear(width, 32, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        inner = functional.gelu(self.up(hidden)).view(-1, self.width)
        out: Tensor = self.down(inner).view_as(hidden)
        return out


class Model(nn.Module):
    """An embedding, layers, and a head."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.layers = nn.ModuleList(layers)

    def forward(self, ids: Tensor) -> Tensor:
        hidden: Tensor = self.embed(ids)
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        return torch.tanh(hidden)
