"""Small models and plans for tests that shard them on several ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

import hpx
from hpx import bundled

_ATTENTION: Final = {
    "**.{q,k,v}_proj.weight": {"tp": "S(0)"},
    "**.o_proj.weight": {"tp": "S(1)"},
}
_DENSE: Final = {
    **_ATTENTION,
    "model.embed_tokens.weight": {"tp": "S(0)"},
    "**.mlp.{gate,up}_proj.weight": {"tp": "S(0)"},
    "**.mlp.down_proj.weight": {"tp": "S(1)"},
}
_EXPERTS: Final = {"**.experts.*": {"ep": "S(0)"}}


def _sizes(**more: Any) -> dict[str, Any]:
    return {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 4,
        "vocab_size": 64,
        "max_position_embeddings": 32,
        "pad_token_id": 3,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **more,
    }


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_sizes(attention_bias=True)))


def tied_llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_sizes(tie_word_embeddings=True)))


def mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(**_sizes(num_local_experts=8, num_experts_per_tok=2))
    return MixtralForCausalLM(config)


def qwen3_moe() -> nn.Module:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    sizes = _sizes(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16)
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes))


def tiny_moe() -> nn.Module:
    return bundled.tiny_moe()


Rules = dict[str, dict[str, str]]
MODELS: Final[dict[str, tuple[Callable[[], nn.Module], Rules]]] = {
    "llama": (llama, _DENSE),
    "tied llama": (tied_llama, _DENSE),
    "one module per expert": (tiny_moe, {**_ATTENTION, **_EXPERTS}),
    "mixtral": (mixtral, {**_ATTENTION, **_EXPERTS}),
    "qwen3 moe": (qwen3_moe, {**_ATTENTION, **_EXPERTS}),
}


def built(name: str) -> nn.Module:
    """The same model on every rank; no two of its elements are likely to be equal."""
    torch.manual_seed(0)
    model = MODELS[name][0]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    return model


def plan_for(name: str, mesh: str) -> hpx.ShardingPlan:
    """The model's plan on a mesh: experts stay whole where the mesh has no ep."""
    spec = hpx.MeshSpec.parse(mesh)
    rules = {
        pattern: layout for pattern, layout in MODELS[name][1].items() if spec.has(*layout.keys())
    }
    return hpx.ShardingPlan(params=rules, default="replicate")
