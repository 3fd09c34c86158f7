"""HTML-like labels of Graphviz, with every foreign character escaped."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from hpx._text import bytes_text, counted, printable, shape_text
from hpx.holding import ranges_text
from hpx.render.hints import row_lines
from hpx.render.paint import Paint, Patch
from hpx.render.palette import ALERT, CHANGES
from hpx.render.shape import Panel, columns_of
from hpx.render.viewmodel import Box, Row, View
from hpx.render.words import runs_text, short_dtype, shorten

__all__ = ["LabelMaker", "cell", "escape", "patch_cell", "small", "table"]

_GREY: Final = "#555555"
_LINE: Final = "#888888"
_HEAD: Final = "#E8E8E8"
_NAME: Final = 44
_BAR: Final = 50
_PRINTED: Final = 12
"""A share of a bar of so many columns has room for its name."""
_TIP_LINES: Final = 24


def escape(text: str) -> str:
    """Text for a label: printable, and meaning only itself to Graphviz."""
    # Graphviz replaces \N, \G and such in labels and tooltips, so a backslash is written twice.
    return html.escape(printable(text)).replace("\\", "\\\\")


def cell(content: str, *attributes: str, align: str = "left") -> str:
    """One cell of a table; its content is escaped already."""
    return f'<td align="{align}" {" ".join(attributes)}>{content}</td>'


def small(text: str, color: str = _GREY) -> str:
    """Grey small print."""
    return f'<font color="{color}" point-size="9">{escape(text)}</font>'


def table(rows: Iterator[str] | list[str], attributes: str) -> str:
    """A table of rows."""
    return f"<table {attributes}>{''.join(rows)}</table>"


def patch_cell(patch: Patch, *, content: str | None = None, mark: str = "") -> str:
    """A coloured cell. Vermilion border: it stands out; dashed: it is on the expert mesh."""
    if mark or patch.unset:
        border = f'border="3" color="{CHANGES.get(mark, ALERT).hex}"'
    elif patch.expert:
        border = 'border="2" color="#000000"'
    else:
        border = f'border="1" color="{_LINE}"'
    if patch.expert:
        border += ' style="dashed"'
    text = escape(patch.text) if content is None else content
    return cell(text, border, f'bgcolor="{patch.shade.hex}"', align="center")


class LabelMaker:
    """Makes the labels of one view's boxes.

    Args:
        view: The view.
        paint: What colours tell.
        ranges: Whether rows say which indices the rank holds, rather than how many.
        histories: What happened to the rows' tensors, by node, for their tooltips.
    """

    def __init__(
        self,
        view: View,
        paint: Paint,
        *,
        ranges: bool = False,
        histories: Mapping[int, Sequence[str]],
    ) -> None:
        self._histories = histories
        self._view = view
        self._paint = paint
        self._ranges = ranges
        self._several_dtypes = len(view.dtypes) > 1

    def box(self, box: Box) -> str:
        """The label of a box."""
        return f"<{self._box(box)}>"

    def panel(self, panel: Panel) -> str:
        """The label of several boxes side by side."""
        boxes = [self._view.boxes[index] for index in panel.boxes]
        rows = []
        for start in range(0, len(boxes), panel.columns):
            cells = "".join(
                f'<td align="left" valign="top">{self._box(box)}</td>'
                for box in boxes[start : start + panel.columns]
            )
            rows.append(f"<tr>{cells}</tr>")
        outer = 'border="0" cellborder="0" cellspacing="4" cellpadding="0"'
        return f"<{table(rows, outer)}>"

    def _box(self, box: Box) -> str:
        """A table: its head, what it sums up to, its rows, and what is not drawn."""
        columns = columns_of(box)
        rows = _Rows(self, box)
        span = f'colspan="{rows.width * columns}"'
        lines = [self._head(box, span)]
        if box.members > 1 or box.hidden or not box.rows:
            lines.extend(f"<tr>{cell(text, span)}</tr>" for text in self._sum(box))
        lines.extend(f"<tr>{cell(small(shorten(note, 60)), span)}</tr>" for note in box.notes)
        lines.extend(rows.lines(columns))
        lines.extend(f"<tr>{cell(text, span)}</tr>" for text in self._closing(box))
        color, border = (ALERT.hex, 2) if box.mark else (_LINE, 1)
        return table(
            lines,
            f'border="{border}" color="{color}" cellborder="0" cellspacing="0" cellpadding="2"'
            f' bgcolor="white" tooltip="{escape(box.path or self._view.title)}"',
        )

    def _head(self, box: Box, span: str) -> str:
        text = f"<b>{escape(shorten(self._name(box), _NAME))}</b>"
        if box.members > 1:
            text += f" <b>x{box.members:,}</b>"
        if box.cls and box.depth:
            text += f"  {small(shorten(box.cls, 32))}"
        shaded = f'bgcolor="{_HEAD}"'
        return f"<tr>{cell(text, span, shaded)}</tr>"

    def _name(self, box: Box) -> str:
        if box.parent < 0:
            return self._view.title
        first = box.label.partition(".")[0]
        if not first[:1].isdigit():
            return box.label
        # Numbers alone say little: layers.0-57, not 0-57.
        above = self._view.boxes[box.parent].label.rpartition(".")[2]
        return f"{above}.{box.label}" if above else box.label

    def _sum(self, box: Box) -> Iterator[str]:
        yield small(f"{counted(box.parameters, 'parameter')}, {bytes_text(box.bytes)}")
        if not (box.members > 1 or box.hidden):
            return
        bar = self._paint.bar(box)
        if self._view.has_layouts and bar:
            yield self._bar(bar)

    @staticmethod
    def _bar(shares: list[tuple[Patch, int]]) -> str:
        """Bytes as a row of coloured cells; a share too small to see gets the least."""
        total = sum(size for _, size in shares)
        cells = []
        for patch, size in shares:
            # One column has 4 points; a cell of n columns takes n times what the box is stretched.
            columns = max(1, round(_BAR * size / total))
            tip = f'tooltip="{escape(patch.text)}: {bytes_text(size)}"'
            wide = f'colspan="{columns}" width="{4 * columns}" height="12"'
            edge = f'border="1" color="{ALERT.hex if patch.unset else _LINE}"'
            if patch.expert:
                edge = 'border="1" color="#000000" style="dashed"'
            fits = columns >= _PRINTED and len(patch.text) <= columns * 4 / 5
            text = f'<font point-size="8">{escape(patch.text)}</font>' if fits else ""
            cells.append(f'<td {wide} bgcolor="{patch.shade.hex}" {edge} {tip}>{text}</td>')
        row = f"<tr>{''.join(cells)}</tr>"
        return table([row], 'border="0" cellborder="1" cellspacing="0" cellpadding="0"')

    def _closing(self, box: Box) -> Iterator[str]:
        if box.same:
            names = ", ".join(shorten(name, 30) for name in box.same[:8])
            if len(box.same) > 8:
                names += f" and {len(box.same) - 8} more"
            wrapped = textwrap.wrap(f"as in {box.same_as}: {names}", 60)
            yield '<br align="left"/>'.join(map(small, wrapped)) + '<br align="left"/>'
        if box.hidden_rows:
            yield small(f"... {counted(box.hidden_rows, 'more row')}")
        if box.hidden:
            yield small(f"... {counted(box.hidden, 'module')} below")

    # -- cells of a row ----------------------------------------------------------------------

    def name(self, box: Box, row: Row, place: int) -> str:
        """The name, which is the row's port and has its tooltip."""
        told = self._histories.get(row.node, ())
        lines = [shorten(line, 400) for line in (*row_lines(self._view, row), *told)]
        if len(lines) > _TIP_LINES:
            lines = [*lines[: _TIP_LINES - 1], f"and {len(lines) - _TIP_LINES + 1} more lines"]
        tip = "&#10;".join(map(escape, lines))
        name = escape(shorten(row.label, _NAME))
        if row.mark == "removed":
            name = f"<s>{name}</s>"
        text = f"<b>{name}</b>" if row.mark else name
        if (times := row.count // box.count) > 1:
            text += f" <b>x{times}</b>"
        if row.warned:
            text = f'<font color="{ALERT.hex}"><b>!</b></font> {text}'
        return cell(text, f'port="b{box.index}r{place}" tooltip="{tip}"')

    def shape(self, row: Row) -> str:
        """The shape; coloured, and marked where it stands out, if there is no layout to do so."""
        text, attributes = escape(shape_text(row.shape)), []
        if row.mark and not (self._view.has_layouts and row.kind == "parameter"):
            text += f" <b>{row.mark}</b>"
            attributes.append(f'border="2" color="{CHANGES.get(row.mark, ALERT).hex}"')
        if not self._view.has_layouts and self._paint.color_by != "layout":
            attributes.append(f'bgcolor="{self._paint.row(row).shade.hex}"')
        return cell(text, *attributes)

    def extras(self, row: Row) -> str:
        """What else there is to say, in small print; empty for most."""
        found = []
        if row.experts is not None:
            found.append(f"<b>E={row.experts}</b>")
        if self._several_dtypes:
            found.append(small(short_dtype(row.dtype)))
        if row.kind != "parameter":
            found.append(small(row.kind))
        elif not row.requires_grad:
            found.append(small("frozen"))
        if row.was:
            first, _, rest = row.was.partition("; ")
            found.append(small(f"was {shorten(first, 40)}{' ...' if rest else ''}"))
        if row.ties:
            more = f" +{len(row.ties) - 1}" if len(row.ties) > 1 else ""
            found.append(small(f"tied to {shorten(row.ties[0], 28)}{more}"))
        return "  ".join(found)

    def token(self, row: Row) -> str:
        """The layout, coloured."""
        if row.kind != "parameter":
            return cell("")
        patch = self._paint.row(row)
        content = escape(patch.text) + (f" <b>{row.mark}</b>" if row.mark else "")
        return patch_cell(patch, content=content, mark=row.mark)

    def local(self, row: Row) -> str:
        """What the rank holds of it; empty for all of it."""
        if row.local_shape is None or row.local_shape == row.shape:
            return ""
        if self._ranges and row.ranges is not None:
            return escape(f"-> {ranges_text(row.ranges)}")
        text = escape(f"-> {shape_text(row.local_shape)}")
        if row.pieces:
            text += "  " + small(f"uneven: {shorten(runs_text(row.pieces), 24)}")
        return text


class _Rows:
    """The rows of one box, with the columns that any of them needs."""

    def __init__(self, labels: LabelMaker, box: Box) -> None:
        self._labels = labels
        self._box = box
        self._has_layouts = labels._view.has_layouts
        self._extras = [labels.extras(row) if row.kind != "link" else "" for row in box.rows]
        self._locals = [labels.local(row) for row in box.rows]
        self.width = 2 + any(self._extras) + self._has_layouts + any(self._locals)

    def lines(self, columns: int) -> Iterator[str]:
        rows = self._box.rows
        height = -(-len(rows) // columns)
        for line in range(height):
            cells: list[str] = []
            for column in range(columns):
                place = column * height + line
                if place < len(rows):
                    cells.extend(self._cells(rows[place], place))
                else:
                    cells.append(cell("", f'colspan="{self.width}"'))
            yield f"<tr>{''.join(cells)}</tr>"

    def _cells(self, row: Row, place: int) -> Iterator[str]:
        yield self._labels.name(self._box, row, place)
        if row.kind == "link":
            yield cell(
                small(f"tied to {shorten(row.ties[0], _NAME)}"), f'colspan="{self.width - 1}"'
            )
            return
        yield self._labels.shape(row)
        if any(self._extras):
            yield cell(self._extras[place])
        if self._has_layouts:
            yield self._labels.token(row)
        if any(self._locals):
            yield cell(self._locals[place])
