"""How a file is read: what may be in it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FOR_RUNS", "Reading"]


class Reading(NamedTuple):
    """What is done about names in a pickle that tensors and plain values do not need.

    Whatever is chosen, nothing of a file is run.
    """

    strict: bool = True
    """Refuse a file with such names."""
    modules: bool = False
    """Read whole pickled modules, too, whose classes are such names."""


FOR_RUNS = Reading()
"""What a plan is made for has to be loaded by torch later, with ``weights_only``."""
