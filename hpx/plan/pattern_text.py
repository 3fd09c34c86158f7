"""Reads the text of a pattern; `hpx.plan.pattern` has the grammar."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from hpx.errors import PlanError
from hpx.plan.pieces import (
    AnyText,
    Choice,
    Member,
    NumberRange,
    Piece,
    Pieces,
    Segment,
    Text,
    can_be_empty,
    count_choices,
)

__all__ = ["one_pattern", "parse_segments"]

_SPECIAL: Final = frozenset("*{}[],.")
_RANGE: Final = re.compile(r"\[(0|[1-9][0-9]{0,8})-(0|[1-9][0-9]{0,8})\]")
_MAX_NESTING: Final = 8
_MAX_ALTERNATIVES: Final = 1024


def parse_segments(text: str) -> tuple[Segment, ...]:
    """The segments of a pattern.

    Raises:
        PlanError: It is malformed; the message has the character, counted from 1.
    """
    return _Parser(text).segments()


def one_pattern(names: Sequence[str]) -> str | None:
    """The pattern that matches several names which differ within one segment; None if in more.

    >>> one_pattern(["mlp.*.gate_proj", "mlp.*.up_proj"])
    'mlp.*.{gate,up}_proj'
    """
    if len(names) == 1:
        return names[0]
    start = _common(names)
    stop = _common([name[start:][::-1] for name in names])
    inside = [name[start : len(name) - stop] for name in names]
    if not names or any(_SPECIAL & set(text) for text in inside):
        return None
    return f"{names[0][:start]}{{{','.join(inside)}}}{names[0][len(names[0]) - stop :]}"


def _common(texts: Sequence[str]) -> int:
    """How many characters all texts begin with."""
    columns = zip(*texts, strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


class _Parser:
    """Reads one pattern; ``at`` is the character it looks at."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def segments(self) -> tuple[Segment, ...]:
        if not self.text:
            raise PlanError("a pattern is empty", fix="name a parameter, or write ** for all")
        found = [self._segment()]
        while self._peek() == ".":
            self.at += 1
            found.append(self._segment())
        total = 1
        for segment in found:
            total *= count_choices(segment.pieces)
        if total > _MAX_ALTERNATIVES:
            raise self._error(
                0,
                f"its alternatives make {total} patterns",
                f"write several rules of at most {_MAX_ALTERNATIVES} each",
            )
        return tuple(found)

    def _segment(self) -> Segment:
        start = self.at
        pieces = self._pieces(depth=0)
        text = self.text[start : self.at]
        if not text:
            raise self._error(start, "a segment is empty", "write one dot between two segments")
        if text != "**" and "**" in text:
            at = start + text.index("**")
            raise self._error(at, "** is not a whole segment", "write * inside a segment")
        if can_be_empty(pieces):
            raise self._error(start, f"segment {text!r} can be empty", "drop the empty alternative")
        return Segment(text, pieces)

    def _pieces(self, depth: int) -> Pieces:
        pieces: list[Piece] = []
        while (char := self._peek()) and char != ".":
            if depth and char in ",}":
                break
            pieces.append(self._piece(char, depth))
        return tuple(pieces)

    def _piece(self, char: str, depth: int) -> Piece:
        if char == "*":
            self.at += 1
            return AnyText()
        if char == "{":
            return self._choice(depth + 1)
        if char == "[":
            return self._range()
        if char in "}],":
            raise self._error(
                self.at,
                f"{char!r} stands outside {'[...]' if char == ']' else '{...}'}",
                "close what was opened, or remove it",
            )
        start = self.at
        while (char := self._peek()) and char not in _SPECIAL:
            self.at += 1
        return Text(self.text[start : self.at])

    def _choice(self, depth: int) -> Choice:
        start = self.at
        if depth > _MAX_NESTING:
            raise self._error(start, f"more than {_MAX_NESTING} braces are nested", "nest fewer")
        spans: list[tuple[tuple[int, int], Pieces]] = []
        while not spans or self._peek() == ",":
            self.at += 1
            first = self.at
            pieces = self._pieces(depth)
            spans.append(((first, self.at), pieces))
        if self._peek() == ".":
            raise self._error(
                self.at, "a dot stands inside {...}", "alternatives stay inside one segment"
            )
        if self._peek() != "}":
            raise self._error(start, "'{' is never closed", "add the '}'")
        self.at += 1
        group = (start, self.at)
        if len(spans) == 1 and not spans[0][1]:
            raise self._error(start, "{} has no alternatives", "write {a,b}")
        return Choice(tuple((Member(group, span), pieces) for span, pieces in spans))

    def _range(self) -> NumberRange:
        found = _RANGE.match(self.text, self.at)
        if found is None:
            raise self._error(
                self.at, "'[' does not open a number range", "write [first-last], such as [0-7]"
            )
        low, high = int(found[1]), int(found[2])
        if low > high:
            raise self._error(self.at, f"range {found[0]} runs backwards", f"write [{high}-{low}]")
        self.at = found.end()
        return NumberRange(low, high)

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _error(self, at: int, why: str, fix: str) -> PlanError:
        return PlanError(
            f"pattern {self.text!r} is malformed at character {at + 1}", why=why, fix=fix
        )
