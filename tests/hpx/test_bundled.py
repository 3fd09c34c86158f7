from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from hpx import bundled
from hpx.bundled_modules import CausalLM


@pytest.fixture(scope="module")
def moe_671b() -> CausalLM:
    return bundled.moe_671b()


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.arange(14).view(2, 7)


def test_the_large_moe_has_the_parameters_of_58_layers_of_256_experts(moe_671b: CausalLM) -> None:
    shapes = {name: tuple(p.shape) for name, p in moe_671b.named_parameters()}
    assert len(shapes) == 58 * (256 * 3 + 7) + 3
    assert shapes["model.layers.57.mlp.experts.255.gate_proj.weight"] == (2048, 7168)
    assert shapes["model.layers.0.mlp.experts.0.down_proj.weight"] == (7168, 2048)
    assert shapes["model.layers.0.self_attn.k_proj.weight"] == (2048, 7168)
    assert shapes["model.layers.0.mlp.gate.weight"] == (256, 7168)


def test_the_large_moe_has_671_billion_elements_and_no_storage(moe_671b: CausalLM) -> None:
    parameters = list(moe_671b.parameters())
    assert sum(p.numel() for p in parameters) == 671_195_384_832
    assert {(p.device.type, p.dtype) for p in parameters} == {("meta", torch.bfloat16)}


@pytest.mark.parametrize("factory", [bundled.tiny_llama, bundled.tiny_moe])
def test_a_tiny_model_computes_scores_and_a_gradient_for_every_parameter(
    factory: Callable[[], CausalLM], ids: torch.Tensor
) -> None:
    model = factory()
    scores = model(ids)
    scores.logsumexp(-1).sum().backward()
    assert scores.shape == (2, 7, 256)
    assert scores.isfinite().all()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_a_tiny_model_looks_only_at_earlier_tokens(ids: torch.Tensor) -> None:
    model = bundled.tiny_moe()
    changed = ids.clone()
    changed[:, -1] = 200
    torch.testing.assert_close(model(ids)[:, :-1], model(changed)[:, :-1])


def test_routing_gives_every_token_the_weighted_answers_of_its_best_experts() -> None:
    moe = bundled.tiny_moe().model.layers[0].get_submodule("mlp")
    token = torch.linspace(-1, 1, 64)
    weights, chosen = moe.get_submodule("gate")(token).softmax(-1).topk(2)
    expected = sum(
        w / weights.sum() * moe.get_submodule(f"experts.{i}")(token)
        for w, i in zip(weights, chosen.tolist(), strict=True)
    )
    torch.testing.assert_close(moe(token[None])[0], expected)


def test_a_bundled_model_has_the_same_weights_every_time_and_leaves_the_seed_alone() -> None:
    state = torch.get_rng_state()
    first, second = bundled.tiny_moe().state_dict(), bundled.tiny_moe().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(state, torch.get_rng_state())


def test_a_tied_llama_has_one_parameter_for_embedding_and_head() -> None:
    model = bundled.tiny_llama(tied=True)
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize("module", ["hpx", "hpx.bundled"])
def test_importing_does_not_load_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
