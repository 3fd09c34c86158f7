"""What a segment of a pattern is made of: text, wildcards, number ranges, alternatives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import NamedTuple, TypeAlias

__all__ = [
    "AnyText",
    "Choice",
    "Member",
    "NumberRange",
    "Pieces",
    "Segment",
    "Text",
    "can_be_empty",
    "count_choices",
    "expand",
    "joined",
    "members_of",
]


class Member(NamedTuple):
    """One alternative as written: where its group and itself stand in the pattern's text."""

    group: tuple[int, int]
    span: tuple[int, int]


class Text(NamedTuple):
    """Literal characters."""

    text: str


class NumberRange(NamedTuple):
    """A decimal number without leading zeros, both ends included."""

    low: int
    high: int


class AnyText(NamedTuple):
    """Any characters of one segment."""

    text: str = "*"


class Choice(NamedTuple):
    """One of several members."""

    members: tuple[tuple[Member, tuple[Piece, ...]], ...]


Piece: TypeAlias = Text | NumberRange | AnyText | Choice
Pieces: TypeAlias = tuple[Piece, ...]
Expansion: TypeAlias = tuple[Pieces, frozenset[Member]]


@dataclass(frozen=True)
class Segment:
    """One part of a pattern between two dots."""

    text: str
    pieces: Pieces = field(repr=False, compare=False)

    @property
    def any_depth(self) -> bool:
        """Whether it is ``**``."""
        return self.text == "**"

    @cached_property
    def literal(self) -> str | None:
        """The only part it matches, if it is free of wildcards."""
        texts = [piece.text for piece in self.pieces if isinstance(piece, Text)]
        return "".join(texts) if len(texts) == len(self.pieces) else None

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        return re.compile(_regex(self.pieces), re.DOTALL)

    def matches(self, part: str) -> bool:
        """Whether it matches one part of a name (``**`` matches every part)."""
        if self.any_depth:
            return True
        return bool(part) and self._regex.fullmatch(part) is not None


def joined(pieces: Pieces) -> Segment:
    """A segment of pieces that hold no choice."""
    # A choice may put two stars side by side; one of them says the same.
    kept = [
        p for i, p in enumerate(pieces) if not (isinstance(p, AnyText) and p in pieces[i - 1 : i])
    ]
    return Segment("".join(map(_text, kept)), tuple(kept))


def _text(piece: Piece) -> str:
    if isinstance(piece, NumberRange):
        return f"[{piece.low}-{piece.high}]"
    assert not isinstance(piece, Choice)
    return piece.text


def members_of(pieces: Pieces) -> Iterator[Member]:
    """Every alternative as written, nested ones included."""
    for piece in pieces:
        if isinstance(piece, Choice):
            for member, inner in piece.members:
                yield member
                yield from members_of(inner)


def count_choices(pieces: Pieces) -> int:
    """How many expansions there are."""
    count = 1
    for piece in pieces:
        if isinstance(piece, Choice):
            count *= sum(count_choices(inner) for _, inner in piece.members)
    return count


def expand(pieces: Pieces) -> list[Expansion]:
    """Every choice of members, as pieces without choices."""
    found: list[Expansion] = [((), frozenset())]
    for piece in pieces:
        options: list[Expansion] = [((piece,), frozenset())]
        if isinstance(piece, Choice):
            options = [
                (inner, chosen | {member})
                for member, pieces_of in piece.members
                for inner, chosen in expand(pieces_of)
            ]
        found = [(head + tail, a | b) for (head, a), (tail, b) in product(found, options)]
    return found


def can_be_empty(pieces: Pieces) -> bool:
    """Whether a choice of empty alternatives leaves nothing."""
    return all(
        isinstance(piece, Choice) and any(can_be_empty(inner) for _, inner in piece.members)
        for piece in pieces
    )


def _regex(pieces: Pieces) -> str:
    return "".join(map(_piece_regex, pieces))


def _piece_regex(piece: Piece) -> str:
    if isinstance(piece, Text):
        return re.escape(piece.text)
    if isinstance(piece, NumberRange):
        return _number_regex(piece.low, piece.high)
    if isinstance(piece, Choice):
        return f"(?:{'|'.join(_regex(inner) for _, inner in piece.members)})"
    return ".*"


def _number_regex(low: int, high: int) -> str:
    """Decimal numbers from ``low`` to ``high`` without leading zeros."""
    options: list[str] = []
    while low <= high:
        top = min(high, 10 ** len(str(low)) - 1)
        options.append(_same_length_regex(str(low), str(top)))
        low = top + 1
    return f"(?:{'|'.join(options)})"


def _same_length_regex(low: str, high: str) -> str:
    if not low:
        return ""
    first, last, rest = int(low[0]), int(high[0]), len(low) - 1
    if first == last:
        return low[0] + _same_length_regex(low[1:], high[1:])
    options = [
        low[0] + _same_length_regex(low[1:], "9" * rest),
        high[0] + _same_length_regex("0" * rest, high[1:]),
    ]
    if last - first > 1:
        options.append(f"[{first + 1}-{last - 1}]" + "[0-9]" * rest)
    return f"(?:{'|'.join(options)})"
