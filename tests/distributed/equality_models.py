"""Small models of several families, and plans for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torch import nn

from hpx import bundled

LLAMA: Final = """\
params:
  "model.embed_tokens.weight": {tp: S(0)}
  "model.layers.*.self_attn.{q,k,v}_proj.weight": {tp: S(0)}
  "model.layers.*.self_attn.o_proj.weight": {tp: S(1)}
"""
MLP: Final = """\
  "model.layers.*.mlp.{gate,up}_proj.weight": {tp: S(0)}
  "model.layers.*.mlp.down_proj.weight": {tp: S(1)}
"""
HEAD: Final = '  "lm_head.weight": {tp: S(0)}\n'
REST: Final = "default: replicate\n"
GPT2: Final = """\
params:
  "transformer.h.*.mlp.c_fc.weight": {tp: S(1)}
  "transformer.h.*.mlp.c_proj.weight": {tp: S(0)}
  "transformer.wte.weight": {tp: S(0)}
"""
VOCABULARY: Final = 48
PADDING: Final = 3
"""A row of the first rank."""
PADDING_LATE: Final = 29
"""A row of the second one."""


def _sizes(**more: Any) -> dict[str, Any]:
    return {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 64,
        "pad_token_id": PADDING,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **more,
    }


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    # With biases everywhere: those of o_proj and down_proj are rowwise.
    config = LlamaConfig(**_sizes(attention_bias=True, mlp_bias=True))
    return LlamaForCausalLM(config)


def qwen2() -> nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(
        Qwen2Config(**_sizes(tie_word_embeddings=False, pad_token_id=PADDING_LATE))
    )


def qwen3() -> nn.Module:
    """A norm of q and k inside the region: whole, and with a part of its gradient on each rank."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**_sizes(head_dim=8, tie_word_embeddings=False)))


def gemma() -> nn.Module:
    from transformers import GemmaConfig, GemmaForCausalLM

    return GemmaForCausalLM(GemmaConfig(**_sizes(head_dim=8)))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    rates: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    tokens: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, **rates, **tokens))


def tiny_llama() -> nn.Module:
    return bundled.tiny_llama()


def tiny_moe() -> nn.Module:
    return bundled.tiny_moe()


MODELS: Final[dict[str, tuple[Callable[[], nn.Module], str]]] = {
    "llama": (llama, LLAMA + MLP + HEAD + REST),
    "qwen2": (qwen2, LLAMA + MLP + HEAD + REST),
    "qwen3": (qwen3, LLAMA + MLP + HEAD + REST),
    "gemma": (gemma, LLAMA + MLP + REST),
    "gpt2": (gpt2, GPT2 + REST),
    "tiny_llama": (tiny_llama, LLAMA + MLP + HEAD + REST),
    "tiny_moe": (tiny_moe, LLAMA + HEAD + REST),
}
