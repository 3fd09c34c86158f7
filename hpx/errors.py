"""The one tree of errors: what happened, where, why with the numbers, and how to fix it.

Every message is a single line (several findings are a summary line and one indented line each), so
that a command prints it as it is. Nothing here imports torch.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final, Self, TypeAlias

__all__ = [
    "ContractError",
    "DifferenceError",
    "HpxError",
    "InputError",
    "LayoutError",
    "ManyErrors",
    "MeshError",
    "NotRunnableError",
    "Numbers",
    "PassError",
    "PipelineError",
    "PlacementMismatchError",
    "PlanError",
    "RenderError",
    "TooLargeError",
    "UnsafeInputError",
    "UsageError",
    "did_you_mean",
    "nearest",
]


Numbers: TypeAlias = tuple[tuple[str, int], ...]
"""What a finding counts, by name: ``(("heads", 6), ("tp", 4))``; its text has them in words."""
_NONE: Final[Numbers] = ()


class HpxError(Exception):
    """An error that a person can act on.

    Args:
        what: What is wrong, with the name of the thing.
        where: Pass, step, parameter or ``plan.yaml:12``, outermost first.
        why: The reason, with its numbers.
        fix: What to do about it.

    Attributes:
        check: The check that found it, as ``docs/checks.md`` names them; empty where none did.
        names: The modules and parameters that it is about.
        nodes: Their ids in the graph of the pass that found it.
        numbers: Its numbers.
    """

    exit_code: ClassVar[int] = 2
    check: str = ""
    names: tuple[str, ...] = ()
    nodes: tuple[int, ...] = ()
    numbers: Numbers = _NONE

    def __init__(
        self, what: str, *, where: str | None = None, why: str | None = None, fix: str | None = None
    ) -> None:
        self.what = what
        self.where = where
        self.why = why
        self.fix = fix
        super().__init__(what)

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.why:
            text = f"{text}: {self.why}"
        if self.fix:
            text = f"{text.rstrip('.')}. Fix: {self.fix}"
        return text

    def found_by(self, check: str, names: Iterable[str] = (), numbers: Numbers = ()) -> Self:
        """Say which check found it, of what, with which numbers; returns itself."""
        self.check = check or self.check
        self.names = tuple(names) or self.names
        self.numbers = numbers or self.numbers
        return self

    def to_json(self) -> Mapping[str, object]:
        """``{level, check, text, hint, names, numbers}``, as problems of a run are written."""
        return {
            "level": "error",
            "check": self.check,
            "text": str(self),
            "hint": self.fix or "",
            "names": list(self.names),
            "numbers": dict(self.numbers),
        }

    def located(self, where: str) -> HpxError:
        """Put ``where`` in front of the place that the error already names; returns itself."""
        self.where = f"{where}: {self.where}" if self.where else where
        return self


class UsageError(HpxError):
    """A command or function was called in a way it does not take; or there is no such file."""


class MeshError(HpxError):
    """A mesh that does not parse or multiply out, or lacks an axis somebody needs."""


class LayoutError(HpxError):
    """A layout that does not parse, or that a mesh or a tensor cannot have."""


class PlanError(HpxError):
    """A plan file that does not parse, or whose rules do not fit the model."""


class PipelineError(HpxError):
    """A pipeline that does not parse, names an unknown pass, or has no valid order."""


class PassError(HpxError):
    """A pass refused the model or the request; the graph is as it was before."""


class PlacementMismatchError(PassError):
    """A parameter is sharded already, and not as the plan says."""


class NotRunnableError(HpxError):
    """A sharded model is asked to compute what it cannot: something in its pipeline is missing."""


class ContractError(HpxError):
    """A pass broke what its own PassInfo declares; its author has to mend it."""


class DifferenceError(HpxError):
    """A check found that two things differ that should be equal."""

    exit_code: ClassVar[int] = 1


class InputError(HpxError):
    """A file that cannot be read, or is of a kind that hpx does not take."""

    exit_code: ClassVar[int] = 3


class UnsafeInputError(HpxError):
    """A file that could run code when read, refused."""

    exit_code: ClassVar[int] = 4


class RenderError(HpxError):
    """A picture could not be drawn: the renderer is missing or failed."""

    exit_code: ClassVar[int] = 5


class TooLargeError(HpxError):
    """An input or a picture over its limit of size or time."""

    exit_code: ClassVar[int] = 6


class ManyErrors(HpxError):
    """Several findings of one step, told together so that they are mended together.

    Args:
        summary: One line that counts them.
        findings: The single errors, in the order a reader should take them.
    """

    def __init__(self, summary: str, findings: Sequence[HpxError]) -> None:
        super().__init__(summary)
        self.findings = tuple(findings)

    @classmethod
    def about(cls, subject: str, findings: Sequence[HpxError]) -> ManyErrors:
        """The findings of a pass that changes nothing because of them.

        >>> ManyErrors.about("the plan", [PlanError("rule 1 never wins")]).what
        '1 problem with the plan; nothing was changed'
        """
        word = "problem" if len(findings) == 1 else "problems"
        return cls(f"{len(findings)} {word} with {subject}; nothing was changed", findings)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.what, self.findings), vars(self)

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return "\n".join([head, *(f"  - {finding}" for finding in self.findings)])


def nearest(
    name: str, candidates: Iterable[str], n: int = 3, *, similarity: float = 0.4
) -> list[str]:
    """The candidates that look most like ``name``, best first; at most ``n``.

    Args:
        name: What was written.
        candidates: What there is.
        n: How many at most.
        similarity: From 0 to 1, how much a candidate must look like the name.

    >>> nearest("tpp", ["dp", "tp", "ep"])
    ['tp', 'ep', 'dp']
    """
    return difflib.get_close_matches(name, list(candidates), n=n, cutoff=similarity)


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """A ready sentence with the nearest names, or the empty string.

    >>> did_you_mean("uneve", ["uneven", "mode"])
    'did you mean uneven?'
    """
    close = nearest(name, candidates)
    return f"did you mean {', '.join(close)}?" if close else ""
