"""What crosses the edge between a whole sequence and its parts, each with its gradient.

Under sequence parallelism a rank holds some positions of the stream, [batch, own, features]: as
many on every rank, in the order of the ranks. Where the ranks do not divide the length, the last
positions are zeros that nobody reads: they are cut off again where a sequence is gathered. Four
ways lead in and out:

- `enter_stream`: a whole tensor, the same on all ranks, is cut; its gradient is gathered.
- `leave_stream`: the positions of all ranks are gathered, and read by all ranks alike; each takes
  its own positions of the gradient.
- `gather_for_region`: the positions are gathered, and each rank computes a part with them; the
  parts of the gradient are summed, and each rank gets its own positions.
- `sum_into_stream`: every rank has a part of a sum over all positions, and gets its own positions
  of the sum; the gradient is gathered.

Gradients are those of one device. No argument is changed. As in `hpx.runtime.collectives`, no
tensor of a collective becomes part of an autograd graph.
"""

from __future__ import annotations

from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed import _functional_collectives as functional

from hpx.errors import NotRunnableError

__all__ = ["enter_stream", "gather_for_region", "leave_stream", "own_length", "sum_into_stream"]

_DIM: Final = 1
"""The dim of positions."""


def enter_stream(x: Tensor, group: ProcessGroup, name: str) -> Tensor:
    """The positions of this rank, of a tensor that all ranks have.

    Args:
        x: The whole stream.
        group: The ranks, in the order of their positions.
        name: What messages call the module.

    Raises:
        NotRunnableError: It is not [batch, length, features].
    """
    _check_dims(x, name)
    if not _recorded(x):
        return _own(x, group)
    return cast(Tensor, _Enter.apply(x, group, name))  # type: ignore[no-untyped-call]


def leave_stream(x: Tensor, group: ProcessGroup, name: str, length: int) -> Tensor:
    """The positions of all ranks, for what all ranks do alike.

    Args:
        x: The positions of this rank.
        group: The ranks, in the order of their positions.
        name: What messages call the module.
        length: How many positions all ranks have.

    Raises:
        NotRunnableError: It does not have the positions of one rank.
    """
    _check_part(x, group, name, length)
    if not _recorded(x):
        return _all_gather(x, group, length)
    return cast(Tensor, _Leave.apply(x, group, name, length))  # type: ignore[no-untyped-call]


def gather_for_region(x: Tensor, group: ProcessGroup, name: str, length: int) -> Tensor:
    """The positions of all ranks, of which each rank computes some heads or channels.

    Args:
        x: The positions of this rank.
        group: The ranks, in the order of their positions.
        name: What messages call the module.
        length: How many positions all ranks have.

    Raises:
        NotRunnableError: It does not have the positions of one rank.
    """
    _check_part(x, group, name, length)
    if not _recorded(x):
        return _all_gather(x, group, length)
    return cast(Tensor, _Gather.apply(x, group, name, length))  # type: ignore[no-untyped-call]


def sum_into_stream(x: Tensor, group: ProcessGroup, name: str) -> Tensor:
    """The positions of this rank, of the sum over the group.

    Args:
        x: A part of the sum, with all positions.
        group: The ranks, in the order of their positions.
        name: What messages call the module.

    Raises:
        NotRunnableError: It is not [batch, length, features].
    """
    _check_dims(x, name)
    if not _recorded(x):
        return _reduce_scatter(x, group)
    return cast(Tensor, _Sum.apply(x, group, name))  # type: ignore[no-untyped-call]


def own_length(length: int, ranks: int) -> int:
    """How many of ``length`` positions a rank holds, zeros at the end included.

    >>> own_length(10, 4)
    3
    """
    return -(-length // ranks)


def _recorded(x: Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad


def _check_dims(x: Tensor, name: str) -> None:
    if x.dim() != 3:
        raise NotRunnableError(
            f"{name}: a stream of {x.dim()} dims cannot be cut on its sequence",
            why=f"it is {list(x.shape)}, and sequence parallelism knows [batch, length, features]",
            fix="run without sequence parallelism: insert-collectives{sp=false}",
        )


def _check_part(x: Tensor, group: ProcessGroup, name: str, length: int) -> None:
    own = own_length(length, group.size())
    if x.dim() != 3 or x.shape[_DIM] != own:
        raise NotRunnableError(
            f"the input of {name} is {list(x.shape)}, and should be [batch, {own}, features]",
            why=f"under sequence parallelism it takes what the layers before it have left: of"
            f" {length} positions a rank holds {own}",
            fix="give it the hidden states of its layer as they are, or"
            " insert-collectives{sp=false}",
        )


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup, name: str) -> Tensor:
        ctx.edge = group, name, x.shape[_DIM]
        return _own(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return leave_stream(grad, *ctx.edge), None, None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup, name: str, length: int) -> Tensor:
        ctx.edge = group, name
        return _all_gather(x, group, length)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return enter_stream(grad, *ctx.edge), None, None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup, name: str, length: int) -> Tensor:
        ctx.edge = group, name
        return _all_gather(x, group, length)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return sum_into_stream(grad, *ctx.edge), None, None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup, name: str) -> Tensor:
        ctx.edge = group, name, x.shape[_DIM]
        return _reduce_scatter(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return gather_for_region(grad, *ctx.edge), None, None


def _own(x: Tensor, group: ProcessGroup) -> Tensor:
    """The positions of this rank, in memory of their own."""
    x = _padded(x.detach(), group.size())
    own = x.shape[_DIM] // group.size()
    return x.narrow(_DIM, group.rank() * own, own).clone()


def _padded(x: Tensor, ranks: int) -> Tensor:
    """With zeros at the end, so that the ranks divide the length."""
    missing = -x.shape[_DIM] % ranks
    return torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing else x


def _all_gather(x: Tensor, group: ProcessGroup, length: int) -> Tensor:
    x = x.detach().contiguous()
    if torch.compiler.is_compiling():
        whole = functional.all_gather_tensor(x, _DIM, group)
    else:
        pieces = x.new_empty((group.size(), *x.shape))
        dist.all_gather_single(pieces.flatten(0, 1), x, group)
        whole = pieces.movedim(0, _DIM).flatten(_DIM, _DIM + 1)
    return whole if whole.shape[_DIM] == length else whole.narrow(_DIM, 0, length).contiguous()


def _reduce_scatter(x: Tensor, group: ProcessGroup) -> Tensor:
    x = _padded(x.detach(), group.size())
    if torch.compiler.is_compiling():
        found = functional.reduce_scatter_tensor(x.contiguous(), "sum", _DIM, group)
        return cast(Tensor, found)
    pieces = torch.stack(x.chunk(group.size(), _DIM))
    out = torch.empty_like(pieces[0])
    dist.reduce_scatter_single(out.detach(), pieces.flatten(0, 1), group=group)
    return out
