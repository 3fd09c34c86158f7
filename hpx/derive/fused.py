"""What the code of known classes fixes, by qualified class name: above all, fused projections.

Read off transformers 5.24. A class that is not here may lay its rows out in any of three ways (one
part after the other, head by head, group by group), so nothing is assumed of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, cast

from hpx.derive.layers import Layer
from hpx.derive.types import PackedFact
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode
from hpx.heads import Attention
from hpx.plan.boundary import Edge

__all__ = ["ALIBI", "fused_attention", "fused_mlp", "inputs_of", "looks_fused"]

_Way: TypeAlias = Literal["parts", "heads", "config"]

_MODELS: Final = "transformers.models."
_ATTENTION: Final[Mapping[tuple[str, str], _Way]] = {
    ("gpt2.modeling_gpt2.GPT2Attention", "c_attn"): "parts",
    ("phi3.modeling_phi3.Phi3Attention", "qkv_proj"): "parts",
    ("mpt.modeling_mpt.MptAttention", "Wqkv"): "parts",
    ("openai.modeling_openai.Attention", "c_attn"): "parts",
    ("imagegpt.modeling_imagegpt.ImageGPTAttention", "c_attn"): "parts",
    ("phi4_multimodal.modeling_phi4_multimodal.Phi4MultimodalAttention", "qkv_proj"): "parts",
    ("persimmon.modeling_persimmon.PersimmonAttention", "query_key_value"): "heads",
    ("gpt_bigcode.modeling_gpt_bigcode.GPTBigCodeAttention", "c_attn"): "config",
    ("gpt_neox.modeling_gpt_neox.GPTNeoXAttention", "query_key_value"): "heads",
    ("bloom.modeling_bloom.BloomAttention", "query_key_value"): "heads",
    ("falcon.modeling_falcon.FalconAttention", "query_key_value"): "config",
}
_MLP: Final = frozenset(
    [
        ("phi3.modeling_phi3.Phi3MLP", "gate_up_proj"),
        ("phi4_multimodal.modeling_phi4_multimodal.Phi4MultimodalMLP", "gate_up_proj"),
        ("glm.modeling_glm.GlmMLP", "gate_up_proj"),
        ("glm4.modeling_glm4.Glm4MLP", "gate_up_proj"),
        ("glm4v.modeling_glm4v.Glm4vTextMLP", "gate_up_proj"),
        ("glm_ocr.modeling_glm_ocr.GlmOcrTextMLP", "gate_up_proj"),
        ("glm_image.modeling_glm_image.GlmImageTextMLP", "gate_up_proj"),
        ("dia.modeling_dia.DiaMLP", "gate_up_proj"),
    ]
)
ALIBI: Final = frozenset(
    [f"{_MODELS}bloom.modeling_bloom.BloomAttention", f"{_MODELS}mpt.modeling_mpt.MptAttention"]
)
"""Attention that is given one slope for each head of the whole model."""


_SHARED_BIAS: Final[Mapping[str, Mapping[str, Edge]]] = {
    "SelfAttention": {"hidden_states": "R", "position_bias": "none"},
    "EncDecAttention": {"hidden_states": "R", "key_value_states": "R", "position_bias": "none"},
}
_INPUTS: Final[Mapping[str, Mapping[str, Mapping[str, Edge]]]] = {
    "bloom.modeling_bloom.BloomMLP": {"mlp": {"hidden_states": "R", "residual": "none"}},
    "t5.modeling_t5.T5Attention": _SHARED_BIAS,
    "mt5.modeling_mt5.MT5Attention": _SHARED_BIAS,
}
"""By class and name: blocks with more inputs that carry a gradient, and which of them cut weights
read. The bias of positions that T5's first layer gives to all others is of one rank's heads."""


def inputs_of(module: ModuleNode) -> Mapping[str, Edge] | None:
    """What enters a block with several inputs, where its class fixes it."""
    return _INPUTS.get(module.spec.cls.removeprefix(_MODELS), {}).get(module.name)


def fused_attention(graph: ModuleGraph, attention: Attention, layer: Layer) -> PackedFact | None:
    """How a fused q, k and v lies; None where its class does not say."""
    cls = graph.module(attention.owner).spec.cls
    way = _ATTENTION.get((cls.removeprefix(_MODELS), layer.name))
    heads, size = attention.num_heads, attention.head_dim
    if way is None or not heads:
        return None
    kv = attention.num_kv_heads or heads
    if size is None:  # neither counts nor sizes are stored: as many keys as queries
        size = layer.outputs // (3 * heads)
    repeat = 1
    if way == "config":
        config = cast(Mapping[str, object], graph.hints.get("config", {}))
        if config.get("new_decoder_architecture"):
            repeat = kv
        elif config.get("multi_query"):
            kv = 1
        else:
            repeat = heads
    elif way == "heads":
        repeat = heads
    parts = (("q", heads * size), ("k", kv * size), ("v", kv * size))
    if sum(rows for _, rows in parts) != layer.outputs:
        return None
    return PackedFact(layer, repeat, parts, cls.rsplit(".", 1)[-1])


def fused_mlp(graph: ModuleGraph, owner: int, layer: Layer) -> PackedFact | None:
    """How a fused gate and up lies; None where its class does not say."""
    cls = graph.module(owner).spec.cls
    if (cls.removeprefix(_MODELS), layer.name) not in _MLP:
        return None
    half = layer.outputs // 2
    return PackedFact(layer, 1, (("gate", half), ("up", half)), cls.rsplit(".", 1)[-1])


def looks_fused(fact: PackedFact | None, layer: Layer, what: str) -> str:
    """Why a fused layer that cannot be cut stays whole."""
    if fact is None:
        return (
            f"{layer.name} holds {what} in one matrix, and whether its {layer.outputs} rows lie"
            " part by part, head by head or group by group is not known; declare it under packed:"
        )
    parts = ", ".join(f"{name} {rows}" for name, rows in fact.parts)
    return f"{layer.name} holds {what} in one matrix ({parts}, as {fact.fixed_by} reads it)"
