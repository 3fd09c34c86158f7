"""The entries of a plan: rules, packed projections, head counts and ties, each with its line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, NamedTuple, TypeAlias

from hpx.errors import PlanError
from hpx.layout import Layout
from hpx.plan.pattern import Pattern
from hpx.plan.values import (
    as_integer,
    as_list,
    as_mapping,
    as_optional_text,
    as_text,
    as_texts,
    at,
    check_keys,
    place,
    saved_place,
)

__all__ = ["Heads", "Packed", "Rule", "Source", "Tied", "rule_value"]

Source: TypeAlias = Literal["user", "model", "structure", "names", "default"]
"""Who wrote a rule: a plan file or its Python form, the model's own plan, what was derived from
structure or names, or the fallback."""

_SOURCES: Final[tuple[Source, ...]] = ("user", "model", "structure", "names", "default")
_RULE_KEYS: Final = ("layout", "reason")
_PACKED_KEYS: Final = ("dim", "repeat", "parts")


@dataclass(frozen=True)
class Rule:
    """One line of ``params:``: the parameters that a pattern matches get a layout.

    Attributes:
        index: Position in the plan, from 0; the first rule that matches a parameter wins.
        pattern: The pattern as written.
        layout: What the plan says, before it is resolved on a mesh.
        source: Who wrote the rule.
        file: The plan file; None for a plan made in Python.
        line: The line there, from 1.
        reason: What the plan's author wrote as the reason.
        heading: The group under which a derived plan is written; no part of the rule.

    Raises:
        PlanError: The pattern is malformed.
    """

    index: int
    pattern: str
    layout: Layout
    source: Source = "user"
    file: str | None = None
    line: int | None = None
    reason: str | None = None
    heading: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        with at(self.where):
            _ = self.parsed

    @cached_property
    def parsed(self) -> Pattern:
        """The pattern, ready to match."""
        return Pattern.parse(self.pattern)

    @property
    def where(self) -> str:
        """``plan.yaml:12``, or ``rule 3`` of a plan that has no file."""
        otherwise = "the plan's default" if self.source == "default" else f"rule {self.index + 1}"
        return place(self.file, self.line, otherwise)

    def to_json(self) -> dict[str, object]:
        """``{index, source, file, line, pattern, reason, layout}``."""
        return {
            "index": self.index,
            "source": self.source,
            "file": self.file,
            "line": self.line,
            "pattern": self.pattern,
            "reason": self.reason,
            "layout": self.layout.to_json(),
        }

    @classmethod
    def from_json(cls, value: object, index: int | None = None) -> Rule:
        """Read back what `to_json` wrote; ``index`` overrides the rule's position in its plan.

        Raises:
            PlanError: It is no saved rule.
        """
        saved = as_mapping(value, "a saved rule")
        with at("a saved rule"):
            source = next((known for known in _SOURCES if known == saved.get("source")), None)
            if source is None:
                raise PlanError(
                    f"source is {saved.get('source')!r}", why=f"it is one of {', '.join(_SOURCES)}"
                )
            if index is None:
                index = as_integer(saved.get("index", 0), "index")
            return cls(
                index,
                as_text(saved.get("pattern"), "pattern"),
                Layout.from_json(saved.get("layout")),
                source,
                *saved_place(saved),
                as_optional_text(saved.get("reason"), "reason"),
            )

    def __str__(self) -> str:
        return f"rule {self.pattern!r} ({self.where})"


@dataclass(frozen=True)
class Packed:
    """How the rows of a fused projection are laid out along one dim.

    Attributes:
        pattern: The parameters.
        dim: The packed dim.
        repeat: 1 if the parts stand one after the other; otherwise how often the sequence of
            parts repeats (heads or groups).
        parts: Part names with their total sizes along the dim, in order.
        file: The plan file, if any.
        line: The line there, from 1.

    Raises:
        PlanError: The pattern is malformed, or the sizes cannot be.
    """

    pattern: str
    dim: int
    repeat: int
    parts: tuple[tuple[str, int], ...]
    file: str | None = None
    line: int | None = None

    def __post_init__(self) -> None:
        with at(self.where):
            Pattern.parse(self.pattern)
            self._check_sizes()

    def _check_sizes(self) -> None:
        if self.repeat < 1:
            raise PlanError(f"repeat is {self.repeat}", why="parts are laid out at least once")
        if not self.parts:
            raise PlanError("parts is empty", fix="write {name: size, ...}")
        for name, size in self.parts:
            if size < 1:
                raise PlanError(f"part {name} has size {size}", why="a part has rows")
            if size % self.repeat:
                raise PlanError(
                    f"part {name} of size {size} cannot be laid out {self.repeat} times",
                    why=f"{size} is not a multiple of repeat {self.repeat}",
                )

    @classmethod
    def parse(
        cls, pattern: str, value: object, file: str | None = None, line: int | None = None
    ) -> Packed:
        """Read ``{dim: 0, repeat: 1, parts: {gate: 14336, up: 14336}}``; repeat may be left out.

        Raises:
            PlanError: A key is missing or unknown, or a value is of another kind.
        """
        with at(place(file, line, f"packed {pattern!r}")):
            entry = as_mapping(value, "a packed entry")
            check_keys(entry, _PACKED_KEYS, "a packed entry")
            if not entry.keys() >= {"dim", "parts"}:
                raise PlanError(
                    "a packed entry needs dim and parts",
                    fix="write {dim: 0, repeat: 1, parts: {name: size, ...}}",
                )
            dim = as_integer(entry["dim"], "dim")
            repeat = as_integer(entry.get("repeat", 1), "repeat")
            parts = as_mapping(entry["parts"], "parts").items()
            sizes = tuple((name, as_integer(size, f"part {name}")) for name, size in parts)
        return cls(pattern, dim, repeat, sizes, file, line)

    @property
    def where(self) -> str:
        """``plan.yaml:12``, or the entry's pattern in a plan that has no file."""
        return place(self.file, self.line, f"packed {self.pattern!r}")

    def content(self) -> dict[str, object]:
        """What stands behind the pattern, as in the file."""
        return {"dim": self.dim, "repeat": self.repeat, "parts": dict(self.parts)}

    def to_json(self) -> dict[str, object]:
        """``{file, line, pattern, dim, repeat, parts}``."""
        return {"file": self.file, "line": self.line, "pattern": self.pattern, **self.content()}

    @classmethod
    def from_json(cls, value: object) -> Packed:
        """Read back what `to_json` wrote.

        Raises:
            PlanError: It is no saved entry.
        """
        saved = as_mapping(value, "a saved packed entry")
        content = {key: saved[key] for key in _PACKED_KEYS if key in saved}
        return cls.parse(as_text(saved.get("pattern"), "pattern"), content, *saved_place(saved))


@dataclass(frozen=True)
class Heads:
    """Integer attributes that tp divides, besides the known ones, on the matched modules.

    Attributes:
        pattern: The modules.
        names: The attributes; none says that the counts of these modules stay.
        file: The plan file, if any.
        line: The line there, from 1.

    Raises:
        PlanError: The pattern is malformed, or a name comes twice.
    """

    pattern: str
    names: tuple[str, ...]
    file: str | None = None
    line: int | None = None

    def __post_init__(self) -> None:
        with at(self.where):
            Pattern.parse(self.pattern)
            names = as_texts(self.names, "the attribute names")
            if len(set(names)) < len(names):
                raise PlanError(
                    "it names an attribute twice",
                    fix="write a list such as [num_heads, num_key_value_heads]",
                )

    @property
    def where(self) -> str:
        """``plan.yaml:12``, or the entry's pattern in a plan that has no file."""
        return place(self.file, self.line, f"heads {self.pattern!r}")

    def to_json(self) -> dict[str, object]:
        """``{file, line, pattern, names}``."""
        place_of = {"file": self.file, "line": self.line}
        return {**place_of, "pattern": self.pattern, "names": list(self.names)}

    @classmethod
    def from_json(cls, value: object) -> Heads:
        """Read back what `to_json` wrote.

        Raises:
            PlanError: It is no saved entry.
        """
        saved = as_mapping(value, "a saved heads entry")
        names = as_texts(saved.get("names"), "names")
        return cls(as_text(saved.get("pattern"), "pattern"), names, *saved_place(saved))


class Tied(NamedTuple):
    """Two names that hold one parameter."""

    a: str
    b: str
    line: int | None = None

    @classmethod
    def from_json(cls, value: object) -> Tied:
        """Read back a saved ``[name, name, line]``.

        Raises:
            PlanError: It is no saved pair.
        """
        *pair, line = as_list(value, "a saved tied pair") or [None]
        return cls.parse(pair, None if line is None else as_integer(line, "a line"))

    @classmethod
    def parse(cls, value: object, line: int | None = None) -> Tied:
        """Read ``[name, name]``.

        Raises:
            PlanError: It is no pair of two different parameter names.
        """
        pair = as_list(value, "a tied pair")
        names = as_texts(pair, "a tied pair")
        if len(names) != 2 or names[0] == names[1]:
            raise PlanError(
                f"tied pair {list(names)} is not two different names",
                fix="write [first.weight, second.weight]",
            )
        for name in names:
            if not Pattern.parse(name).is_literal:
                raise PlanError(f"tied name {name!r} is a pattern", fix="write every pair in full")
        return cls(names[0], names[1], line)


def rule_value(value: object) -> tuple[Layout, str | None]:
    """Read what stands behind a pattern: a layout, or ``{layout: ..., reason: ...}``.

    >>> rule_value({"layout": {"tp": "S(0)"}, "reason": "column parallel"})[1]
    'column parallel'

    Raises:
        PlanError: It is neither.
        LayoutError: The layout is malformed.
    """
    reason = None
    if isinstance(value, Mapping) and not value.keys().isdisjoint(_RULE_KEYS):
        check_keys(value, _RULE_KEYS, "a rule")
        reason = as_optional_text(value.get("reason"), "a rule's reason")
        value = value.get("layout")
    if value is None or (isinstance(value, Mapping) and not value):
        raise PlanError("a rule has no layout", fix="write replicate, or such as {tp: S(0)}")
    return Layout.parse(value), reason
