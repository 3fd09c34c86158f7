"""Passes that break one thing each after the pipeline has done it right, and small models."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from hpx.graph import ModuleGraph
from hpx.pipeline import Pass, PassInfo
from hpx.pipeline.context import PassContext
from hpx.runtime.around import around
from hpx.runtime.journal import Journal
from hpx.runtime.meshes import Meshes

_AFTER = ("insert-collectives",)


@dataclass(frozen=True, kw_only=True)
class _Break(Pass):
    """Attach an installer that breaks something to the modules of a name."""

    info = PassInfo(name="break-nothing", after=_AFTER, writes={"attach"})
    module: str = ""

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        installer = self.info.name.replace("-", "_")
        for node in list(graph.modules()):
            if graph.path(node.id).endswith(self.module):
                ctx.attach(node.id, f"{__name__}:{installer}", {}, why="to see who notices")


@dataclass(frozen=True, kw_only=True)
class BiasOnEveryRank(_Break):
    """A rowwise bias is not withheld."""

    info = PassInfo(name="bias-on-every-rank", after=_AFTER, writes={"attach"})
    module: str = "layers.1.mlp.down_proj"


@dataclass(frozen=True, kw_only=True)
class NoReduction(_Break):
    """A rowwise output is not summed."""

    info = PassInfo(name="no-reduction", after=_AFTER, writes={"attach"})
    module: str = "layers.1.self_attn.o_proj"


@dataclass(frozen=True, kw_only=True)
class NoCopy(_Break):
    """The gradient of a region's input is not summed."""

    info = PassInfo(name="no-copy", after=_AFTER, writes={"attach"})
    module: str = "layers.1.mlp"


@dataclass(frozen=True, kw_only=True)
class PaddingOnShiftedIds(_Break):
    """The padding index of an embedding is not that of the rank's own rows."""

    info = PassInfo(name="padding-on-shifted-ids", after=_AFTER, writes={"attach"})
    module: str = "embed_tokens"


@dataclass(frozen=True, kw_only=True)
class BrokenTie(_Break):
    """The head gets a parameter of its own."""

    info = PassInfo(name="broken-tie", after=_AFTER, writes={"attach"})
    module: str = "lm_head"


@dataclass(frozen=True, kw_only=True)
class WrongGroup(_Break):
    """The key heads of a rank stand in another order than its query heads."""

    info = PassInfo(name="wrong-group", after=_AFTER, writes={"attach"})
    module: str = "layers.1.self_attn.k_proj"


@dataclass(frozen=True, kw_only=True)
class NoNormReduction(_Break):
    """The gradient of a head norm, of which every rank has a part, is not summed."""

    info = PassInfo(name="no-norm-reduction", after=_AFTER, writes={"attach"})
    module: str = "layers.1.self_attn.k_norm"


@dataclass(frozen=True, kw_only=True)
class UndividedHeads(Pass):
    """Every head count is again what it was."""

    info = PassInfo(name="undivided-heads", after=_AFTER, writes={"attributes"})

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        for node in list(graph.modules()):
            if "attributes.num_heads" in node.props:
                before = dict(node.spec.attributes)["num_heads"]
                ctx.set(node.id, "attributes.num_heads", before, why="to see who notices")


def bias_on_every_rank(
    module: nn.Module, _options: Mapping[str, Any], _meshes: Meshes, journal: Journal
) -> None:
    boundary: Any = around(module, journal).boundary
    boundary.bias = ""


def no_reduction(
    module: nn.Module, _options: Mapping[str, Any], _meshes: Meshes, journal: Journal
) -> None:
    around(module, journal).boundary = None


no_copy = no_reduction


def padding_on_shifted_ids(
    module: nn.Module, _options: Mapping[str, Any], _meshes: Meshes, journal: Journal
) -> None:
    boundary: Any = around(module, journal).boundary
    assert boundary.has_padding
    boundary.has_padding = False


def broken_tie(
    module: nn.Module, _options: Mapping[str, Any], _meshes: Meshes, _journal: Journal
) -> None:
    assert isinstance(module.weight, nn.Parameter)
    module.weight = nn.Parameter(module.weight.detach().clone())


def wrong_group(
    module: nn.Module, _options: Mapping[str, Any], _meshes: Meshes, _journal: Journal
) -> None:
    assert isinstance(module.weight, nn.Parameter)
    assert isinstance(module.weight.data, DTensor)
    local = module.weight.data.to_local()
    local.copy_(local.roll(local.shape[0] // 2, 0))


def no_norm_reduction(
    module: nn.Module, _options: Mapping[str, Any], _meshes: Meshes, journal: Journal
) -> None:
    swaps: Any = around(module, journal).swaps
    assert any(partial for _, _, partial in swaps.entries)
    swaps.entries = tuple((owner, name, False) for owner, name, _ in swaps.entries)


# -- models --------------------------------------------------------------------------------------


class SinkAttention(nn.Module):
    """Attention with one learned number for each head, which joins the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(16, 16, bias=False)
        self.k_proj = nn.Linear(16, 16, bias=False)
        self.v_proj = nn.Linear(16, 16, bias=False)
        self.o_proj = nn.Linear(16, 16, bias=False)
        self.sinks = nn.Parameter(torch.zeros(4))
        self.num_heads, self.head_dim = 4, 4

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        shape = (batch, length, self.num_heads, self.head_dim)
        query, key, value = (
            layer(hidden).view(shape).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = query @ key.transpose(2, 3) + self.sinks[:, None, None]
        mixed = functional.softmax(scores, dim=-1) @ value
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return out


class Sinks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.attn = SinkAttention()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attn(self.first(x))
        return out


def with_loss() -> tuple[nn.Module, object, object]:
    model = Sinks()
    return model, (torch.randn(2, 5, 16),), squares


def squares(output: Tensor) -> Tensor:
    return output.square().sum()


def never(output: Tensor) -> Tensor:
    time.sleep(1000)
    return output.sum()


def two_numbers(output: Tensor) -> Tensor:
    return output.flatten()[:2]


def wrong_inputs() -> tuple[nn.Module, object]:
    return Sinks(), (torch.randn(2, 5, 15),)
