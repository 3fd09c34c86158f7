"""The view as an indented outline in svg, written without Graphviz.

For ``--engine builtin``, for views of thousands of rows, and for notebooks without Graphviz.
Letters are of one width, so places are reckoned without asking a font: the same bytes everywhere.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hpx._text import bytes_text, counted, shape_text
from hpx.errors import TooLargeError
from hpx.holding import ranges_text
from hpx.render.caption import caption_facts
from hpx.render.header import drawn_text
from hpx.render.hints import row_lines
from hpx.render.options import ColorBy
from hpx.render.paint import Paint, Patch
from hpx.render.palette import ALERT
from hpx.render.svg import CHAR, GREY, document, svg_text, title
from hpx.render.viewmodel import Box, Row, View
from hpx.render.words import runs_text, short_dtype, shorten

__all__ = ["view_to_svg"]

_LINE: Final = 17
_MARGIN: Final = 12
_INDENT: Final = 2
_NAME: Final = 60
_GAP: Final = 2
_SCREEN: Final = 1.6
"""Width over height of a screen."""
_MOST_LINES: Final = 50_000
_WRAP: Final = 120
_MOST_FINDINGS: Final = 6
_MOST_PATCHES: Final = 12
_EDGE: Final = "#888888"


@dataclass(slots=True)
class _Line:
    """One line of the outline, in characters.

    Attributes:
        indent: Where it begins.
        name: What it is about.
        cells: The columns behind it: a text, or a coloured patch.
        bold: Whether the name stands out.
        color: The colour of the name.
        tip: Its tooltip.
        marked: Whether its patch has the border of what stands out.
        box: Whether it is the head of a module.
    """

    indent: int
    name: str
    cells: list[str | Patch] = field(default_factory=list)
    bold: bool = False
    color: str = "#000000"
    tip: str = ""
    marked: bool = False
    box: bool = False


def view_to_svg(
    view: View,
    *,
    color_by: ColorBy = "layout",
    axis: str | None = None,
    ranges: bool = False,
    histories: Mapping[int, Sequence[str]] | None = None,
) -> str:
    """The whole view as an svg that needs no Graphviz.

    Args:
        view: The view; any number of rows, as they stand in several columns.
        color_by: What colours tell.
        axis: The mesh axis that layouts are told of; all of them if not given.
        ranges: Whether rows say which indices the rank holds, rather than how many.
        histories: What happened to the rows' tensors, by node, for their tooltips.

    Raises:
        TooLargeError: There are more than 50,000 lines.
    """
    paint = Paint(view, color_by, axis)
    lines = list(_Lines(view, paint, ranges, histories or {}).tree())
    if len(lines) > _MOST_LINES:
        raise TooLargeError(
            f"the outline would have {len(lines):,} lines",
            why=f"{_MOST_LINES:,} is the most that is drawn",
            fix="draw less (--depth, --root, --focus), or fold; html and text have no limit",
        )
    head, top = _head(view, paint)
    widths = _widths(lines)
    width = (sum(widths) + _GAP * len(widths) + 2) * CHAR
    columns = _columns(len(lines), width)
    height = -(-len(lines) // columns)
    parts = [head]
    for start in range(0, len(lines), height):
        x = _MARGIN + start // height * width
        for place, line in enumerate(lines[start : start + height]):
            parts.append(_drawn(line, widths, x, top + place * _LINE))
    right = max(width * columns, (_WRAP + 14) * CHAR) + 2 * _MARGIN
    return document(view.title, right, top + height * _LINE + _MARGIN, parts)


def _columns(count: int, width: float) -> int:
    """Side by side, so that the whole comes near the shape of a screen."""
    columns = 1
    while columns < count and width * columns < _SCREEN * _LINE * count / columns:
        columns += 1
    return columns


# -- lines ---------------------------------------------------------------------------------------


class _Lines:
    """Turns boxes and rows into lines."""

    def __init__(
        self, view: View, paint: Paint, ranges: bool, histories: Mapping[int, Sequence[str]]
    ) -> None:
        self._histories = histories
        self._view = view
        self._paint = paint
        self._ranges = ranges
        self._several_dtypes = len(view.dtypes) > 1

    def tree(self) -> Iterator[_Line]:
        """All lines, in the order of the tree."""
        todo: list[int | _Line] = [0]
        while todo:
            item = todo.pop()
            if isinstance(item, _Line):
                yield item
                continue
            box = self._view.boxes[item]
            yield self._box(box)
            indent = (box.depth + 1) * _INDENT
            yield from (_Line(indent, shorten(note, 90), color=GREY) for note in box.notes)
            below: list[int | _Line] = [
                self._row(box, one) if isinstance(one, Row) else one for one in box.items
            ]
            below.extend(_Line(indent, text, color=GREY) for text in _closing(box))
            todo.extend(reversed(below))

    def _box(self, box: Box) -> _Line:
        name = shorten(box.label if box.parent >= 0 else self._view.title, _NAME)
        if box.members > 1:
            name += f" x{box.members:,}"
        size = f"{counted(box.parameters, 'parameter')}, {bytes_text(box.bytes)}"
        return _Line(
            box.depth * _INDENT,
            name,
            [shorten(box.cls, 32) if box.depth else "", size],
            bold=True,
            color=ALERT.hex if box.mark else "#000000",
            tip=box.path or self._view.title,
            box=True,
        )

    def _row(self, box: Box, row: Row) -> _Line:
        name = shorten(row.label, _NAME)
        if (times := row.count // box.count) > 1:
            name += f" x{times}"
        if row.warned:
            name = f"! {name}"
        tip = "\n".join([*row_lines(self._view, row), *self._histories.get(row.node, ())])
        line = _Line((box.depth + 1) * _INDENT, name, tip=tip, marked=bool(row.mark))
        line.bold = bool(row.mark)
        if row.kind == "link":
            line.cells = [f"tied to {shorten(row.ties[0], _NAME)}"]
            return line
        patch: str | Patch = ""
        if row.kind == "parameter" and self._view.has_layouts:
            patch = self._paint.row(row)
        elif self._paint.color_by != "layout":
            found = self._paint.row(row)
            patch = Patch(short_dtype(row.dtype), found.shade)
        line.cells = [shape_text(row.shape), patch, "  ".join(self._rest(row))]
        return line

    def _rest(self, row: Row) -> Iterator[str]:
        if row.mark:
            yield f"{row.mark}, was {row.was}" if row.was else row.mark
        if row.local_shape is not None and row.local_shape != row.shape:
            ranges = row.ranges if self._ranges else None
            yield f"-> {shape_text(row.local_shape) if ranges is None else ranges_text(ranges)}"
        if row.pieces:
            yield f"uneven: {shorten(runs_text(row.pieces), 30)}"
        if row.experts is not None:
            yield f"E={row.experts}"
        if self._several_dtypes:
            yield short_dtype(row.dtype)
        if row.kind != "parameter":
            yield row.kind
        elif not row.requires_grad:
            yield "frozen"
        if row.ties:
            more = f" +{len(row.ties) - 1}" if len(row.ties) > 1 else ""
            yield f"tied to {shorten(row.ties[0], 40)}{more}"


def _closing(box: Box) -> Iterator[str]:
    if box.same:
        names = ", ".join(shorten(name, 24) for name in box.same[:4])
        more = f" and {len(box.same) - 4} more" if len(box.same) > 4 else ""
        yield f"as in {box.same_as}: {names}{more}"
    if box.hidden_rows:
        yield f"... {counted(box.hidden_rows, 'more row')}"
    if box.hidden:
        yield f"... {counted(box.hidden, 'module')} below"


# -- drawing -------------------------------------------------------------------------------------


def _cell_text(cell: str | Patch) -> str:
    return cell if isinstance(cell, str) else cell.text


def _widths(lines: list[_Line]) -> list[int]:
    """Characters of every column: the name with its indent, then those behind it."""
    widths = [24]
    for line in lines:
        widths[0] = max(widths[0], line.indent + len(line.name)) if line.cells else widths[0]
        # The last cell of a line may reach over the columns that the line does not have.
        for place, cell in enumerate(line.cells[:-1], 1):
            while len(widths) <= place:
                widths.append(0)
            widths[place] = max(widths[place], len(_cell_text(cell)) + isinstance(cell, Patch))
    widest = max((_reach(line, widths) for line in lines), default=0)
    return [*widths, max(widest - sum(widths) - _GAP * len(widths), 1)]


def _reach(line: _Line, widths: list[int]) -> int:
    if not line.cells:
        return line.indent + len(line.name)
    before = len(line.cells)
    start = sum(widths[:before]) + _GAP * before
    return start + len(_cell_text(line.cells[-1]))


def _drawn(line: _Line, widths: list[int], x: float, y: float) -> str:
    base = y + 12
    left = x + line.indent * CHAR
    parts = [title(line.tip.split("\n"))] if line.tip else []
    if line.box:
        wide = (sum(widths) + _GAP * (len(widths) - 1) - line.indent) * CHAR
        parts.append(
            f'<rect x="{left - 3:.1f}" y="{y + 1:.1f}" width="{wide:.1f}" height="{_LINE - 2}"'
            ' fill="#E8E8E8"/>'
        )
    parts.append(svg_text(left, base, line.name, color=line.color, bold=line.bold))
    column = 0
    for place, cell in enumerate(line.cells):
        column += widths[place] + _GAP
        left = x + column * CHAR
        if isinstance(cell, Patch):
            wide = widths[place + 1] if place + 1 < len(widths) else len(cell.text) + 1
            parts.append(_patch(cell, left, y, wide, marked=line.marked))
        elif cell:
            parts.append(svg_text(left, base, cell, color=GREY if line.box else "#000000"))
    return f"<g>{''.join(parts)}</g>"


def _patch(patch: Patch, x: float, y: float, chars: int, *, marked: bool = False) -> str:
    """A coloured patch with its text in the middle."""
    color, width = _EDGE, 1.0
    if marked or patch.unset:
        color, width = ALERT.hex, 2.5
    elif patch.expert:
        color, width = "#000000", 1.5
    dash = ' stroke-dasharray="4,2"' if patch.expert else ""
    wide = chars * CHAR
    return (
        f'<rect x="{x - 2:.1f}" y="{y + 1:.1f}" width="{wide:.1f}" height="{_LINE - 3}"'
        f' fill="{patch.shade.hex}" stroke="{color}" stroke-width="{width}"{dash}/>'
    ) + svg_text(x - 2 + wide / 2, y + 12, patch.text, middle=True)


def _head(view: View, paint: Paint) -> tuple[str, float]:
    """What stands above the tree, and where the tree begins."""
    parts = [svg_text(_MARGIN, _MARGIN + 14, shorten(view.title, 80), bold=True, size=16)]
    y = _MARGIN + 26.0
    for text, loud in _head_lines(view):
        color = ALERT.hex if loud else "#000000"
        for line in textwrap.wrap(text, _WRAP, break_on_hyphens=False) or [""]:
            parts.append(svg_text(_MARGIN, y + 12, line, color=color, bold=loud))
            y += _LINE
    y += 4
    if paint.legend()[1] and (view.has_layouts or paint.color_by != "layout"):
        y = _legend(paint, parts, y)
    if view.passes and paint.color_by != "pass":
        passes = ", ".join(f"{name} {count:,}" for name, count in view.passes)
        parts.append(svg_text(_MARGIN, y + 12, f"decided by  {shorten(passes, _WRAP)}"))
        y += _LINE
    parts.append(svg_text(_MARGIN, y + 12, drawn_text(view), color=GREY))
    return "\n".join(parts), y + _LINE + 8


def _head_lines(view: View) -> Iterator[tuple[str, bool]]:
    """Facts and findings, and whether they are to be seen first."""
    yield from ((f"{key}  {value}", False) for key, value in caption_facts(view))
    for finding in view.findings[:_MOST_FINDINGS]:
        yield f"{finding.level}: {finding.text}", finding.level != "info"
    if len(view.findings) > _MOST_FINDINGS:
        yield f"and {counted(len(view.findings) - _MOST_FINDINGS, 'more problem')}", True


def _legend(paint: Paint, parts: list[str], y: float) -> float:
    """The patches, each with what it stands for; where the next line begins."""
    name, patches = paint.legend()
    parts.append(svg_text(_MARGIN, y + 12, name, bold=True))
    column = len(name) + _GAP
    for patch, meaning in patches[:_MOST_PATCHES]:
        wide = len(patch.text) + 2
        if column + wide + len(meaning) > _WRAP:
            column, y = 4, y + _LINE
        parts.append(_patch(patch, _MARGIN + column * CHAR, y, wide))
        column += wide + 1
        parts.append(svg_text(_MARGIN + column * CHAR, y + 12, meaning))
        column += len(meaning) + _GAP
    if paint.has_experts:
        text = "dashed: on the expert mesh"
        parts.append(svg_text(_MARGIN + column * CHAR, y + 12, text, color=GREY))
    return y + _LINE + 2
