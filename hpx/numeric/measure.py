"""How far two steps are apart: ``max|a-b| / max|b|`` for each tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from torch import Tensor

from hpx.errors import InputError

__all__ = [
    "KINDS",
    "Deviation",
    "Key",
    "Kind",
    "deviations",
    "distance",
    "refuse_no_numbers",
]

Kind: TypeAlias = Literal["output", "loss", "gradient", "parameter"]
KINDS: Final[tuple[Kind, ...]] = ("output", "loss", "gradient", "parameter")

_ROUNDING: Final = 1e-13
"""Of the largest gradient: one that is smaller is nothing but rounding, as that of the bias of a
key, which moves all scores of a query alike."""


class Key(NamedTuple):
    """What a tensor of a step is.

    Attributes:
        kind: Which of the four.
        name: Its name in the output, or that of the parameter.
        batch: Of an output and a loss: the data parallel rank whose data it belongs to.
    """

    kind: Kind
    name: str
    batch: int = 0


@dataclass(frozen=True)
class Deviation:
    """How far one tensor is from the unsharded one.

    Attributes:
        key: Which tensor.
        by: ``max|a-b| / max|b|``; infinite for another shape or a value that is no number.
        scale: ``max|b|``.
        note: Why, where it is not a number of that kind.
    """

    key: Key
    by: float
    scale: float
    note: str = ""


def distance(found: Tensor, expected: Tensor, scale: float | None = None) -> float:
    """``max|a-b| / max|b|``; infinite for another shape, or where one is no number.

    Where both are the same infinity, as scores that are masked, they are equal.

    >>> import torch
    >>> distance(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]))
    0.25
    """
    if found.shape != expected.shape:
        return math.inf
    if not expected.numel():
        return 0.0
    apart = float((found - expected).abs().masked_fill(found == expected, 0.0).max())
    of = _scale(expected) if scale is None else scale
    return apart / (of or 1.0) if math.isfinite(apart) else math.inf


def _scale(tensor: Tensor) -> float:
    """The largest of its values that are finite."""
    if not tensor.numel():
        return 0.0
    return float(tensor.abs().nan_to_num(0.0, 0.0, 0.0).max())


def refuse_no_numbers(expected: Mapping[Key, Tensor], model: str) -> None:
    """Refuse a step of the unsharded model with which nothing can be compared.

    Args:
        expected: What it gave.
        model: How messages name the model.

    Raises:
        InputError: There is a value that is no number.
    """
    for key, value in expected.items():
        wrong = value.isnan() if key.kind == "output" else ~value.isfinite()
        if bool(wrong.any()):
            what = f"{key.kind} {key.name}".strip()
            raise InputError(
                f"{model} gives nothing to compare with, unsharded",
                why=f"of its {what} {int(wrong.sum())} of {value.numel()} values"
                f" {'are' if int(wrong.sum()) > 1 else 'is'} {float(value[wrong][0])}",
                fix="give example inputs and a loss that it computes numbers of",
            )


def deviations(found: Mapping[Key, Tensor], expected: Mapping[Key, Tensor]) -> list[Deviation]:
    """One for each tensor that either side has; those of other data than ``found`` has left out.

    Args:
        found: What the sharded model gave.
        expected: What the unsharded one gave, for the data of all ranks.
    """
    gradients = [float(x.abs().max()) for k, x in expected.items() if k.kind == "gradient"]
    floor = _ROUNDING * max(gradients, default=0.0)
    made = []
    for key, value in found.items():
        other = expected.get(key)
        if other is None:
            made.append(Deviation(key, math.inf, 0.0, "the unsharded model does not give it"))
            continue
        scale = _scale(other)
        note = ""
        if value.shape != other.shape:
            note = f"its shape is {tuple(value.shape)}, not {tuple(other.shape)}"
        if key.kind == "gradient" and scale <= floor:
            by = distance(value, other, floor / _ROUNDING or 1.0)
            note = note or "zero but for rounding: measured against the largest gradient"
        else:
            by = distance(value, other)
        made.append(Deviation(key, by, scale, note))
    batches = {key.batch for key in found if key.kind == "loss"}
    for key in expected:
        mine = key.kind not in ("output", "loss") or key.batch in batches
        if mine and key not in found:
            made.append(Deviation(key, math.inf, 0.0, "the sharded model does not give it"))
    return made
