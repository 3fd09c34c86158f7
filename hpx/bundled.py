"""Models to try things on, built from sizes alone with random weights.

On the command line a model is named by its function: ``hpx run hpx.bundled:moe_671b ...``.
torch is imported when a model is built, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpx.bundled_modules import CausalLM, DecoderConfig

__all__ = ["moe_671b", "tiny_llama", "tiny_moe"]


def tiny_llama(*, tied: bool = False) -> CausalLM:
    """Two dense layers, 8 heads and 4 key-value heads of 8; float32 on the CPU.

    Args:
        tied: Whether the head shares the weight of the embedding.
    """
    from hpx.bundled_modules import DecoderConfig

    config = DecoderConfig(
        hidden_size=64,
        intermediate_size=128,
        num_layers=2,
        num_heads=8,
        num_key_value_heads=4,
        head_dim=8,
        vocab_size=256,
        tied=tied,
    )
    return _build(config)


def tiny_moe() -> CausalLM:
    """The family of ``moe_671b`` with 2 layers of 8 experts; float32 on the CPU."""
    from hpx.bundled_modules import DecoderConfig

    config = DecoderConfig(
        hidden_size=64,
        intermediate_size=32,
        num_layers=2,
        num_heads=8,
        num_key_value_heads=4,
        head_dim=8,
        vocab_size=256,
        num_experts=8,
    )
    return _build(config)


def moe_671b() -> CausalLM:
    """58 layers of 256 experts, each expert a module of its own; bfloat16 on the meta device.

    671B elements in 44,953 parameters, about 60,000 modules. No weight has any storage.
    """
    import torch

    from hpx.bundled_modules import DecoderConfig

    config = DecoderConfig(
        hidden_size=7168,
        intermediate_size=2048,
        num_layers=58,
        num_heads=128,
        num_key_value_heads=16,
        head_dim=128,
        vocab_size=129280,
        num_experts=256,
        experts_per_token=8,
        device="meta",
        dtype=torch.bfloat16,
    )
    return _build(config)


def _build(config: DecoderConfig) -> CausalLM:
    """The same model every time: its weights come from a seed, and the caller's stays as it is."""
    import torch

    from hpx.bundled_modules import CausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return CausalLM(config)
