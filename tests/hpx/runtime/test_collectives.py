"""Collectives with gradients: what they do on their own rank, in a group that exchanges nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from hpx.runtime import sequence
from hpx.runtime.collectives import copy_to_region, gather_last_dim, reduce_from_region
from tests.hpx.runtime.conftest import FakeGroup


@pytest.fixture
def group(fake_group: FakeGroup) -> dist.ProcessGroup:
    fake_group(0, 2)
    found = dist.group.WORLD
    assert found is not None
    return found


@pytest.fixture
def alone(fake_group: FakeGroup) -> dist.ProcessGroup:
    fake_group(0, 1)
    found = dist.group.WORLD
    assert found is not None
    return found


def test_a_group_of_one_exchanges_nothing(alone: dist.ProcessGroup) -> None:
    x = torch.randn(2, 3, requires_grad=True)
    assert copy_to_region(x, alone) is x
    assert reduce_from_region(x, alone) is x
    assert gather_last_dim(x, alone, [3]) is x


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_values_and_gradients_keep_dtype_and_shape(
    group: dist.ProcessGroup, dtype: torch.dtype
) -> None:
    x = torch.randn(2, 3, dtype=dtype, requires_grad=True)
    out = reduce_from_region(copy_to_region(x, group), group)
    assert out.dtype == dtype
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert grad.dtype == dtype
    assert grad.shape == x.shape


def test_the_argument_of_a_sum_stays_as_it_is(group: dist.ProcessGroup) -> None:
    x = torch.randn(3, 2).t()
    assert not x.is_contiguous()
    kept = x.clone()
    out = reduce_from_region(x, group)
    assert torch.equal(x, kept)
    assert out.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("sizes", [[4, 4], [4, 3]])
def test_a_gather_is_as_wide_as_all_ranks_and_gives_each_its_own_gradient(
    group: dist.ProcessGroup, sizes: list[int]
) -> None:
    x = torch.randn(2, 4, requires_grad=True)
    out = gather_last_dim(x, group, sizes)
    assert out.shape == (2, sum(sizes))
    weights = torch.arange(2.0 * sum(sizes)).view(2, -1)
    (grad,) = torch.autograd.grad((out * weights).sum(), x)
    assert torch.equal(grad, weights[:, :4])


def test_without_grad_nothing_is_recorded(group: dist.ProcessGroup) -> None:
    x = torch.randn(2, requires_grad=True)
    with torch.no_grad():
        results: list[Tensor] = [copy_to_region(x, group), reduce_from_region(x, group)]
    assert results[0] is x
    assert not results[1].requires_grad


_EDGES: list[Callable[[Tensor, dist.ProcessGroup], Tensor]] = [
    lambda x, group: reduce_from_region(copy_to_region(x, group), group),
    lambda x, group: gather_last_dim(x, group, [3, 3]),
    lambda x, group: sequence.enter_stream(x, group, "it"),
    lambda x, group: sequence.leave_stream(x, group, "it", 8),
    lambda x, group: sequence.gather_for_region(x, group, "it", 8),
    lambda x, group: sequence.sum_into_stream(x, group, "it"),
]


@pytest.mark.parametrize("edge", _EDGES)
def test_no_tensor_of_a_collective_becomes_part_of_a_graph(
    group: dist.ProcessGroup,
    monkeypatch: pytest.MonkeyPatch,
    edge: Callable[[Tensor, dist.ProcessGroup], Tensor],
) -> None:
    sent: list[Tensor] = []

    def recorded(collective: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            sent.extend(arg for arg in args if isinstance(arg, Tensor))
            return collective(*args, **kwargs)

        return call

    for name in ("all_reduce", "all_gather_single", "reduce_scatter_single"):
        monkeypatch.setattr(dist, name, recorded(getattr(dist, name)))
    x = torch.randn(2, 4, 3, requires_grad=True)
    out = edge(x, group)
    out.sum().backward()  # type: ignore[no-untyped-call]
    assert sent
    assert out.grad_fn is not None
    assert all(tensor is not out and tensor is not x.grad for tensor in sent)
    assert not any(tensor.requires_grad for tensor in sent)
