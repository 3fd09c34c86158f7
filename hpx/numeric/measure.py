"""How far two steps are apart: ``max|a-b| / max|b|`` for each tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from torch import Tensor

__all__ = ["KINDS", "Deviation", "Key", "Kind", "deviations", "distance", "largest"]

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
    """``max|a-b| / max|b|``; infinite for another shape, or where only one is a number.

    >>> import torch
    >>> distance(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]))
    0.25
    """
    if found.shape != expected.shape:
        return math.inf
    if not expected.numel():
        return 0.0
    apart = float((found - expected).abs().max())
    of = float(expected.abs().max()) if scale is None else scale
    return apart / (of or 1.0) if math.isfinite(apart) else math.inf


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
        scale = float(other.abs().max()) if other.numel() else 0.0
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


def largest(found: Iterable[Deviation]) -> dict[Kind, Deviation]:
    """The largest deviation of each kind."""
    worst: dict[Kind, Deviation] = {}
    for deviation in found:
        kind = deviation.key.kind
        if kind not in worst or deviation.by > worst[kind].by:
            worst[kind] = deviation
    return worst
