"""Example inputs of a model, as fake tensors: given ones, or what its forward seems to take."""

from __future__ import annotations

import inspect
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hpx.arguments import (
    FIX,
    UNKNOWN,
    Arguments,
    as_arguments,
    image_shape,
    mixes_images_into_text,
    refuse_several,
)
from hpx.errors import InputError

__all__ = ["example_inputs"]

_BATCH: Final = 2
_LENGTH: Final = 6


def example_inputs(model: nn.Module, given: object, mode: FakeTensorMode) -> Arguments:
    """Arguments for the model's forward.

    Args:
        model: A copy of the model: it is told to keep no cache.
        given: Example inputs: a tuple of arguments, a mapping by name, one tensor; or None.
        mode: The mode in which they are made.

    Raises:
        InputError: None are given, and what the forward takes cannot be told.
    """
    with mode:
        _keep_no_cache(model)
        if given is not None:
            return as_arguments(given, _fake)
        names = list(inspect.signature(model.forward).parameters)
        main = getattr(model, "main_input_name", None)
        if isinstance(main, str) and main in names and hasattr(model, "config"):
            return _of_transformers(model, main, names)
        return _by_first_layer(model)


def _fake(tensor: Tensor) -> Tensor:
    return torch.zeros(tensor.shape, dtype=tensor.dtype)


def _of_transformers(model: nn.Module, main: str, names: list[str]) -> Arguments:
    config: Any = model.config
    arguments: dict[str, Any] = {}
    if main == "pixel_values":
        arguments[main] = _image(config, _dtype(model))
    elif main == "input_ids":
        arguments[main] = _ids()
        # Two towers take both; where images stand for tokens of the text, the text alone will do.
        if "pixel_values" in names and not mixes_images_into_text(config):
            arguments["pixel_values"] = _image(config, _dtype(model))
    else:
        raise InputError(f"what its input '{main}' looks like is not known", fix=FIX)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in names:
        arguments["decoder_input_ids"] = _ids()
    return (), arguments


def _keep_no_cache(model: nn.Module) -> None:
    """Nobody reads what a forward leaves in a cache here."""
    for module in model.modules():
        own: Any = getattr(module, "config", None)
        if own is not None and getattr(own, "use_cache", False):
            own.use_cache = False


def _image(config: Any, dtype: torch.dtype) -> Tensor:
    return torch.zeros(image_shape(config, _BATCH), dtype=dtype)


def _ids() -> Tensor:
    return torch.zeros((_BATCH, _LENGTH), dtype=torch.int64)


def _dtype(model: nn.Module) -> torch.dtype:
    floats = (p.dtype for p in model.parameters() if p.is_floating_point())
    return next(floats, torch.float32)


def _by_first_layer(model: nn.Module) -> Arguments:
    """One input, as the first layer that the model registers takes it."""
    refuse_several(model)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            return (_ids(),), {}
        if isinstance(module, nn.Linear):
            shape: tuple[int, ...] = (_BATCH, _LENGTH, module.in_features)
            return (torch.zeros(shape, dtype=module.weight.dtype),), {}
        if isinstance(module, nn.Conv2d):
            shape = (_BATCH, module.in_channels, 32, 32)
            return (torch.zeros(shape, dtype=module.weight.dtype),), {}
    raise InputError(UNKNOWN, why="its first layer does not tell what it takes", fix=FIX)
