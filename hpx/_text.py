"""How names, numbers, values, rules and events read in text: one way for every report."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from hpx.layout import Layout
from hpx.order import Order

if TYPE_CHECKING:
    from hpx.plan import Rule
    from hpx.provenance import Derivation, Event

__all__ = [
    "bytes_text",
    "counted",
    "event_text",
    "printable",
    "printable_lines",
    "reasons_text",
    "rule_place",
    "shape_text",
    "value_text",
]

_MAX_VALUE = 160
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def bytes_text(number: int) -> str:
    """A size that people compare.

    >>> bytes_text(300), bytes_text(117440512)
    ('300 bytes', '112.0 MiB')
    """
    size, unit = float(number), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{number} bytes" if unit == 0 else f"{size:,.1f} {_UNITS[unit]}"


def printable(text: str) -> str:
    r"""The text with every control, format and surrogate character written as an escape.

    Names come from files that anybody may have made: none may move the cursor, turn the direction
    of writing, or end a line.

    >>> print(printable("a\nb\x1b[31m"))
    a\nb\x1b[31m
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines, which stay lines."""
    return "\n".join(map(printable, text.split("\n")))


def shape_text(shape: Sequence[int]) -> str:
    """``[256, 2048]``."""
    return f"[{', '.join(map(str, shape))}]"


def counted(number: int, word: str, many: str | None = None) -> str:
    """``1 event``, ``2 events``.

    >>> counted(1, "event"), counted(2000, "event")
    ('1 event', '2,000 events')
    """
    return f"{number:,} {word if number == 1 else many or word + 's'}"


def reasons_text(reasons: Sequence[str]) -> str:
    """Why a step of a schedule stands where it does."""
    return "; ".join(reasons) or "nothing has to run before it"


def rule_place(rule: Rule) -> str:
    """Where a rule stands, its pattern and who wrote it."""
    if rule.source == "default":
        return f"{rule.where} (default of the plan)"
    derived = rule.source != "user"
    who = rule.source if derived else "user file" if rule.file else "user, from Python"
    return f"{rule.where} {rule.pattern!r} ({who})"


def value_text(value: object) -> str:
    """A value of an event on one line."""
    if value is None:
        return "none"
    if isinstance(value, str | Layout | Order):
        return str(value)
    if isinstance(value, tuple | list) and all(isinstance(item, str) for item in value):
        return ", ".join(value) or "none"
    text = json.dumps(value, default=str)
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 3]}..."


def event_text(event: Event, name_of: Callable[[int], str]) -> str:
    """What an event did, without its reason: ``layout = tp:S(0)``."""
    key = (event.key or "").removeprefix("attributes.")
    if event.kind == "set":
        new = value_text(event.new)
        return f"{key} = {new}" if event.old is None else f"{key}: {value_text(event.old)} -> {new}"
    if event.kind == "derive":
        made = cast("Derivation", event.new)
        return f"derived {name_of(event.nodes[0])} {shape_text(made.spec.shape)}"
    if event.kind == "alias":
        return f"tied: one parameter with {name_of(cast(int, event.old))}"
    if event.kind == "rename":
        return f"renamed to {name_of(event.nodes[0])}"
    if event.kind == "attach":
        made_up = cast("dict[str, object]", event.new)
        options = f" {value_text(made_up['options'])}" if made_up.get("options") else ""
        return f"to install: {made_up.get('function')}{options}"
    if event.kind == "skip":
        return f"left {key} as it is" if key else "left as it is"
    return "removed" if event.kind == "remove" else "note"
