"""Layers that a program wraps after ``hpx.apply``, as for checkpoints of activations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointWrapper,
    checkpoint_wrapper,
)
from torch.distributed.tensor import DTensor

import hpx
from hpx.bundled import tiny_llama, tiny_moe
from tests.hpx.runtime.conftest import FakeGroup

PLAN = hpx.ShardingPlan(
    params={
        "model.embed_tokens.weight": {"tp": "S(0)"},
        "**.{q,k,v}_proj.weight": {"tp": "S(0)"},
        "**.o_proj.weight": {"tp": "S(1)"},
    },
    default="replicate",
)
WHOLE = hpx.ShardingPlan(default="replicate")
PASSES = "@default, shard-params{nothing=allow}"


@pytest.fixture(autouse=True)
def _first_of_two(fake_group: FakeGroup) -> None:
    fake_group(0, 2)


def wrap(owner: Any, name: str) -> None:
    setattr(owner, name, checkpoint_wrapper(getattr(owner, name)))


def test_restore_gives_a_wrapped_attention_its_head_counts_back() -> None:
    model: Any = tiny_llama()
    attention = model.model.layers[0].self_attn
    before = attention.num_heads
    hpx.apply(model, PLAN, "tp=2")
    assert attention.num_heads == before // 2
    wrap(model.model.layers[0], "self_attn")
    hpx.restore(model)
    assert attention.num_heads == before


def test_restore_gives_a_wrapped_layer_its_own_parameters_back() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 4))
    hpx.apply(model, WHOLE, "tp=2", PASSES)
    inner: Any = model[0]
    wrap(model, "0")
    assert list(hpx.state_dict(model)) == ["0.weight", "0.bias"]
    assert [type(p) for p in inner.parameters()] == [DTensor, DTensor]
    hpx.restore(model)
    assert [type(p) for p in inner.parameters()] == [nn.Parameter, nn.Parameter]
    assert list(model.state_dict()) == ["0.weight", "0.bias"]


def test_restore_leaves_a_wrapper_around_experts_where_it_is() -> None:
    model: Any = tiny_moe()
    names = list(model.state_dict())
    block = next(module for module in model.modules() if hasattr(module, "experts"))
    kind = type(block.experts)
    hpx.apply(model, WHOLE, "tp=2", PASSES)
    wrap(block, "experts")
    hpx.restore(model)
    assert isinstance(block.experts, CheckpointWrapper)
    assert type(block.experts._checkpoint_wrapped_module) is kind
    assert list(model.state_dict()) == names


def test_a_tie_holds_where_one_end_is_wrapped() -> None:
    model: Any = tiny_llama(tied=True).to("meta")
    model.lm_head.weight = model.model.embed_tokens.weight
    hpx.apply(model, WHOLE, "dp=2,tp=1")
    wrap(model.model, "embed_tokens")
    hpx.to_empty(model, device="cpu")
    assert model.model.embed_tokens._checkpoint_wrapped_module.weight is model.lm_head.weight
    with torch.no_grad():
        assert model(torch.zeros(1, 2, dtype=torch.int64)) is not None


def test_a_tie_that_was_broken_since_is_found_where_one_end_is_wrapped() -> None:
    model: Any = tiny_llama(tied=True)
    hpx.apply(model, WHOLE, "dp=2,tp=1")
    wrap(model.model, "embed_tokens")
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    with pytest.raises(hpx.HpxError, match=r"lm_head\.weight are tied, and are several"):
        model(torch.zeros(1, 2, dtype=torch.int64))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_state_dict_has_the_names_of_the_model_where_layers_are_compiled_since() -> None:
    model: Any = tiny_moe()
    names = list(model.state_dict())
    hpx.apply(model, WHOLE, "tp=2", PASSES)
    model.model.layers[0] = torch.compile(model.model.layers[0])
    assert list(hpx.state_dict(model)) == names


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_state_dict_of_compiled_layers_is_loaded() -> None:
    whole: Any = tiny_moe()
    whole.model.layers[0] = torch.compile(whole.model.layers[0])
    given = {name: torch.randn_like(value) for name, value in whole.state_dict().items()}
    model: Any = tiny_moe()
    hpx.apply(model, WHOLE, "tp=2", PASSES)
    hpx.load_state_dict(model, given)
    found = model.model.layers[0].self_attn.q_proj.weight.to_local()
    assert torch.equal(found, given["model.layers.0._orig_mod.self_attn.q_proj.weight"])
