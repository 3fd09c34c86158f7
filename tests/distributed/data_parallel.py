"""A training step over data ranks, whole and sharded: gradients, norms, clipped and new values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import hpx
from hpx import bundled
from hpx.runtime.collectives import copy_to_region, reduce_from_region
from hpx.runtime.record import Applied

WIDTH: Final = 8
EXPERTS: Final = 8
LLAMA: Final = hpx.ShardingPlan(
    params={
        "model.embed_tokens.weight": {"tp": "S(0)"},
        "**.{q,k,v}_proj.weight": {"tp": "S(0)"},
        "**.o_proj.weight": {"tp": "S(1)"},
        "**.mlp.{gate,up}_proj.weight": {"tp": "S(0)"},
        "**.mlp.down_proj.weight": {"tp": "S(1)"},
    },
    default="replicate",
)
SPREAD: Final = hpx.ShardingPlan(params={"experts.weight": {"ep": "S(0)"}}, default="replicate")
EXCLUDED: Final = '@default,shard-params{nothing=allow},localize{exclude=["**"]}'


class Dense(nn.Module):
    """A linear map that takes the local part of its weight itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x @ local(self.weight).T


class Experts(nn.Module):
    """The mean of all experts, those of other ranks included: what a dispatch would do.

    Every rank of the group computes its experts on the tokens of all of them. Ranks of one tp group
    have the same tokens, so there is nothing to exchange among them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH))
        self.inner = Dense()
        self.group: Any = None
        self.same_tokens = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        weight = local(self.weight)
        if self.group is None:
            return _mean(torch.einsum("bi,eoi->bo", x, weight))
        if self.same_tokens:
            x = copy_to_region(x, self.group)
            out = reduce_from_region(torch.einsum("bi,eoi->bo", x, weight), self.group)
            return _mean(out)
        everything = _from_all(x, self.group)
        out = torch.einsum("bi,eoi->bo", everything, weight)
        return _mean(_sum_to_all(out, self.group))


def _mean(total: Tensor) -> Tensor:
    return total.tanh() / EXPERTS


def _gathered(x: Tensor, group: Any) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(group.size())]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts)


def _summed(x: Tensor, group: Any) -> Tensor:
    total = x.clone()
    dist.all_reduce(total, group=group)
    own: int = group.rank()
    return total.chunk(group.size())[own]


class _FromAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _gathered(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _summed(grad, ctx.group), None


class _SumToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _summed(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _gathered(grad, ctx.group), None


_from_all: Any = _FromAll.apply
_sum_to_all: Any = _SumToAll.apply


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Dense()])
        self.experts = Experts()
        self.last = Dense()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.experts(self.layers[0](x)))
        return out


def local(weight: Tensor) -> Tensor:
    if isinstance(weight, DTensor):
        return weight.to_local(grad_placements=weight.placements)
    return weight


def built(name: str) -> nn.Module:
    torch.manual_seed(3)
    if name == "mixture":
        return Mixture().double()
    model = bundled.tiny_llama(tied=True).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def batches(name: str, number: int) -> list[Tensor]:
    """Other data for every data rank."""
    torch.manual_seed(4)
    if name == "mixture":
        return list(torch.randn(number, 5, WIDTH, dtype=torch.float64))
    return list(torch.randint(0, 256, (number, 2, 7)))


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    out: Tensor = model(batch)
    return out.square().mean()


def sharded(name: str, mesh: str, **options: Any) -> Applied:
    """Applied, and its data axes sharded."""
    model = built(name)
    if name == "mixture":
        applied = hpx.apply(model, SPREAD, mesh, EXCLUDED)
        experts: Any = model.get_submodule("experts")
        experts.group = applied.meshes.sub("ep").get_group()
        experts.same_tokens = applied.meshes.spec.size("tp", 1) > 1
    else:
        applied = hpx.apply(model, LLAMA, mesh, "@run")
    hpx.fully_shard(applied, **options)
    return applied


def own_batch(applied: Applied, name: str) -> Tensor:
    spec = applied.meshes.spec
    return batches(name, spec.size("dp", 1))[applied.meshes.coordinate("dense").get("dp", 0)]


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


Step = dict[str, Tensor]


def reference(name: str, number: int, max_norm: float, norm_type: float) -> Step:
    """The step of the unsharded model on the batches of all data ranks."""
    model = built(name)
    for batch in batches(name, number):
        torch.autograd.backward(loss_of(model, batch) / number)
    found = {
        f"gradient {n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
    }
    found["norm"] = nn.utils.clip_grad_norm_(model.parameters(), max_norm, norm_type)
    return found | dict(_step(model))


def step(name: str, mesh: str, max_norm: float, norm_type: float) -> Step:
    """The same of the sharded model, on this rank's batch; whole tensors gathered."""
    applied = sharded(name, mesh)
    model = applied.model
    torch.autograd.backward(loss_of(model, own_batch(applied, name)))
    found = dict(_gradients(model, "gradient"))
    found["norm"] = hpx.clip_grad_norm_(model, max_norm, norm_type)
    return found | dict(_step(model))


def _gradients(model: nn.Module, what: str) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        yield f"{what} {name}", whole(parameter.grad).clone()


def _step(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from _gradients(model, "clipped")
    torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1).step()
    for name, parameter in model.named_parameters():
        yield f"new {name}", whole(parameter.detach()).clone()


def deviations(name: str, mesh: str, max_norm: float, norm_type: float) -> dict[str, float]:
    """By tensor, ``max|a-b| / max|b|`` on this rank."""
    number = hpx.MeshSpec.parse(mesh).size("dp", 1)
    expected = reference(name, number, max_norm, norm_type)
    found = step(name, mesh, max_norm, norm_type)
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    return {
        key: float((found[key] - value).abs().max() / value.abs().max())
        for key, value in expected.items()
    }
