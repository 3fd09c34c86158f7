"""What goes with a sharded model in training: copies, accumulation, autocast, recomputation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import hpx
from hpx.bundled import tiny_llama
from hpx.numeric.pool import Pool

Gradients = dict[str, Tensor]


def batch(number: int = 0) -> Tensor:
    torch.manual_seed(number)
    return torch.randint(256, (2, 12))


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    scores = model(ids)
    return functional.cross_entropy(scores[:, :-1].flatten(0, 1).double(), ids[:, 1:].flatten())


def whole(dtype: torch.dtype = torch.float64) -> nn.Module:
    return tiny_llama().to(dtype)


def sharded(dtype: torch.dtype = torch.float64) -> nn.Module:
    model = whole(dtype)
    return hpx.apply(model, hpx.plan(model, "tp=2"), "tp=2", "@run").model


def gradients(model: nn.Module) -> Gradients:
    found: Gradients = {}
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        assert grad is not None, name
        found[name] = grad.full_tensor() if isinstance(grad, DTensor) else grad
    return found


def off(found: Gradients, expected: Gradients) -> float:
    assert list(found) == list(expected)
    return max(
        ((found[k] - expected[k]).abs().max() / expected[k].abs().max()).item() for k in found
    )


def accumulated() -> float:
    models = sharded(), whole()
    for model in models:
        for number in range(3):
            torch.autograd.backward(loss_of(model, batch(number)) / 3)
    return off(gradients(models[0]), gradients(models[1]))


def copied() -> tuple[float, float, bool]:
    model = sharded()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    torch.autograd.backward(loss_of(twin, batch()))
    reference = whole()
    torch.autograd.backward(loss_of(reference, batch()))
    shares = {id(p) for p in model.parameters()} & {id(p) for p in twin.parameters()}
    untouched = all(parameter.grad is None for parameter in model.parameters())
    with torch.no_grad():
        moved = (loss_of(model, batch()) - loss_of(reference, batch())).abs().item()
    return off(gradients(twin), gradients(reference)), moved, untouched and not shares


def autocast() -> tuple[float, float]:
    """How far sharded and whole are apart in bfloat16, and how far bfloat16 is from float32."""
    models = sharded(torch.float32), whole(torch.float32), whole(torch.float32)
    for model, wanted in zip(models, (True, True, False), strict=True):
        with torch.autocast("cpu", torch.bfloat16) if wanted else nullcontext():
            loss = loss_of(model, batch())
        torch.autograd.backward(loss)
    found, expected, exact = map(gradients, models)
    return off(found, expected), off(expected, exact)


def recomputed_by_hand() -> float:
    """Each layer under ``torch.utils.checkpoint`` in the model's own code, not by a wrapper."""
    models = sharded(), whole()
    for model in models:
        for layer in model.get_submodule("model.layers").children():
            _recompute(layer)
        torch.autograd.backward(loss_of(model, batch()))
    return off(gradients(models[0]), gradients(models[1]))


def _recompute(layer: nn.Module) -> None:
    inner: Callable[..., Tensor] = layer.forward

    def forward(*args: Tensor, **kwargs: Tensor) -> Tensor:
        found: Tensor = checkpoint(partial(inner, **kwargs), *args, use_reentrant=False)
        return found

    layer.__dict__["forward"] = forward


@pytest.mark.distributed
def test_gradients_of_several_batches_add_up(gloo: Pool) -> None:
    assert max(gloo.run(accumulated, 2)) <= 1e-9


@pytest.mark.distributed
def test_a_copy_trains_on_weights_of_its_own(gloo: Pool) -> None:
    for deviation, moved, apart in gloo.run(copied, 2):
        assert deviation <= 1e-9
        assert moved > 1e-3
        assert apart


@pytest.mark.distributed
def test_under_autocast_it_is_as_near_as_bfloat16_is_to_float32(gloo: Pool) -> None:
    for deviation, rounding in gloo.run(autocast, 2):
        assert deviation <= 2 * rounding
        assert rounding < 0.1


@pytest.mark.distributed
def test_layers_that_recompute_themselves_have_the_same_gradients(gloo: Pool) -> None:
    assert max(gloo.run(recomputed_by_hand, 2)) <= 1e-9
