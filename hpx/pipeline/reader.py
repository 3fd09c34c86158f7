"""The grammar of the pipeline text, down to items with their columns; knows no pass.

pipeline = item {"," item}
item     = "@" name | "!" name | name ["{" [option {"," option}] "}"]
option   = key "=" value
value    = true | false | null | number | word | "text" | "[" [value {"," value}] "]"
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Final, Literal

from hpx.errors import PipelineError
from hpx.pipeline.options import BARE_WORD, RESERVED

__all__ = ["Item", "Option", "read_items"]

_SPACE: Final = re.compile(r"\s*")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_NUMBER: Final = re.compile(r"[+-]?(inf\b|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)")
_NUMBER_START: Final = "+-.0123456789"
_MAX_NESTING: Final = 20
_OF_PATTERNS: Final = "*{[/:"
_QUOTE: Final = 'put text in quotes: "..."'


@dataclass(frozen=True)
class Option:
    """One ``key=value`` of an item, the value as Python knows it; a list is a tuple."""

    key: str
    value: object
    where: str


@dataclass(frozen=True)
class Item:
    """One item of the text: a pass, a preset or a removal."""

    kind: Literal["pass", "preset", "remove"]
    name: str
    where: str
    options: tuple[Option, ...] = field(default=())


def read_items(text: str) -> list[Item]:
    """The items of a pipeline text; an empty text has none.

    Raises:
        PipelineError: The text does not follow the grammar; says the column.
    """
    return _Reader(text).items()


class _Reader:
    """A place in the text that moves on as things are read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def items(self) -> list[Item]:
        if not self._peek():
            return []
        found = [self._item()]
        while self._peek():
            if not self._take(","):
                raise self._unexpected("a comma between two passes")
            found.append(self._item())
        return found

    def _item(self) -> Item:
        start, sign = self._peek_at()
        where = self._where(start)
        if sign in ("", ","):
            raise self._error("an empty item", start, fix="name a pass, or drop the comma")
        if sign in ("@", "!"):
            self._at += 1
            name = self._name(f"a name right after {sign}")
            if self._peek() == "{":
                raise self._error(f"{sign}{name} takes no options", self._at)
            return Item("preset" if sign == "@" else "remove", name, where)
        name = self._name("the name of a pass")
        return Item("pass", name, where, self._options(name))

    def _options(self, name: str) -> tuple[Option, ...]:
        opened, sign = self._peek_at()
        if sign != "{":
            return ()
        self._at += 1
        if self._take("}"):
            return ()
        found = [self._option(name)]
        while not self._take("}"):
            self._separator("{", opened, f"a comma or }} in the options of {name}")
            found.append(self._option(name))
        keys = [option.key for option in found]
        for option in found:
            if keys.count(option.key) > 1:
                raise PipelineError(
                    f"option {option.key} of {name} is given twice", where=option.where
                )
        return tuple(found)

    def _option(self, name: str) -> Option:
        start, sign = self._peek_at()
        if sign in (",", "}"):
            raise self._error(f"an empty option of {name}", start, fix="write key=value")
        key = self._name(f"the name of an option of {name}")
        if not self._take("="):
            raise self._error(f"option {key} of {name} has no value", start, fix=f"write {key}=...")
        return Option(key, self._value(f"{key} of {name}"), self._where(start))

    def _value(self, owner: str, depth: int = 0) -> object:
        start, sign = self._peek_at()
        if sign == '"':
            return self._quoted(start)
        if sign == "[":
            return self._list(owner, depth)
        if sign and sign in _NUMBER_START:
            return self._number(start)
        word = BARE_WORD.match(self._text, start)
        if not word:
            raise self._unexpected(f"a value for {owner}")
        self._at = word.end()
        return RESERVED.get(word[0], word[0])

    def _list(self, owner: str, depth: int) -> tuple[object, ...]:
        opened = self._at
        if depth == _MAX_NESTING:
            raise self._error(f"lists nested more than {_MAX_NESTING} deep", opened)
        self._at += 1
        if self._take("]"):
            return ()
        found = [self._value(owner, depth + 1)]
        while not self._take("]"):
            self._separator("[", opened, f"a comma or ] in the list of {owner}")
            found.append(self._value(owner, depth + 1))
        return tuple(found)

    def _number(self, start: int) -> int | float:
        number = _NUMBER.match(self._text, start)
        end = number.end() if number else start
        # 4x and 1.2.3 are no numbers with something behind them.
        if not number or re.compile(r"[\w.+-]").match(self._text, end):
            raise self._error("not a number", start, fix=_QUOTE)
        self._at = end
        try:
            return int(number[0])
        except ValueError:
            return float(number[0])

    def _quoted(self, start: int) -> str:
        try:
            value, self._at = json.JSONDecoder().raw_decode(self._text, start)
        except json.JSONDecodeError as error:
            if error.msg.startswith("Unterminated"):
                raise self._error('a " that is never closed', start) from None
            raise self._error(
                "text in quotes that cannot be read",
                error.pos,
                why=error.msg,
                fix=r"write \" \\ \n \t or \u00e9 for what cannot stand as it is",
            ) from None
        text: str = value
        return text

    def _name(self, what: str) -> str:
        start, _ = self._peek_at()
        name = _NAME.match(self._text, start)
        if not name:
            raise self._unexpected(what)
        self._at = name.end()
        return name[0]

    def _separator(self, bracket: str, opened: int, what: str) -> None:
        if not self._peek():
            raise self._error(f"a {bracket} that is never closed", opened)
        if not self._take(","):
            raise self._unexpected(what)

    def _take(self, sign: str) -> bool:
        if self._peek() != sign:
            return False
        self._at += 1
        return True

    def _peek(self) -> str:
        return self._peek_at()[1]

    def _peek_at(self) -> tuple[int, str]:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at
        return self._at, self._text[self._at : self._at + 1]

    def _where(self, at: int) -> str:
        line = self._text.count("\n", 0, at) + 1
        column = at - (self._text.rfind("\n", 0, at) + 1) + 1
        on_line = f"line {line} " if "\n" in self._text.strip() else ""
        return f"pipeline {on_line}column {column}"

    def _error(
        self, what: str, at: int, *, why: str | None = None, fix: str | None = None
    ) -> PipelineError:
        return PipelineError(what, where=self._where(at), why=why, fix=fix)

    def _unexpected(self, wanted: str) -> PipelineError:
        at, sign = self._peek_at()
        if sign in ("}", "]"):
            opening = "{" if sign == "}" else "["
            return self._error(f"a {sign} without {opening}", at, why=f"expected {wanted}")
        found = repr(sign) if sign else "the end of the text"
        # A pattern that stands bare ends, or never begins, at its first sign.
        fix = _QUOTE if sign and sign in _OF_PATTERNS else None
        return self._error(f"expected {wanted}, found {found}", at, fix=fix)
