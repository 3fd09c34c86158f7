"""Through torch's distributed checkpoint and back, with FSDP on top; also onto another mesh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

import hpx
from hpx.numeric.pool import Pool
from hpx.runtime.record import Applied
from tests.distributed.data_parallel import built, loss_of, own_batch, sharded, whole
from tests.distributed.test_apply_cases import differences


def _train(applied: Applied, name: str, optimizer: torch.optim.Optimizer) -> None:
    torch.autograd.backward(loss_of(applied.model, own_batch(applied, name)))
    optimizer.step()
    optimizer.zero_grad()


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def _values(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(p.detach()).clone() for name, p in model.named_parameters()}


def saved_and_loaded(name: str, mesh: str, onto: str, folder: str) -> list[str]:
    """A step, a checkpoint, a step; and from the checkpoint the same second step elsewhere."""
    applied = sharded(name, mesh)
    optimizer = _optimizer(applied.model)
    _train(applied, name, optimizer)
    state: dict[str, Any] = {
        "model": get_model_state_dict(applied.model),
        "optimizer": get_optimizer_state_dict(applied.model, optimizer),
    }
    state_dict_saver.save(state, checkpoint_id=folder)
    saved = hpx.state_dict(applied.model)
    _train(applied, name, optimizer)

    other = sharded(name, onto)
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.zero_()
    again = _optimizer(other.model)
    state = {
        "model": get_model_state_dict(other.model),
        "optimizer": get_optimizer_state_dict(other.model, again),
    }
    state_dict_loader.load(state, checkpoint_id=folder)
    set_model_state_dict(other.model, state["model"])
    set_optimizer_state_dict(other.model, again, state["optimizer"])
    faults = differences(hpx.state_dict(other.model), saved)
    _train(other, name, again)
    expected = _values(applied.model)
    for key, value in _values(other.model).items():
        if not torch.allclose(value, expected[key], rtol=1e-9, atol=1e-12):
            faults.append(f"{key} differs after the next step")
    return faults


@pytest.mark.parametrize(
    ("name", "mesh", "onto"),
    [
        ("llama", "dp=2,tp=2", "dp=2,tp=2"),
        ("llama", "dp=4,tp=1", "dp=4,tp=1,ep=2"),
        ("mixture", "dp=4,tp=1,ep=2", "dp=4,tp=1,ep=2"),
        ("mixture", "dp=4,tp=1,ep=2", "dp=4,tp=1,ep=4"),
    ],
)
def test_training_goes_on_from_a_checkpoint(
    name: str, mesh: str, onto: str, gloo: Pool, tmp_path: Path
) -> None:
    assert gloo.run(saved_and_loaded, 4, name, mesh, onto, str(tmp_path)) == [[]] * 4


def whole_state(name: str, mesh: str) -> list[str]:
    """hpx.state_dict of a model with FSDP on top, also between a forward and a backward."""
    expected = {key: value.clone() for key, value in built(name).state_dict().items()}
    applied = sharded(name, mesh, reshard_after_forward=False)
    faults = differences(hpx.state_dict(applied.model), expected)
    loss = loss_of(applied.model, own_batch(applied, name))
    faults += differences(hpx.state_dict(applied.model), expected)
    torch.autograd.backward(loss)
    faults += [n for n, p in applied.model.named_parameters() if p.grad is None]
    return faults


@pytest.mark.parametrize(
    ("name", "mesh"),
    [("llama", "dp=2,tp=2"), ("llama", "dp=4,tp=1"), ("mixture", "dp=4,tp=1,ep=2")],
)
def test_the_whole_state_is_gathered_through_fsdp_as_well(name: str, mesh: str, gloo: Pool) -> None:
    assert gloo.run(whole_state, 4, name, mesh) == [[]] * 4


def from_meta(mesh: str) -> list[str]:
    """A model planned and sharded on meta gets memory, then its values from a checkpoint."""
    expected = {key: value.clone() for key, value in built("llama").state_dict().items()}
    applied = sharded("llama", mesh)
    state = get_model_state_dict(applied.model)
    model: Any = built("llama").to("meta")
    model.lm_head.weight = model.model.embed_tokens.weight
    other = hpx.apply(model, run=applied.run)
    hpx.fully_shard(other)
    hpx.to_empty(model, device="cpu")
    set_model_state_dict(model, state)
    faults = differences(hpx.state_dict(model), expected)
    if model.lm_head.weight is not model.model.embed_tokens.weight:
        faults.append("the tie is broken")
    batch = own_batch(applied, "llama")
    if not torch.equal(loss_of(model, batch), loss_of(applied.model, batch)):
        faults.append("the loss differs")
    return faults


@pytest.mark.parametrize("mesh", ["dp=2,tp=2", "dp=4,tp=1"])
def test_a_meta_model_is_filled_after_it_was_sharded(mesh: str, gloo: Pool) -> None:
    assert gloo.run(from_meta, 4, mesh) == [[]] * 4
