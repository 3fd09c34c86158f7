"""What a shape proof found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpx.pipeline.context import Problem

__all__ = ["Proof"]


@dataclass(frozen=True)
class Proof:
    """The outcome.

    Attributes:
        boundaries: How many regions the run has.
        distinct: How many of them differ.
        proved: How many distinct ones ran with the shapes of one rank, and of each other that
            holds pieces of other shapes.
        problems: What failed, one for each distinct region.
        unproven: Why something could not be tried; empty if all was.
        experts: Which experts are cut on ep, and why they are not replayed; empty if none is.
    """

    boundaries: int
    distinct: int
    proved: int
    problems: tuple[Problem, ...] = ()
    unproven: str = ""
    experts: str = ""

    @property
    def status(self) -> Literal["proved", "failed", "unproven"]:
        """``failed`` if a region failed, else ``unproven`` if one was not tried."""
        if self.problems:
            return "failed"
        return "unproven" if self.unproven else "proved"

    def __str__(self) -> str:
        done = f"{self.proved} of {self.distinct} distinct regions ({self.boundaries} in all)"
        if self.distinct == 0 and not self.unproven:
            said = "shapes: nothing to prove, no region is cut on tp"
            return f"{said}; {self.experts}" if self.experts else said
        if self.distinct == 0:
            return f"shapes unproven: {self.unproven}"
        said = f"shapes {self.status}: {done} ran with the shapes of one rank"
        if self.unproven:
            said += f"; {self.unproven}"
        return f"{said}; {self.experts}" if self.experts else said

    def to_json(self) -> dict[str, object]:
        """``{status, boundaries, distinct, proved, unproven, experts}``."""
        return {
            "status": self.status,
            "boundaries": self.boundaries,
            "distinct": self.distinct,
            "proved": self.proved,
            "unproven": self.unproven,
            "experts": self.experts,
        }
