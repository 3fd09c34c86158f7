"""Build a Hugging Face model on the meta device from its ``config.json`` alone.

1. Only the file is read: nothing is fetched from a hub, and code beside the file is never run.
2. The class is the one that ``architectures`` names, if transformers has it; else the causal
   language model of that ``model_type``, or its plain model.
"""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpx.errors import InputError, TooLargeError, did_you_mean
from hpx.graph.graph import ModuleGraph
from hpx.graph.json_file import read_json_object

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = ["config_of_values", "graph_from_config", "model_from_config", "model_of_values"]

_COUNTS: Final = re.compile(r"n(um)?_(\w+_)?(layers?|blocks|experts|heads)")
_MOST: Final = 10_000


def graph_from_config(path: Path, shown: str, source: str) -> ModuleGraph:
    """The graph of the model that a ``config.json`` describes.

    Args:
        path: The file.
        shown: How errors name it.
        source: How the graph names it.

    Raises:
        InputError: transformers is missing or does not know the model, or cannot build it.
    """
    model = model_from_config(path, shown)
    from hpx.graph.from_module import graph_from_module

    return graph_from_module(model, source=source)


def model_from_config(path: Path, shown: str) -> PreTrainedModel:
    """The model that a ``config.json`` describes, on the meta device.

    Raises:
        InputError: transformers is missing or does not know the model, or cannot build it.
    """
    return model_of_values(read_json_object(path, shown), shown)


def model_of_values(
    values: Mapping[str, object],
    shown: str,
    *,
    device: str = "meta",
    attention: str | None = None,
) -> PreTrainedModel:
    """The model of what stands in a ``config.json``.

    Args:
        values: Its values.
        shown: How errors name it.
        device: Where it is built; on another one than meta it has random weights.
        attention: ``eager`` or ``sdpa``; the model's own choice if not given.

    Raises:
        InputError: transformers is missing or does not know the model, or cannot build it.
        TooLargeError: It has more layers, experts or heads than any model.
    """
    _check_counts(values, shown)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _quiet_and_offline(shown):
            return _build(dict(values), shown, device, attention)


def _check_counts(values: Mapping[str, object], shown: str) -> None:
    """Refuse a count that would take hours and all of the memory, even without weights."""
    for name, value in values.items():
        if isinstance(value, dict):
            _check_counts(value, shown)
        elif isinstance(value, int) and value > _MOST and _COUNTS.fullmatch(name):
            raise TooLargeError(
                f"the model of {shown} is too large to be built",
                why=f"{name} is {value:,}, and {_MOST:,} is the most",
                fix="correct the file, or give package.module:factory",
            )


def config_of_values(values: Mapping[str, object], shown: str) -> PreTrainedConfig:
    """The configuration alone, with what its class fills in.

    Raises:
        InputError: transformers is missing or does not know the model, or the values do not fit.
    """
    with _quiet_and_offline(shown):
        config_class = _config_class(dict(values), shown)
        with _fitting(shown):
            return config_class.from_dict(dict(values))


@contextlib.contextmanager
def _quiet_and_offline(shown: str) -> Iterator[None]:
    """Keep transformers from talking, to people and to the hub; refuse if it is not there."""
    try:
        import huggingface_hub.constants
        from transformers.utils import logging as chatter
    except ImportError:
        raise InputError(
            f"{shown} needs transformers",
            why="it is not installed",
            fix="pip install 'hpx-passes[hf]'",
        ) from None

    verbosity, offline = chatter.get_verbosity(), huggingface_hub.constants.HF_HUB_OFFLINE
    chatter.set_verbosity(logging.ERROR)
    huggingface_hub.constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        chatter.set_verbosity(verbosity)
        huggingface_hub.constants.HF_HUB_OFFLINE = offline


def _build(
    values: dict[str, object], shown: str, device: str, attention: str | None
) -> PreTrainedModel:
    import torch

    config_class = _config_class(values, shown)
    with _fitting(shown):
        # from_dict changes what it is given
        config = config_class.from_dict(dict(values))
        if device != "meta" or attention is not None:
            # Kernels for many experts at once take no float64; the others compute the same.
            config._experts_implementation = "eager"
        model_class = _model_class(values, config)
        build: Callable[..., PreTrainedModel] = model_class._from_config
        chosen = {} if attention is None else {"attn_implementation": attention}
        with torch.device(device):
            return build(config, **chosen)


@contextlib.contextmanager
def _fitting(shown: str) -> Iterator[None]:
    """What transformers raises, as one error: values that do not fit can fail anywhere."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001
        text = " ".join(str(error).split())[:200]
        raise InputError(
            f"transformers cannot build the model of {shown}",
            why=f"{type(error).__name__}: {text}",
        ) from None


def _config_class(values: dict[str, object], shown: str) -> type[PreTrainedConfig]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    name = values.get("model_type")
    if not isinstance(name, str):
        raise InputError(f"{shown} names no model_type", why="so its model is not known")
    if name not in CONFIG_MAPPING:
        import transformers

        raise InputError(
            f"transformers {transformers.__version__} does not know the model_type '{name}' of"
            f" {shown}",
            why="and code that comes with a model is never run" if "auto_map" in values else None,
            fix=did_you_mean(name, CONFIG_MAPPING.keys()) or "give package.module:factory",
        )
    found: type[PreTrainedConfig] = CONFIG_MAPPING[name]
    return found


def _model_class(values: dict[str, object], config: PreTrainedConfig) -> type[PreTrainedModel]:
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    named = values.get("architectures")
    candidates: list[object] = []
    if isinstance(named, list):
        candidates += [getattr(transformers, str(name), None) for name in named]
    for mapping in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING):
        if type(config) in mapping:
            found: object = mapping[type(config)]
            # A few types map to several classes; the first is the usual one.
            candidates += found if isinstance(found, tuple) else [found]
    for candidate in candidates:
        if isinstance(candidate, type) and issubclass(candidate, transformers.PreTrainedModel):
            return candidate
    raise InputError(f"transformers has no model class for '{config.model_type}'")
