"""The shape proof: what a run would compute on one rank, on tensors without data.

`prove` runs the unsharded model once on fake tensors, notes what enters each distinct attention and
mlp region, and runs a copy of each region on that again, with the shapes and the integers of one
rank. A head count that nobody divided, or a number that stands in the code, fails there, at plan
time, and is named with its module, attribute and source line. Nothing of the model is changed.

torch is imported when something is proved, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpx.prove.opening import Opened, open_with_model
from hpx.prove.proof import Proof

if TYPE_CHECKING:
    from torch import nn

    from hpx.run import Run

__all__ = ["TIME_LIMIT", "Opened", "Proof", "open_with_model", "prove"]

TIME_LIMIT: Final = 20.0
"""Seconds after which a proof gives up."""


def prove(
    run: Run,
    model: nn.Module,
    inputs: object = None,
    *,
    seconds: float = TIME_LIMIT,
    readers: bool = True,
) -> Proof:
    """Try every distinct region of a run with the shapes of one rank.

    Args:
        run: The run, of this very model.
        model: The unsharded model; it is not changed, and none of its values is read.
        inputs: Example inputs: a tuple of arguments, a mapping by name, or one tensor; by default
            they are told from the model.
        seconds: When to give up.
        readers: Whether to look for parameters that another module than their own reads, too.
    """
    from hpx.prove.caches import forget
    from hpx.prove.proving import prove_regions

    forget(model)
    try:
        return prove_regions(run, model, inputs, seconds, readers=readers)
    finally:
        forget(model)
