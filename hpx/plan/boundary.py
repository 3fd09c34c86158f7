"""Entries under ``boundaries:``, which say what enters and leaves a module where hpx cannot tell.

``"model.layers.*.attn": {input: {hidden: R, memory: R, residual: none}, output: R}``, or ``none``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from hpx.errors import PlanError, did_you_mean
from hpx.plan.pattern import Pattern
from hpx.plan.values import as_mapping, as_text, at, check_keys, place, saved_place

__all__ = ["Boundary", "Edge"]

Edge: TypeAlias = Literal["R", "none"]
"""An input that is whole and read by cut weights, or an output made whole; or one left alone."""

_KEYS: Final = ("input", "output")
_EDGES: Final[Mapping[str, Edge]] = {"R": "R", "replicate": "R", "none": "none"}


@dataclass(frozen=True)
class Boundary:
    """What a plan says of the boundary of the modules that a pattern matches.

    Attributes:
        pattern: The modules.
        none: Whether they are no boundaries at all.
        inputs: Inputs of their forward by name; None to leave it to hpx.
        output: What becomes of their output; None to leave it to hpx.
        file: The plan file, if any.
        line: The line there, from 1.

    Raises:
        PlanError: The pattern is malformed.
    """

    pattern: str
    none: bool = False
    inputs: tuple[tuple[str, Edge], ...] | None = None
    output: Edge | None = None
    file: str | None = None
    line: int | None = None

    def __post_init__(self) -> None:
        with at(self.where):
            Pattern.parse(self.pattern)

    @classmethod
    def parse(
        cls, pattern: str, value: object, file: str | None = None, line: int | None = None
    ) -> Boundary:
        """Read ``none``, or ``{input: {name: R or none}, output: R or none}``.

        Raises:
            PlanError: It is neither.
        """
        with at(place(file, line, f"boundary {pattern!r}")):
            if value == "none":
                return cls(pattern, none=True, file=file, line=line)
            if not isinstance(value, Mapping) or not value:
                raise PlanError(
                    f"a boundary is {value!r}",
                    fix="write none, or such as {input: {hidden_states: R}, output: R}",
                )
            entry = as_mapping(value, "a boundary")
            check_keys(entry, _KEYS, "a boundary")
            inputs = None
            if "input" in entry:
                named = as_mapping(entry["input"], "input")
                inputs = tuple((as_text(k, "an input"), _edge(v, k)) for k, v in named.items())
            output = _edge(entry["output"], "output") if "output" in entry else None
        return cls(pattern, False, inputs, output, file, line)

    @property
    def where(self) -> str:
        """``plan.yaml:12``, or the entry's pattern in a plan that has no file."""
        return place(self.file, self.line, f"boundary {self.pattern!r}")

    def content(self) -> object:
        """What stands behind the pattern, as in the file."""
        if self.none:
            return "none"
        out: dict[str, object] = {}
        if self.inputs is not None:
            out["input"] = dict(self.inputs)
        if self.output is not None:
            out["output"] = self.output
        return out

    def to_json(self) -> dict[str, object]:
        """``{file, line, pattern, boundary}``."""
        place_of = {"file": self.file, "line": self.line}
        return {**place_of, "pattern": self.pattern, "boundary": self.content()}

    @classmethod
    def from_json(cls, value: object) -> Boundary:
        """Read back what `to_json` wrote.

        Raises:
            PlanError: It is no saved entry.
        """
        saved = as_mapping(value, "a saved boundary")
        pattern = as_text(saved.get("pattern"), "pattern")
        return cls.parse(pattern, saved.get("boundary"), *saved_place(saved))


def _edge(value: object, name: object) -> Edge:
    found = _EDGES.get(value) if isinstance(value, str) else None
    if found is None:
        raise PlanError(
            f"{name} is {value!r}",
            why="a boundary is R (whole) or none (left alone)",
            fix=did_you_mean(str(value), ("replicate", "none")) or None,
        )
    return found
