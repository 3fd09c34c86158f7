"""Tables and reports on stdout: plain columns, or as wide as the terminal where there is one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from hpx._text import printable, printable_lines
from hpx.tools._streams import answering

__all__ = [
    "Block",
    "Table",
    "emit",
    "emit_json",
    "emit_report",
    "emit_text",
    "json_text",
    "plain_report",
]

_NAME_WIDTH: Final = 36


@dataclass(frozen=True)
class Table:
    """Rows of text under headings.

    Attributes:
        headings: One for each column.
        rows: As many texts in each.
        right: Columns that hold numbers, by heading.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[str] = frozenset()

    def without(self, heading: str) -> Table:
        """The table less one column."""
        at = self.headings.index(heading)
        lines = ((*line[:at], *line[at + 1 :]) for line in (self.headings, *self.rows))
        headings, *rows = lines
        return Table(headings, tuple(rows), self.right)

    def plain(self) -> str:
        """Columns side by side, as wide as what they hold."""
        lines = [tuple(map(printable, line)) for line in (self.headings, *self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.headings))]
        return "\n".join(self._line(line, widths) for line in lines)

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        aligned = [
            cell.rjust(width) if heading in self.right else cell.ljust(width)
            for heading, cell, width in zip(self.headings, cells, widths, strict=True)
        ]
        return "  ".join(aligned).rstrip()


Block: TypeAlias = str | Table
"""A piece of a report; blocks are printed one below the other."""


def plain_report(blocks: Iterable[Block]) -> str:
    """The report as a file holds it."""
    return "\n".join(b.plain() if isinstance(b, Table) else printable_lines(b) for b in blocks)


def emit_report(blocks: Sequence[Block]) -> None:
    """Print a report; tables take the terminal's width where stdout is one."""
    if not sys.stdout.isatty():
        emit(plain_report(blocks))
        return
    from io import StringIO

    from rich.console import Console

    width = os.get_terminal_size(sys.stdout.fileno()).columns or 80
    console = Console(file=StringIO(), force_terminal=True, width=width)
    for block in blocks:
        if isinstance(block, Table):
            console.print(_rich(block))
        else:
            console.print(printable_lines(block), markup=False, highlight=False, soft_wrap=True)
    assert isinstance(console.file, StringIO)
    emit(console.file.getvalue().rstrip("\n"))


def column(table: Table, at: int) -> list[str]:
    """The heading and the cells of one column."""
    return [line[at] for line in (table.headings, *table.rows)]


def _rich(table: Table) -> object:
    from rich.table import Table as RichTable
    from rich.text import Text

    made = RichTable(box=None, pad_edge=False, header_style="bold")
    for at, heading in enumerate(table.headings):
        made.add_column(
            Text(heading),
            justify="right" if heading in table.right else "left",
            overflow="fold",
            # Names are what people look for: other columns give way first.
            min_width=min(_NAME_WIDTH, max(map(len, column(table, at)))) if at == 0 else None,
            no_wrap=heading in table.right,
        )
    for row in table.rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    return made


def emit(text: str) -> None:
    """Write a line or more to stdout, now; end quietly if nobody reads any more."""
    with answering() as stdout:
        stdout.write(text + "\n")


def emit_text(text: str) -> None:
    """Write an answer for people to stdout: no name in it moves the cursor."""
    emit(printable_lines(text))


def json_text(value: object, encoding: str = "utf-8") -> str:
    """A value as JSON that people can read too, as far as the encoding has the characters."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return json.dumps(value, indent=2)
    return text


def emit_json(value: object) -> None:
    """Write a value to stdout as JSON."""
    emit(json_text(value, sys.stdout.encoding))
