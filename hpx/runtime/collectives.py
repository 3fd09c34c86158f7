"""What crosses the edge of a region that is cut on an axis, each with its gradient.

- `copy_to_region`: a whole tensor enters; every rank has a part of its gradient, so those are
  summed.
- `reduce_from_region`: every rank has a part of the sum; the gradient of the whole is that of each
  part.
- `gather_last_dim`: every rank has some columns; each takes its own columns of the gradient.
- `columns`: the same columns as one DTensor, left where they are.

Gradients are those of one device, not multiplied by the number of ranks. Nothing is communicated
in a group of one rank, and no argument is changed. Under ``torch.compile`` the functional
collectives of torch are traced; outside it the plain ones cost less.

A backend's own thread holds the tensors of a collective for a moment after it is done, and may be
the last to let go of them. So what it gets is never what becomes part of an autograd graph: torch
2.13 loses references where such a thread ends a graph, and leaks or frees it twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed import _functional_collectives as functional
from torch.distributed.tensor import DTensor, Shard

__all__ = [
    "Group",
    "all_reduce_sum",
    "columns",
    "copy_to_region",
    "gather_last_dim",
    "reduce_from_region",
]

if TYPE_CHECKING:
    from hpx.runtime.meshes import Meshes


class Group:
    """The ranks of one axis, for things that are part of a model and copied with it.

    Args:
        meshes: The meshes.
        axis: The axis.
    """

    def __init__(self, meshes: Meshes, axis: str) -> None:
        mesh = meshes.sub(axis)
        self.axis = axis
        self.mesh = mesh
        self.group = mesh.get_group()
        self.size = self.group.size()
        self.rank = self.group.rank()

    def __deepcopy__(self, memo: dict[int, Any]) -> Group:
        return self


def copy_to_region(x: Tensor, group: ProcessGroup) -> Tensor:
    """``x`` itself; its gradient is summed over the group."""
    if not (torch.is_grad_enabled() and x.requires_grad) or group.size() == 1:
        return x
    return cast(Tensor, _Copy.apply(x, group))  # type: ignore[no-untyped-call]


def reduce_from_region(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of ``x`` over the group, as a new tensor; its gradient is passed on as it is."""
    if group.size() == 1:
        return x
    if not (torch.is_grad_enabled() and x.requires_grad):
        return all_reduce_sum(x, group)
    return cast(Tensor, _Reduce.apply(x, group))  # type: ignore[no-untyped-call]


def gather_last_dim(x: Tensor, group: ProcessGroup, sizes: Sequence[int]) -> Tensor:
    """The last dims of all ranks side by side; each rank gets the gradient of its own.

    Args:
        x: The columns of this rank.
        group: The ranks, in the order of their columns.
        sizes: How many columns each of them has.
    """
    if group.size() == 1:
        return x
    if not (torch.is_grad_enabled() and x.requires_grad):
        return _all_gather(x, group, sizes)
    applied = _Gather.apply(x, group, tuple(sizes))  # type: ignore[no-untyped-call]
    return cast(Tensor, applied)


def columns(x: Tensor, group: Group, size: int) -> Tensor:
    """The columns of all ranks as one DTensor, each where it is: nothing is sent.

    Args:
        x: The columns of this rank, in the last dim.
        group: The ranks, in the order of their columns.
        size: How many columns they have together.
    """
    shape = torch.Size((*x.shape[:-1], size))
    strides = torch.empty(shape, device="meta").stride()
    last = x.dim() - 1  # torch does not take S(-1) for S(2)
    return DTensor.from_local(
        x, group.mesh, (Shard(last),), run_check=False, shape=shape, stride=strides
    )


def all_reduce_sum(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum over the group as a new contiguous tensor, without a gradient."""
    if torch.compiler.is_compiling():
        return cast(Tensor, functional.all_reduce(x.contiguous(), "sum", group))
    out = x.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(out.detach(), group=group)
    return out


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return reduce_from_region(grad, ctx.group), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return all_reduce_sum(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return copy_to_region(grad, ctx.group), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup, sizes: tuple[int, ...]) -> Tensor:
        ctx.group, ctx.sizes = group, sizes
        return _all_gather(x, group, sizes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        start = sum(ctx.sizes[: ctx.group.rank()])
        own = grad.narrow(-1, start, ctx.sizes[ctx.group.rank()])
        return own, None, None


def _all_gather(x: Tensor, group: ProcessGroup, sizes: Sequence[int]) -> Tensor:
    """Gather along a new first dim, every piece as wide as the widest, and cut to size."""
    widest = max(sizes)
    x = x.detach()
    if x.shape[-1] < widest:
        x = torch.nn.functional.pad(x, (0, widest - x.shape[-1]))
    x = x.contiguous()
    pieces: Tensor
    if torch.compiler.is_compiling():
        pieces = functional.all_gather_tensor(x.unsqueeze(0), 0, group)
    else:
        pieces = x.new_empty((group.size(), *x.shape))
        dist.all_gather_single(pieces.flatten(0, 1), x, group)
    if len(set(sizes)) == 1:
        return pieces.movedim(0, -2).reshape(*x.shape[:-1], sum(sizes))
    return torch.cat([piece[..., :size] for piece, size in zip(pieces, sizes, strict=True)], dim=-1)
