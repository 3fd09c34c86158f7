"""The model of a check, made anew on every rank: from a configuration, a factory, or a pickle.

1. Random numbers start from one seed, on every rank and for both models of a check.
2. Both are then given the same values, those of rank 0: a factory may draw from where it likes.
3. Vectors are moved off the zeros and ones that they start from, else a bias added twice, or a norm
   without its weight, would compute the same.
4. The model is in eval mode, as dropout draws other numbers on each rank; it keeps no cache.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hpx.errors import InputError, UsageError
from hpx.numeric.worker import Reference, load

__all__ = [
    "Built",
    "Config",
    "Factory",
    "Function",
    "Pickled",
    "Source",
    "built_of",
    "choose_attention",
    "made",
    "refuse_meta",
    "twins",
]

_SEED = 0
_ON_META = "it has no weights to compute with"


@dataclass(frozen=True)
class Built:
    """A model, and what its author gave with it.

    Attributes:
        model: The model.
        inputs: Example inputs, or None.
        loss: A function of the output, or None.
    """

    model: nn.Module
    inputs: object = None
    loss: Callable[..., object] | None = None


class Source(Protocol):
    """Where a model comes from; it travels to the ranks as a pickle."""

    @property
    def name(self) -> str:
        """How messages name it."""

    def build(self) -> Built:
        """The model, as it comes."""


@dataclass(frozen=True)
class Config:
    """A model of transformers with random weights.

    Attributes:
        name: How messages name it.
        values: What stands in ``config.json``.
        attention: ``eager``, ``sdpa``, or None for the model's own choice.
    """

    name: str
    values: Mapping[str, Any]
    attention: str | None = None

    def build(self) -> Built:
        """The model on the CPU.

        Raises:
            InputError: transformers cannot build it.
        """
        return Built(self.on("cpu"))

    def on(self, device: str) -> nn.Module:
        """The model on a device, such as meta."""
        from hpx.graph.from_config import model_of_values

        return model_of_values(self.values, self.name, device=device, attention=self.attention)


@dataclass(frozen=True)
class Factory:
    """What ``package.module:factory`` returns: ``model``, or ``(model, inputs, loss)``."""

    name: str

    def build(self) -> Built:
        """Call it.

        Raises:
            UsageError: There is no such module or name.
            InputError: The user's code raised, or gave no module.
        """
        from hpx.graph.from_factory import result_of_factory

        return built_of(result_of_factory(self.name), self.name)


@dataclass(frozen=True)
class Function:
    """A function at the top level of a module, returning what a `Factory` does."""

    name: str
    reference: Reference

    def build(self) -> Built:
        """Call it; what it raises is its author's own traceback.

        Raises:
            InputError: It gives no model.
        """
        return built_of(load(self.reference)(), self.name)


@dataclass(frozen=True)
class Pickled:
    """A model that was given as an object."""

    name: str
    data: bytes

    def build(self) -> Built:
        """A copy of it."""
        model: nn.Module = pickle.loads(self.data)
        _register(model)
        return Built(model)


def _register(model: nn.Module) -> None:
    """Have transformers know the classes of a model that none of its constructors made here.

    Else its hidden states and the scores of its routers are not there for who asks for them.
    """
    capturing = sys.modules.get("transformers.utils.output_capturing")
    known: Any = getattr(capturing, "_CAN_RECORD_REGISTRY", None)
    if known is None:
        return
    for module in model.modules():
        outputs = getattr(module, "_can_record_outputs", None)
        if outputs is not None:
            known[str(type(module)) if type(known) is dict else module] = outputs


def built_of(result: object, name: str) -> Built:
    """What a factory returned.

    Raises:
        InputError: It is neither a model nor ``(model, inputs, loss)``.
    """
    parts = list(result) if isinstance(result, (tuple, list)) else [result]
    model, inputs, loss = [*parts, None, None, None][:3]
    if not isinstance(model, nn.Module) or len(parts) > 3:
        raise InputError(
            f"{name} gives no model",
            why=f"it returned a {type(result).__name__}",
            fix="return a torch.nn.Module, or (model, example inputs, loss function)",
        )
    if loss is not None and not callable(loss):
        raise InputError(
            f"the loss of {name} is a {type(loss).__name__}",
            fix="return a function of the model's output",
        )
    return Built(model, inputs, loss)


def choose_attention(model: nn.Module, attention: str) -> None:
    """Have a model of transformers use one implementation of attention.

    Raises:
        UsageError: It is of another kind, or has no such implementation.
    """
    choose = getattr(model, "set_attn_implementation", None)
    if choose is None:
        raise UsageError(
            f"the attention of a {type(model).__name__} cannot be chosen",
            why="only models of transformers have several",
            fix="leave --attn out",
        )
    try:
        choose(attention)
    except Exception as error:  # noqa: BLE001 - whatever transformers thinks of it
        raise UsageError(
            f"a {type(model).__name__} has no attention '{attention}'",
            why=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
            fix="leave --attn out, or choose another one",
        ) from None


def twins(source: Source, attention: str | None = None) -> tuple[Built, nn.Module]:
    """The model twice, in float64, with equal values; on every rank of a group the same.

    Args:
        source: Where it comes from.
        attention: An implementation of attention to choose.

    Raises:
        HpxError: It cannot be built, or has no weights.
    """
    first, second = made(source, attention), made(source, attention)
    model = first.model
    refuse_meta(model, source.name)
    with torch.no_grad():
        _move(model)
        values = [*model.parameters(), *model.buffers()]
        copies = [*second.model.parameters(), *second.model.buffers()]
        for value, copy in zip(values, copies, strict=True):
            _broadcast(value)
            copy.copy_(value)
    return first, second.model


def made(source: Source, attention: str | None) -> Built:
    """The model as a check runs it: from one seed, in float64 and eval mode, without a cache.

    Args:
        source: Where it comes from.
        attention: An implementation of attention to choose.

    Raises:
        HpxError: It cannot be built.
    """
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.manual_seed(_SEED)
        built = source.build()
    if attention is not None:
        choose_attention(built.model, attention)
    for module in built.model.modules():
        config: Any = getattr(module, "config", None)
        if config is not None and getattr(config, "use_cache", False):
            config.use_cache = False
    return Built(built.model.double().eval(), built.inputs, built.loss)


def refuse_meta(model: nn.Module, name: str) -> None:
    """Refuse a model without values.

    Raises:
        InputError: A parameter or buffer is on the meta device.
    """
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise InputError(
                f"{path} of {name} is on the meta device",
                why=_ON_META,
                fix="name a factory that builds a small model on the CPU",
            )


def _move(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(_SEED)
    for parameter in model.parameters():
        if not parameter.is_floating_point():
            continue
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        if not bool(parameter.isfinite().all()):  # memory that nobody has initialised
            parameter.zero_()
        parameter.add_(noise, alpha=0.1 if parameter.dim() < 2 else 0.02)


def _broadcast(value: Tensor) -> None:
    import torch.distributed as dist

    if dist.is_initialized() and dist.get_world_size() > 1 and value.numel():
        whole = value.detach().contiguous()
        dist.broadcast(whole, 0)
        value.copy_(whole)
