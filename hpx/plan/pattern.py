"""Patterns over parameter names, segment by segment.

- ``*`` is one segment, or any characters inside one: ``layers.*``, ``w*``.
- ``**`` is any number of segments, none included.
- ``{a,b}`` are alternatives inside a segment: ``{q,k,v}_proj``.
- ``[0-7]`` is a decimal number in that range, both ends included: ``layers.[0-7]``.
- Everything else is literal. Digits are names: ``layers.*.w1`` never matches ``layers.0.w2``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Final, NamedTuple

from hpx.plan.pattern_text import parse_segments
from hpx.plan.pieces import Member, Segment, expand, joined, members_of

__all__ = ["Alternative", "Member", "Pattern", "Progress", "Segment"]

_END: Final = "the end of the name"


class Progress(NamedTuple):
    """How far a pattern came on a name that it does not match.

    Attributes:
        matched: How many of its segments, ``**`` aside, found their part of the name.
        expected: The segment that did not, or ``the end of the name``.
        found: The part that stood there instead; None where the name had ended.
    """

    matched: int
    expected: str
    found: str | None

    @property
    def ended(self) -> bool:
        """Whether the whole pattern matched and the name goes on."""
        return self.expected == _END


class Alternative(NamedTuple):
    """A pattern with one member chosen from every ``{...}``."""

    segments: tuple[Segment, ...]
    members: frozenset[Member]


@dataclass(frozen=True)
class Pattern:
    """A parsed pattern.

    >>> Pattern.parse("layers.*.{q,k}_proj.weight").matches("layers.11.k_proj.weight")
    True
    >>> Pattern.parse("layers.[0-7].w*").matches("layers.11.w1")
    False
    """

    text: str
    segments: tuple[Segment, ...] = field(repr=False, compare=False)

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Read a pattern.

        Raises:
            PlanError: It is malformed; the message has the character, counted from 1.
        """
        return cls(text, parse_segments(text))

    @property
    def is_literal(self) -> bool:
        """Whether it names one parameter outright."""
        return all(segment.literal is not None for segment in self.segments)

    def matches(self, path: str | Sequence[str]) -> bool:
        """Whether it matches a whole name."""
        return self._follow(path) is None

    def progress(self, path: str | Sequence[str]) -> Progress | None:
        """Where it stopped matching a name; None if it matches.

        >>> Pattern.parse("layers.*.mlp.gate.weight").progress("layers.0.mlp.up.weight")
        Progress(matched=3, expected='gate', found='up')
        """
        return self._follow(path)

    def _follow(self, path: str | Sequence[str]) -> Progress | None:
        """Carry the set of reachable segments along the name, and note the furthest."""
        parts = path.split(".") if isinstance(path, str) else path
        here = self._reach(0)
        furthest, stopped_at = max(here), 0
        for index, part in enumerate(parts, start=1):
            after: set[int] = set()
            for at in here:
                if at < len(self.segments) and self.segments[at].matches(part):
                    after |= self._reach(at if self.segments[at].any_depth else at + 1)
            here = after
            if not here:
                break
            if max(here) >= furthest:
                furthest, stopped_at = max(here), index
        if len(self.segments) in here:
            return None
        wanted = self.segments[furthest:]
        return Progress(
            matched=sum(not segment.any_depth for segment in self.segments[:furthest]),
            expected=wanted[0].text if wanted else _END,
            found=parts[stopped_at] if stopped_at < len(parts) else None,
        )

    def _reach(self, at: int) -> set[int]:
        """``at`` and what follows it without another part, since ``**`` may be empty."""
        reached = {at}
        while at < len(self.segments) and self.segments[at].any_depth:
            at += 1
            reached.add(at)
        return reached

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """Every alternative as written, in order; each has to match something."""
        found = {m for segment in self.segments for m in members_of(segment.pieces)}
        return tuple(sorted(found, key=lambda member: member.span))

    def alternatives(self) -> tuple[Alternative, ...]:
        """The patterns that one choice from every ``{...}`` gives; itself if there is none."""
        per_segment = [expand(segment.pieces) for segment in self.segments]
        return tuple(
            Alternative(
                tuple(
                    segment if segment.any_depth else joined(pieces)
                    for segment, (pieces, _) in zip(self.segments, choice, strict=True)
                ),
                frozenset[Member]().union(*(members for _, members in choice)),
            )
            for choice in product(*per_segment)
        )

    def only(self, member: Member) -> str:
        """The text with one alternative in the place of its group.

        >>> pattern = Pattern.parse("{q,k}_proj")
        >>> [pattern.only(member) for member in pattern.members]
        ['q_proj', 'k_proj']
        """
        before, after = self.text[: member.group[0]], self.text[member.group[1] :]
        return before + self.text[slice(*member.span)] + after

    def __str__(self) -> str:
        return self.text
