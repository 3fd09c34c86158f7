"""Small models of many architectures, on the meta device, and hand-written ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import pytest
import torch
from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["FAMILIES", "family"]

_SIZES: Final[dict[str, Any]] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_NO_KV: Final = {key: value for key, value in _SIZES.items() if key != "num_key_value_heads"}
_ALL_KV: Final = {**_SIZES, "num_key_value_heads": 4, "num_hidden_layers": 3}
_MOE: Final = {"num_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
_ROUTED: Final = {"n_routed_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
_LATENT: Final = {
    **_ROUTED,
    "q_lora_rank": 12,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_SMALL: Final = {"vocab_size": 128, "hidden_size": 32}

FAMILIES: Final[Mapping[str, tuple[str, str, dict[str, Any]]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", _SIZES),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _SIZES),
    "gpt2": (
        *("GPT2LMHeadModel", "GPT2Config"),
        {"vocab_size": 128, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    ),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", {**_SIZES, "pad_token_id": 0}),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**_SIZES, "num_local_experts": 4}),
    "qwen3_moe": (
        *("Qwen3MoeForCausalLM", "Qwen3MoeConfig"),
        {**_SIZES, **_MOE, "head_dim": 8, "mlp_only_layers": [0]},
    ),
    "deepseek_v3": ("DeepseekV3ForCausalLM", "DeepseekV3Config", {**_ALL_KV, **_LATENT}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**_SIZES, "head_dim": 8}),
    "mistral": ("MistralForCausalLM", "MistralConfig", _SIZES),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**_SIZES, "head_dim": 16}),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**_SIZES, "head_dim": 16}),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _NO_KV),
    "falcon": (
        *("FalconForCausalLM", "FalconConfig"),
        {
            **(_SMALL | {"num_hidden_layers": 2, "num_attention_heads": 4}),
            "num_kv_heads": 2,
            "new_decoder_architecture": True,
        },
    ),
    "bloom": ("BloomForCausalLM", "BloomConfig", {**_SMALL, "n_layer": 2, "n_head": 4}),
    "opt": (
        *("OPTForCausalLM", "OPTConfig"),
        {**_NO_KV, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 64},
    ),
    "starcoder2": ("Starcoder2ForCausalLM", "Starcoder2Config", _SIZES),
    "qwen2_moe": (
        *("Qwen2MoeForCausalLM", "Qwen2MoeConfig"),
        {**_SIZES, **_MOE, "shared_expert_intermediate_size": 48},
    ),
    "deepseek_v2": ("DeepseekV2ForCausalLM", "DeepseekV2Config", {**_ALL_KV, **_LATENT}),
    "gpt_oss": (
        *("GptOssForCausalLM", "GptOssConfig"),
        {**_SIZES, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "glm4_moe": (
        *("Glm4MoeForCausalLM", "Glm4MoeConfig"),
        {**_SIZES, **_ROUTED, "num_hidden_layers": 3, "head_dim": 8},
    ),
    "olmoe": ("OlmoeForCausalLM", "OlmoeConfig", {**_SIZES, **_MOE}),
    "bert": ("BertForMaskedLM", "BertConfig", {**_NO_KV, "max_position_embeddings": 64}),
    "t5": (
        *("T5ForConditionalGeneration", "T5Config"),
        {"vocab_size": 128, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
    ),
    "vit": (
        *("ViTForImageClassification", "ViTConfig"),
        {**_NO_KV, "image_size": 16, "patch_size": 8},
    ),
}
"""Model class, config class and sizes of each family of transformers."""


def family(name: str, device: str = "meta", **changes: Any) -> PreTrainedModel:
    """A small model of a family."""
    transformers = pytest.importorskip("transformers")
    model_class, config_class, sizes = FAMILIES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = getattr(transformers, config_class)(**{**sizes, **changes})
        with torch.device(device):
            build: Callable[..., PreTrainedModel] = getattr(transformers, model_class)._from_config
            return build(config)


# -- hand-written ------------------------------------------------------------------------------


def linear(inputs: int, outputs: int, *, bias: bool = False) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=bias, device="meta")


class CausalSelfAttention(nn.Module):
    """As in nanoGPT: q, k and v in one Linear, split by width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.c_attn = linear(width, 3 * width, bias=True)
        self.c_proj = linear(width, width, bias=True)
        self.n_head = heads
        self.n_embd = width


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = linear(width, 4 * width, bias=True)
        self.c_proj = linear(4 * width, width, bias=True)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, device="meta")
        self.attn = CausalSelfAttention(width, heads)
        self.ln_2 = nn.LayerNorm(width, device="meta")
        self.mlp = Mlp(width)


class NanoGpt(nn.Module):
    """The GPT that people write by hand."""

    def __init__(self, vocab: int = 128, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocab, width, device="meta"),
                "wpe": nn.Embedding(64, width, device="meta"),
                "h": nn.ModuleList(Block(width, heads) for _ in range(2)),
                "ln_f": nn.LayerNorm(width, device="meta"),
            }
        )
        self.lm_head = linear(width, vocab)
        table = self.transformer["wte"]
        assert isinstance(table, nn.Embedding)
        table.weight = self.lm_head.weight


class Attention(nn.Module):
    """Grouped heads, under names of the caller's choice: q, k, v, o."""

    def __init__(
        self,
        width: int = 32,
        heads: int = 4,
        kv: int = 2,
        size: int = 8,
        names: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "o_proj"),
    ) -> None:
        super().__init__()
        for name, number in zip(names, (heads, kv, kv), strict=False):
            self.add_module(name, linear(width, number * size))
        self.add_module(names[3], linear(heads * size, width))
        self.num_heads, self.num_key_value_heads, self.head_dim = heads, kv, size


class Expert(nn.Module):
    def __init__(self, width: int = 32, inner: int = 48) -> None:
        super().__init__()
        self.w1 = linear(width, inner)
        self.w3 = linear(width, inner)
        self.w2 = linear(inner, width)


class Moe(nn.Module):
    """A router and experts that are modules of their own."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.gate = linear(32, experts)
        self.experts = nn.ModuleList(Expert() for _ in range(experts))


class Mixer(nn.Module):
    """What stands where attention would in Mamba."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        inner = 2 * width
        self.in_proj = linear(width, 2 * inner)
        self.conv1d = nn.Conv1d(inner, inner, 4, groups=inner, device="meta")
        self.x_proj = linear(inner, 20)
        self.dt_proj = linear(4, inner, bias=True)
        self.out_proj = linear(inner, width)
        self.A_log = nn.Parameter(torch.empty(inner, 8, device="meta"))
        self.D = nn.Parameter(torch.empty(inner, device="meta"))


class Layer(nn.Module):
    def __init__(self, mixer: nn.Module, feed: nn.Module, width: int = 32) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, device="meta")
        self.mixer = mixer
        self.norm2 = nn.LayerNorm(width, device="meta")
        self.feed = feed


class Stack(nn.Module):
    """An embedding, layers, and a head."""

    def __init__(self, layers: list[nn.Module], vocab: int = 128, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width, device="meta")
        self.layers = nn.ModuleList(layers)
        self.head = linear(width, vocab)


class Towers(nn.Module):
    """A tower of images and one of text, of different widths, and a projection between them."""

    def __init__(self) -> None:
        super().__init__()
        self.vision = nn.ModuleList(Layer(Attention(16, 2, 2, 8), Mlp(16), 16) for _ in range(2))
        self.text = Stack([Layer(Attention(), Expert()) for _ in range(2)])
        self.video_proj = linear(16, 32)


def moe() -> nn.Module:
    return Stack([Layer(Attention(), Moe()) for _ in range(2)])


def hybrid() -> nn.Module:
    return Stack([Layer(Mixer(), Expert()), Layer(Attention(), Expert())])


HAND_WRITTEN: Final[Mapping[str, Callable[[], nn.Module]]] = {
    "nano_gpt": NanoGpt,
    "per_expert_moe": moe,
    "towers": Towers,
    "mamba_hybrid": hybrid,
}
