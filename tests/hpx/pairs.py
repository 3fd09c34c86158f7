"""Two linear layers as a pair under one plan, and code that uses another one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["CUT", "Around", "Mlp", "TakesTheWrongOne"]

CUT = {"**.up.weight": {"tp": "S(0)"}, "**.down.weight": {"tp": "S(1)"}}


class Mlp(nn.Module):
    """Columns of ``up`` and rows of ``down``; ``side`` stays whole and unused."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16, bias=False)
        self.side = nn.Linear(8, 16, bias=False)
        self.down = nn.Linear(16, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(torch.relu(self.up(x)))
        return out


class TakesTheWrongOne(Mlp):
    """The weights pair, and the code uses another one."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(torch.relu(self.side(x)))
        return out


class Around(nn.Module):
    """A residual around another module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.mlp = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.mlp(x)
        return out
