from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from hpx.errors import NotRunnableError
from hpx.experts import stacked_name
from tests.hpx.runtime.conftest import FakeGroup
from tests.hpx.runtime.expert_models import (
    SIZE,
    Owner,
    stack_in,
)


@pytest.fixture
def whole() -> Owner:
    torch.manual_seed(0)
    return Owner()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


# -- experts spread over ranks -----------------------------------------------------------------


def spread(whole: Owner, fake_group: FakeGroup, rank: int = 1, ep: int = 2) -> Owner:
    """The model of ep rank ``rank``, its stacked parameters cut on dim 0."""
    fake_group(rank, ep)
    mesh = init_device_mesh("cpu", (ep,), mesh_dim_names=("ep",))
    size = SIZE // ep

    def cut(tensor: Tensor) -> Tensor:
        local = tensor[rank * size : (rank + 1) * size].clone()
        return DTensor.from_local(local, mesh, [Shard(0)], run_check=False)

    model = copy.deepcopy(whole)
    stack_in(model, wrap=cut, ep=ep, ep_rank=rank, where="layers.3.experts")
    return model


def test_an_expert_held_here_has_its_index_over_all_ranks(
    whole: Owner, fake_group: FakeGroup, x: Tensor
) -> None:
    model = spread(whole, fake_group)
    assert len(model.experts) == SIZE
    assert torch.equal(model.experts[2].down.weight, whole.experts[2].down.weight)
    assert torch.equal(model.experts[-1].up.bias, whole.experts[3].up.bias)
    assert [expert.scale for expert in model.experts[2:]] == [1.25, 1.375]


def test_gradients_of_spread_experts_have_the_layout_of_their_parameter(
    whole: Owner, fake_group: FakeGroup, x: Tensor
) -> None:
    class Held(Owner):
        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.experts[2](x) + self.experts[3](x))

    whole.__class__ = Held
    model = spread(whole.eval(), fake_group)
    model(x).sum().backward()
    whole(x).sum().backward()
    for path, _ in whole.experts[0].named_parameters():
        found = model.experts.get_parameter(stacked_name(path)).grad
        assert found.placements == (Shard(0),)
        right = [expert.get_parameter(path).grad for expert in whole.experts[2:]]
        assert torch.equal(found.to_local(), torch.stack(right))


def test_a_replicated_stack_has_every_slot(whole: Owner, fake_group: FakeGroup, x: Tensor) -> None:
    fake_group(1, 2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    model = copy.deepcopy(whole)
    stack_in(model, wrap=lambda t: DTensor.from_local(t, mesh, [Replicate()], run_check=False))
    assert torch.equal(model.eval()(x), whole.eval()(x))
    model(x).sum().backward()
    assert model.experts.down.grad.placements == (Replicate(),)


@pytest.mark.parametrize(
    "ask",
    [
        lambda experts: experts[1],
        lambda experts: experts[0:3],
        lambda experts: list(experts),
        lambda experts: experts["1"],
    ],
)
def test_an_expert_of_another_rank_names_the_rank_that_has_it(
    ask: Callable[[Any], object], whole: Owner, fake_group: FakeGroup
) -> None:
    model = spread(whole, fake_group)
    with pytest.raises(NotRunnableError) as caught:
        ask(model.experts)
    text = str(caught.value)
    assert text.startswith("layers.3.experts: expert ")
    assert "ep rank 0 of 2 holds it; this is ep rank 1, with experts 2-3 of 4" in text
    assert "Fix: keep the experts whole" in text


def test_an_expert_of_another_rank_that_is_held_from_before_does_not_run(
    whole: Owner, fake_group: FakeGroup, x: Tensor
) -> None:
    model = spread(whole, fake_group)
    foreign = model.experts._hpx.experts[0]
    with pytest.raises(NotRunnableError, match="expert 0 is not on this rank"):
        foreign(x)


def test_a_forward_over_spread_experts_is_refused_and_leaves_nothing_armed(
    whole: Owner, fake_group: FakeGroup, x: Tensor
) -> None:
    model = spread(whole, fake_group)
    with pytest.raises(NotRunnableError):
        model(x)
    assert not model.experts.slots.armed


def test_spread_experts_print_set_modes_and_apply_functions(
    whole: Owner, fake_group: FakeGroup
) -> None:
    model = spread(whole, fake_group)
    assert "4 experts, 2-3 here: up (4, 8, 6)" in repr(model)
    model.eval()
    seen: list[nn.Module] = []
    model.apply(seen.append)
    assert model.experts[3].up in seen
    assert not any(expert.training for expert in model.experts._hpx.experts)


def test_a_stack_of_which_a_part_is_elsewhere_says_so(whole: Owner, fake_group: FakeGroup) -> None:
    model = spread(whole, fake_group)
    model.experts._parameters["down"] = nn.Parameter(torch.zeros(1, 6, 8))
    with pytest.raises(NotRunnableError, match="'down' has 1 slots here instead of 2"):
        _ = model.experts[2].down.weight


def test_a_copy_of_spread_experts_is_spread(whole: Owner, fake_group: FakeGroup) -> None:
    twin = copy.deepcopy(spread(whole, fake_group))
    assert torch.equal(twin.experts[3].down.weight, whole.experts[3].down.weight)
    with pytest.raises(NotRunnableError):
        twin.experts[0]
