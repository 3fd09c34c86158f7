"""What a model itself declares about ties, head counts and its parallel layout; JSON-able only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeGuard

if TYPE_CHECKING:
    from torch import nn

__all__ = ["config_values", "hints_of"]

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
    "multi_query",
    "new_decoder_architecture",
    "alibi",
    "is_encoder_decoder",
)
_MOST_BITS: Final = 64
_PLANS = (("tp_plan", "_tp_plan"), ("ep_plan", "_ep_plan"))


def config_values(config: Mapping[str, object]) -> dict[str, int | str]:
    """The plain values of a model's configuration; of its text part where the whole has none."""
    inner = config.get("text_config")
    values: dict[str, int | str] = {}
    for part in (inner, config):
        if isinstance(part, Mapping):
            found = ((key, part.get(key)) for key in _CONFIG_KEYS)
            values.update((key, value) for key, value in found if _is_plain(value))
    return values


def _is_plain(value: object) -> TypeGuard[int | str]:
    """Whether it is text, or a number that is no absurd one."""
    return isinstance(value, str) or (isinstance(value, int) and value.bit_length() <= _MOST_BITS)


def hints_of(model: nn.Module) -> dict[str, object]:
    """The tied-keys map and the plain values of ``config`` that name heads and ties."""
    hints: dict[str, object] = {}
    values = config_values(_Attributes(_declared(model, "config")))
    if values:
        hints["config"] = values
    # transformers 5 maps tied names to their sources: here with patterns expanded, there not.
    tied = _declared(model, "all_tied_weights_keys")
    if tied is None:
        tied = _declared(model, "_tied_weights_keys")
    # The map holds only if the config says so.
    if isinstance(tied, Mapping) and tied and values.get("tie_word_embeddings", True):
        hints["tied"] = [[str(source), str(name)] for name, source in tied.items()]
    for key, attribute in _PLANS:
        plan = _declared(model, attribute)
        if isinstance(plan, Mapping) and plan:
            hints[key] = {str(pattern): str(style) for pattern, style in plan.items()}
    embeddings = [_path_of(model, f"get_{kind}_embeddings") for kind in ("input", "output")]
    if any(embeddings):
        hints["embeddings"] = embeddings
    return hints


def _path_of(model: nn.Module, getter: str) -> str | None:
    """The path of the module that a method of the model gives; None if it gives none."""
    method = _declared(model, getter)
    if not callable(method):
        return None
    try:
        wanted = method()
    except Exception:  # noqa: BLE001 - a model without such embeddings may raise anything
        return None
    named = model.named_modules() if wanted is not None else ()
    return next((name for name, module in named if module is wanted), None)


def _declared(model: nn.Module, name: str) -> object:
    try:
        return getattr(model, name, None)
    except Exception:  # noqa: BLE001 - a model's own __getattr__ can raise anything
        return None


class _Attributes(Mapping[str, object]):
    """Attributes of a configuration object as a mapping: transformers computes some of them."""

    def __init__(self, config: object) -> None:
        self._config = config

    def __getitem__(self, key: str) -> object:
        try:
            value: object = getattr(self._config, key)
        except AttributeError:
            raise KeyError(key) from None
        return _Attributes(value) if key == "text_config" and value is not None else value

    def __iter__(self) -> Iterator[str]:
        return iter(_CONFIG_KEYS)

    def __len__(self) -> int:
        return len(_CONFIG_KEYS)
