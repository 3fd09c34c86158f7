"""The shape proof: what a run would compute on one rank, on tensors without data.

`prove` runs the unsharded model once on fake tensors, notes what enters each distinct attention and
mlp region, and runs a copy of each region on that again, with the shapes and the integers of one
rank. A head count that nobody divided, or a number that stands in the code, fails there, at plan
time, and is named with its module, attribute and source line. Nothing of the model is changed.
"""

from __future__ import annotations

from hpx.prove.proof import Proof
from hpx.prove.proving import prove

__all__ = ["Proof", "prove"]
