"""What a model's forward takes: arguments that a person gave, or that its code seems to ask for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from torch import Tensor, nn
from torch.utils import _pytree

from hpx.errors import InputError

__all__ = [
    "FIX",
    "UNKNOWN",
    "Arguments",
    "as_arguments",
    "image_shape",
    "mixes_images_into_text",
    "refuse_several",
]

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""By position and by name."""

UNKNOWN: Final = "what the model is to be called with is not known"
FIX: Final = "name a factory that returns (model, example inputs)"

_SIDE: Final = 32
_COLORS: Final = 3


def as_arguments(given: object, change: Callable[[Tensor], Tensor]) -> Arguments:
    """Example inputs, each tensor of them changed.

    Args:
        given: A tuple of arguments, a mapping by name, or one value.
        change: Called with every tensor.
    """
    made = _pytree.tree_map_only(Tensor, change, given)
    if isinstance(made, Mapping):
        return (), dict(made)
    if isinstance(made, (tuple, list)):
        return tuple(made), {}
    return (made,), {}


def refuse_several(model: nn.Module) -> None:
    """Refuse a model whose forward takes more than one argument, or none.

    Raises:
        InputError: What the others are to be cannot be told.
    """
    parameters = inspect.signature(model.forward).parameters.values()
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p for p in parameters if p.default is p.empty and p.kind not in several]
    if len(needed) != 1 or needed[0].kind is inspect.Parameter.KEYWORD_ONLY:
        names = ", ".join(p.name for p in needed) or "nothing by name"
        raise InputError(UNKNOWN, why=f"its forward takes {names}", fix=FIX)


def mixes_images_into_text(config: object) -> bool:
    """Whether images stand for tokens of the text, so that the text alone will do.

    Args:
        config: That of a model of transformers that takes both.
    """
    return any(hasattr(config, name) for name in ("image_token_id", "image_token_index"))


def image_shape(config: object, rows: int) -> tuple[int, int, int, int]:
    """``[rows, colours, height, width]`` of the images that a model of transformers takes."""
    inner = getattr(config, "vision_config", config)
    size = getattr(inner, "image_size", _SIDE)
    height, width = size if isinstance(size, (tuple, list)) else (size, size)
    return rows, getattr(inner, "num_channels", _COLORS), height, width
