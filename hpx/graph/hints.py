"""What a model itself declares about its ties and head counts; JSON-able values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

__all__ = ["hints_of"]

_CONFIG_KEYS = (
    "model_type",
    "tie_word_embeddings",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "num_hidden_layers",
    "n_head",
    "n_layer",
    "n_embd",
)


def hints_of(model: nn.Module) -> dict[str, object]:
    """The tied-keys map and the plain values of ``config`` that name heads and ties."""
    hints: dict[str, object] = {}
    config = getattr(model, "config", None)
    values = {
        key: value
        for key in _CONFIG_KEYS
        if isinstance(value := getattr(config, key, None), (int, str))
    }
    if values:
        hints["config"] = values
    tied = getattr(model, "_tied_weights_keys", None)
    # transformers 5 maps the tied name to its source; the map holds only if the config says so.
    if isinstance(tied, Mapping) and values.get("tie_word_embeddings", True):
        hints["tied"] = [[str(source), str(name)] for name, source in tied.items()]
    return hints
