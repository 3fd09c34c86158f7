"""A small decoder in plain PyTorch, dense or with one module per expert.

The module tree has the names that Hugging Face models use. The attention views its heads by
``num_heads`` and ``num_key_value_heads``, and the experts are called one by one through
``self.experts[i]``: these are the two habits of model code that sharding has to respect.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Attention", "CausalLM", "Decoder", "DecoderConfig", "Expert", "Layer", "Mlp", "Moe"]


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Sizes of a decoder; ``num_experts`` 0 makes it dense."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    num_experts: int = 0
    experts_per_token: int = 2
    tied: bool = False
    device: str = "cpu"
    dtype: torch.dtype = torch.float32


class Linear(nn.Linear):
    """A linear layer without bias, whose meta weights cost no initialisation."""

    def __init__(self, in_features: int, out_features: int, config: DecoderConfig) -> None:
        super().__init__(
            in_features, out_features, bias=False, device=config.device, dtype=config.dtype
        )

    def reset_parameters(self) -> None:
        """Draw random weights, where there is storage to hold them."""
        if not self.weight.is_meta:
            super().reset_parameters()


def rotate(x: Tensor) -> Tensor:
    """Rotary position embedding of ``x``: [batch, heads, length, head_dim], the dim in halves."""
    length, head_dim = x.shape[-2:]
    half = torch.arange(head_dim // 2, device=x.device, dtype=torch.float32)
    frequency = 10000.0 ** (-2.0 * half / head_dim)
    angle = torch.outer(torch.arange(length, device=x.device, dtype=torch.float32), frequency)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def rms_norm(config: DecoderConfig) -> nn.RMSNorm:
    """A norm over the last dim, hidden_size."""
    return nn.RMSNorm(config.hidden_size, device=config.device, dtype=config.dtype)


class Attention(nn.Module):
    """Causal attention with grouped key and value heads."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.num_key_value_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        width = config.num_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, width, config)
        self.k_proj = Linear(config.hidden_size, kv_width, config)
        self.v_proj = Linear(config.hidden_size, kv_width, config)
        self.o_proj = Linear(width, config.hidden_size, config)

    def forward(self, hidden: Tensor) -> Tensor:
        """``hidden``: [batch, length, hidden_size]; so is the result."""
        batch, length, _ = hidden.shape
        kv_shape = (batch, length, self.num_key_value_heads, self.head_dim)
        query = self.q_proj(hidden).view(batch, length, self.num_heads, self.head_dim)
        key = self.k_proj(hidden).view(kv_shape).transpose(1, 2)
        value = self.v_proj(hidden).view(kv_shape).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(
            rotate(query.transpose(1, 2)), rotate(key), value, is_causal=True, enable_gqa=True
        )
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return out


class Mlp(nn.Module):
    """The gated feed-forward block of a dense layer."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, config)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, config)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, config)

    def forward(self, hidden: Tensor) -> Tensor:
        """Any leading dims; the last one is hidden_size."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return out


class Expert(Mlp):
    """One expert: the same block, for the tokens that are routed to it."""


class Moe(nn.Module):
    """A router, and one module per expert."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.experts_per_token = config.experts_per_token
        self.gate = Linear(config.hidden_size, config.num_experts, config)
        self.experts = nn.ModuleList(Expert(config) for _ in range(config.num_experts))

    def forward(self, hidden: Tensor) -> Tensor:
        """Send every token to its best experts, and add up their weighted answers."""
        tokens = hidden.reshape(-1, hidden.shape[-1])
        scores = functional.softmax(self.gate(tokens), dim=-1)
        weights, chosen = scores.topk(self.experts_per_token, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(tokens)
        for index in range(len(self.experts)):
            token, rank = torch.where(chosen == index)
            answer = self.experts[index](tokens[token]) * weights[token, rank, None]
            out = out.index_add(0, token, answer)
        return out.view_as(hidden)


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the stream."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Moe(config) if config.num_experts else Mlp(config)
        self.input_layernorm = rms_norm(config)
        self.post_attention_layernorm = rms_norm(config)

    def forward(self, hidden: Tensor) -> Tensor:
        """``hidden``: [batch, length, hidden_size]; so is the result."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden))
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class Decoder(nn.Module):
    """Embedding, layers and the last norm."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(
            config.vocab_size, config.hidden_size, device=config.device, dtype=config.dtype
        )
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = rms_norm(config)

    def forward(self, ids: Tensor) -> Tensor:
        """``ids``: [batch, length]; the result: [batch, length, hidden_size]."""
        hidden: Tensor = self.embed_tokens(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        out: Tensor = self.norm(hidden)
        return out


class CausalLM(nn.Module):
    """A decoder and the head that scores the next token."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.model = Decoder(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, config)
        if config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        """``ids``: [batch, length]; the result, scores: [batch, length, vocab_size]."""
        scores: Tensor = self.lm_head(self.model(ids))
        return scores
