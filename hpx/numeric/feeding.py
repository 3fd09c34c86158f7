"""What a model is fed, and what is made of its answer: inputs and loss, equal on all ranks.

Inputs that a person gave are taken as they are. For the others:

1. A language model gets tokens, in two rows: every token of a small vocabulary, so that a row of
   the embedding whose gradient is lost shows, and the padding token, if there is one.
2. A model of images gets random pixels; another one what its first layer takes.
3. The loss of scores ``[batch, length, vocabulary]`` is the cross entropy of the next token, that
   of scores ``[batch, classes]`` of some class, and any other answer is weighted by random numbers.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

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
from hpx.layout import per_rank_sizes
from hpx.runtime.collectives import gather_last_dim

__all__ = ["LossFunction", "default_loss", "given_inputs", "inputs_of", "tensors_in"]

LossFunction = Callable[[Any], Tensor]

_ROWS: Final = 2
_LENGTH: Final = 16
_SMALL: Final = 512
"""A vocabulary of which every token is looked up."""
_SHIFT: Final = 2
"""Positions that some models keep for padding."""


def given_inputs(given: object) -> Arguments:
    """Example inputs (a tuple of arguments, a mapping by name, one value) in float64."""
    return as_arguments(given, _double)


def _double(tensor: Tensor) -> Tensor:
    """In float64, and made by nobody: as a leaf it can be copied."""
    leaf = tensor.detach()
    if not leaf.is_floating_point():
        return leaf
    return leaf.double().requires_grad_(tensor.requires_grad)


def inputs_of(model: nn.Module, index: int) -> Arguments:
    """Inputs for a model's forward, others for every data parallel rank.

    Args:
        model: The model.
        index: Which of the data parallel ranks.

    Raises:
        InputError: What the forward takes cannot be told.
    """
    generator = torch.Generator().manual_seed(1 + index)
    names = list(inspect.signature(model.forward).parameters)
    main = getattr(model, "main_input_name", None)
    config: Any = getattr(model, "config", None)
    if isinstance(main, str) and main in names and config is not None:
        found: dict[str, Any] = {}
        if main == "pixel_values":
            found[main] = _image(config, generator)
        elif main == "input_ids":
            found[main] = _tokens(model, generator)
            if "pixel_values" in names and not mixes_images_into_text(config):
                found["pixel_values"] = _image(config, generator)
        else:
            raise InputError(f"what its input '{main}' looks like is not known", fix=FIX)
        if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in names:
            found["decoder_input_ids"] = _tokens(model, generator)
        return (), found
    return (_by_first_layer(model, generator),), {}


def _tokens(model: nn.Module, generator: torch.Generator) -> Tensor:
    """``[2, length]``: all tokens of a small vocabulary, and padding before; 16 of a large one."""
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    config: Any = getattr(model, "config", None)
    if config is not None and hasattr(config, "get_text_config"):
        config = config.get_text_config()
    size = getattr(config, "vocab_size", None) or max(
        (table.num_embeddings for table in tables), default=2
    )
    longest = getattr(config, "max_position_embeddings", None) or 1 << 30
    length = -(-size // _ROWS) + 3
    length += -length % _LENGTH  # which the ranks can share under sequence parallelism
    if size > _SMALL or length + _SHIFT > longest:
        length = max(4, min(_LENGTH, longest - _SHIFT))
    more = torch.randint(size, (_ROWS * (length - 3),), generator=generator)
    order = torch.cat((torch.randperm(size, generator=generator), more))
    ids = order[: _ROWS * (length - 3)].view(_ROWS, length - 3)
    padding = {t.padding_idx for t in tables if t.num_embeddings == size} - {None}
    first = cast(int, next(iter(padding), 0))
    # A causal loss gives the last token of a row no gradient: that one is there twice.
    return torch.cat((torch.full((_ROWS, 2), first), ids, ids[:, :1]), dim=1)


def _image(config: Any, generator: torch.Generator) -> Tensor:
    shape = image_shape(config, _ROWS)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _by_first_layer(model: nn.Module, generator: torch.Generator) -> Tensor:
    """One input, as the first layer that the model registers takes it."""
    refuse_several(model)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            return _tokens(model, generator)
        shape: tuple[int, ...] | None = None
        if isinstance(module, nn.Linear):
            shape = (_ROWS, 6, module.in_features)
        elif isinstance(module, nn.Conv2d):
            shape = (_ROWS, module.in_channels, 32, 32)
        if shape is not None:
            return torch.randn(shape, generator=generator, dtype=torch.float64)
    raise InputError(UNKNOWN, why="its first layer does not tell what it takes", fix=FIX)


# -- answers -------------------------------------------------------------------------------------


def tensors_in(value: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The floating tensors of an output, by name: of tuples, mappings and dataclasses too."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield name, value
        return
    parts: Iterator[tuple[str, object]] = iter(())
    if isinstance(value, Mapping):
        parts = ((str(key), part) for key, part in value.items())
    elif isinstance(value, (tuple, list)):
        parts = ((str(index), part) for index, part in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    for key, part in parts:
        yield from tensors_in(part, f"{name}.{key}" if name else key)


def default_loss(inputs: Arguments) -> LossFunction:
    """The loss of an answer to these inputs.

    Args:
        inputs: Arguments of the forward.
    """
    given = [*inputs[0], *inputs[1].values()]
    ids = next((x for x in given if isinstance(x, Tensor) and not x.is_floating_point()), None)

    def loss(output: Any) -> Tensor:
        found = dict(tensors_in(output))
        if not found:
            raise InputError("the model's answer has no tensor", fix="give a loss function")
        scores = found.get("logits", next(iter(found.values())))
        following = ids is not None and ids.shape == scores.shape[:2] and ids.shape[1] > 1
        if scores.dim() == 3 and ids is not None and following:
            if int(ids.max()) < scores.shape[-1]:
                return functional.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        elif "logits" in found if scores.dim() == 2 else scores.dim() == 3 and _one_token(ids):
            flat = scores.flatten(0, -2)
            classes = torch.arange(flat.shape[0]) % flat.shape[1]
            return functional.cross_entropy(flat, classes)
        generator = torch.Generator().manual_seed(2)
        weighted = [
            (_whole(x) * torch.randn(x.shape, generator=generator, dtype=x.dtype)).mean()
            for x in found.values()
            if x.requires_grad
        ]
        return torch.stack(weighted).sum()

    return loss


def _whole(scores: Tensor) -> Tensor:
    """Scores that stay in columns, gathered."""
    if not isinstance(scores, DTensor):
        return scores
    group = scores.device_mesh.get_group()
    sizes = per_rank_sizes(scores.shape[-1], group.size())
    return gather_last_dim(scores.to_local(), group, sizes)


def _one_token(ids: Tensor | None) -> bool:
    """Whether no token follows another one."""
    return ids is not None and ids.dim() == 2 and ids.shape[1] == 1
