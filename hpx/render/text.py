"""The view as text: what stands out first, then the folded tree, one line a parameter."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from hpx._text import bytes_text, counted, printable, shape_text
from hpx.render.header import facts, legend
from hpx.render.options import COLUMNS, Column
from hpx.render.palette import ALERT, shade
from hpx.render.viewmodel import Box, Row, View
from hpx.render.words import runs_text, short_dtype

__all__ = ["view_to_text"]

_NAME_WIDTH: Final = 56
"""A longer name than this moves the columns of its own line only."""
_IN_LINE: Final[tuple[Column, ...]] = (
    *("shape", "dtype", "layout", "local_shape", "bytes", "pass"),
)
"""The columns after the name, in the order of a line."""
_MOST_NAMES: Final = 3
_DEEPEST: Final = 24
"""Indentation stops growing here: a line of a tree 1,200 deep has to stay readable."""


def view_to_text(
    view: View,
    *,
    color: bool = False,
    ranges: bool = False,
    columns: Collection[Column] = COLUMNS,
) -> str:
    """The whole view as text.

    Args:
        view: The view.
        color: Whether to repeat the layouts in colours of the terminal.
        ranges: Whether to add what the view's rank holds, as index ranges.
        columns: Which columns; the name is always there.
    """
    return "\n".join(_Writer(view, color, ranges, columns).lines()) + "\n"


@dataclass(frozen=True)
class _Line:
    """One row, in columns."""

    name: str
    cells: tuple[str, ...]
    rest: str


class _Writer:
    def __init__(self, view: View, color: bool, ranges: bool, columns: Collection[Column]) -> None:
        self.view = view
        self.color = color
        self.ranges = ranges
        self.columns = [column for column in _IN_LINE if column in columns]
        self.lines_of_rows = {
            (box.index, place): self._line(box, item)
            for box in view.boxes
            for place, item in enumerate(box.items)
            if isinstance(item, Row)
        }
        found = self.lines_of_rows.values()
        self.name_width = max((len(x.name) for x in found if len(x.name) <= _NAME_WIDTH), default=0)
        self.widths = [
            max((len(x.cells[place]) for x in found if x.cells), default=0)
            for place in range(len(self.columns))
        ]

    def lines(self) -> Iterator[str]:
        yield self._bold(printable(self.view.title))
        pairs = facts(self.view)
        width = max(len(key) for key, _ in pairs)
        for key, value in pairs:
            yield f"  {key:<{width}}  {value}"
        yield ""
        if self.view.findings:
            yield self._bold(f"Problems ({len(self.view.findings)})")
            for finding in self.view.findings:
                hint = f" ({printable(finding.hint)})" if finding.hint else ""
                line = f"{finding.level}: {printable(finding.text)}{hint}"
                yield "  " + (line if finding.level == "info" else self._alert(line))
            yield ""
        if self.view.changes:
            yield self._bold("Differences (a is the old side, b the new one)")
            yield from (f"  {printable(line)}" for line in self.view.changes)
            yield ""
        yield from self._tree()
        yield ""
        yield from legend(self.view)

    def _tree(self) -> Iterator[str]:
        boxes = self.view.boxes
        todo: list[tuple[int, int]] = [(0, -1)]
        while todo:
            index, place = todo.pop()
            box = boxes[index]
            if place < 0:
                yield self._box_line(box)
                place = 0
            while place < len(box.items):
                item = box.items[place]
                if isinstance(item, Row):
                    yield self._row_line(item, self.lines_of_rows[index, place])
                    place += 1
                else:
                    todo.extend([(index, place + 1), (item, -1)])
                    break
            else:
                yield from self._closing(box)

    def _box_line(self, box: Box) -> str:
        name = printable(box.label) or printable(self.view.title)
        times = f" x{box.members:,}" if box.members > 1 else ""
        parts = [f"{_indent(box.depth)}{self._bold(name + times)}"]
        if box.cls and box.depth:
            parts.append(printable(box.cls))
        parts.extend(printable(note) for note in box.notes)
        if box.mark:
            parts.append(self._alert(box.mark))
        return "  ".join(parts)

    def _closing(self, box: Box) -> Iterator[str]:
        """What is not drawn below a box."""
        indent = _indent(box.depth + 1)
        if box.same:
            names = ", ".join(printable(name) for name in box.same)
            yield f"{indent}as in {printable(box.same_as)}: {names}"
        if box.hidden_rows:
            yield f"{indent}... {counted(box.hidden_rows, 'more row')}"
        if box.hidden:
            inside = f"{counted(box.parameters, 'parameter')}, {bytes_text(box.bytes)} in all"
            yield f"{indent}... {counted(box.hidden, 'module')} below ({inside})"

    def _line(self, box: Box, row: Row) -> _Line:
        times = row.count // box.count
        name = _indent(box.depth + 1) + printable(row.label) + (f" x{times}" if times > 1 else "")
        if row.kind == "link":
            return _Line(name, (), f"= {_named(row.ties)}")
        cells = tuple(self._cell(column, row) for column in self.columns)
        return _Line(name, cells, "  ".join(self._rest(row)))

    def _has_layout(self, row: Row) -> bool:
        return self.view.has_layouts and row.kind == "parameter"

    def _cell(self, column: Column, row: Row) -> str:
        if column == "shape":
            return shape_text(row.shape)
        if column == "dtype":
            return short_dtype(row.dtype)
        if column == "layout":
            return row.token if self._has_layout(row) else ""
        if column == "bytes":
            return bytes_text(row.bytes)
        if column == "pass":
            return ", ".join(row.passes)
        cut = self._has_layout(row) and row.local_shape not in (None, row.shape)
        return f"-> {shape_text(row.local_shape or ())}" if cut else ""

    def _rest(self, row: Row) -> Iterator[str]:
        if self.ranges and row.ranges is not None:
            yield f"[{', '.join(f'{start}:{end}' for start, end in row.ranges)}]"
        if row.experts is not None:
            yield f"E={row.experts}"
        if row.pieces:
            yield f"uneven: {runs_text(row.pieces)}"
        if row.kind != "parameter":
            yield row.kind
        elif not row.requires_grad:
            yield "frozen"
        if row.ties:
            yield f"tied: {_named(row.ties)}"
        if row.was:
            yield f"was {printable(row.was)}"

    def _row_line(self, row: Row, line: _Line) -> str:
        parts = [f"{line.name:<{self.name_width}}"]
        for column, width, cell in zip(self.columns, self.widths, line.cells, strict=False):
            if not width:
                continue
            aligned = f"{cell:>{width}}" if column == "bytes" else f"{cell:<{width}}"
            if column == "layout" and self.color and cell not in ("", "R"):
                aligned = f"\x1b[38;5;{shade(cell).terminal}m{aligned}\x1b[0m"
            parts.append(aligned)
        parts.append(line.rest)
        text = "  ".join(parts).rstrip()
        return f"{text}  {self._alert('<- ' + row.mark)}" if row.mark else text

    def _bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.color else text

    def _alert(self, text: str) -> str:
        return f"\x1b[38;5;{ALERT.terminal}m{text}\x1b[0m" if self.color else text


def _named(names: Sequence[str]) -> str:
    """Names with commas, the first few of them."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(map(printable, names[:_MOST_NAMES])) + more


def _indent(depth: int) -> str:
    return "  " * depth if depth <= _DEEPEST else "  " * _DEEPEST + f"({depth}) "
