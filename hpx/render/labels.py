"""HTML-like labels of Graphviz, with every foreign character escaped."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterator
from typing import Final

from hpx._text import bytes_text, counted, printable, shape_text
from hpx.render.header import drawn_text, facts, token_meaning
from hpx.render.palette import ALERT, shade
from hpx.render.shape import Panel, columns_of
from hpx.render.viewmodel import Box, Row, View
from hpx.render.words import runs_text, short_dtype, shorten

__all__ = ["LabelMaker", "header_label"]

_GREY: Final = "#555555"
_LINE: Final = "#888888"
_HEAD: Final = "#E8E8E8"
_NAME: Final = 44
_WRAP: Final = 110
_BAR: Final = 50
_FILLER: Final = '<td border="0" colspan="200"></td>'
"""Takes up nearly all of what a table is stretched, so that its other cells stay as they are."""


def escape(text: str) -> str:
    """Text for a label: printable, and meaning only itself to Graphviz."""
    # Graphviz replaces \N, \G and such in labels and tooltips, so a backslash is written twice.
    return html.escape(printable(text)).replace("\\", "\\\\")


def _cell(content: str, *attributes: str, align: str = "left") -> str:
    return f'<td align="{align}" {" ".join(attributes)}>{content}</td>'


def _small(text: str, color: str = _GREY) -> str:
    return f'<font color="{color}" point-size="9">{escape(text)}</font>'


def _table(rows: Iterator[str] | list[str], attributes: str) -> str:
    return f"<table {attributes}>{''.join(rows)}</table>"


class LabelMaker:
    """Makes the labels of one view's boxes."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._several_dtypes = len(view.dtypes) > 1
        self._with_local = any(
            row.local_shape is not None and row.local_shape != row.shape for row in view.rows()
        )
        self._width = 2 + (1 + self._with_local if view.has_layouts else 0)

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
        return f"<{_table(rows, outer)}>"

    def _box(self, box: Box) -> str:
        """A table: its head, what it sums up to, its rows, and what is not drawn."""
        columns = columns_of(box)
        span = f'colspan="{self._width * columns}"'
        lines = [self._head(box, span)]
        if box.members > 1 or box.hidden or not box.rows:
            lines.append(self._sum(box, span))
        lines.extend(f"<tr>{_cell(_small(shorten(note, 60)), span)}</tr>" for note in box.notes)
        lines.extend(self._rows(box, columns))
        lines.extend(f"<tr>{_cell(text, span)}</tr>" for text in self._closing(box))
        color, border = (ALERT.hex, 2) if box.mark else (_LINE, 1)
        return _table(
            lines,
            f'border="{border}" color="{color}" cellborder="0" cellspacing="0" cellpadding="2"'
            f' bgcolor="white" tooltip="{escape(box.path or self._view.title)}"',
        )

    def _head(self, box: Box, span: str) -> str:
        text = f"<b>{escape(shorten(self._name(box), _NAME))}</b>"
        if box.members > 1:
            text += f" <b>x{box.members:,}</b>"
        if box.cls and box.depth:
            text += f"  {_small(shorten(box.cls, 32))}"
        shaded = f'bgcolor="{_HEAD}"'
        return f"<tr>{_cell(text, span, shaded)}</tr>"

    def _name(self, box: Box) -> str:
        if box.parent < 0:
            return self._view.title
        first = box.label.partition(".")[0]
        if not first[:1].isdigit():
            return box.label
        # Numbers alone say little: layers.0-57, not 0-57.
        above = self._view.boxes[box.parent].label.rpartition(".")[2]
        return f"{above}.{box.label}" if above else box.label

    def _sum(self, box: Box, span: str) -> str:
        text = _small(f"{counted(box.parameters, 'parameter')}, {bytes_text(box.bytes)}")
        if not self._view.has_layouts or not box.bytes or not (box.members > 1 or box.hidden):
            return f"<tr>{_cell(text, span)}</tr>"
        return f"<tr>{_cell(text, span)}</tr><tr>{_cell(self._bar(box), span)}</tr>"

    @staticmethod
    def _bar(box: Box) -> str:
        """Bytes by layout as a row of coloured cells; a share too small to see gets the least."""
        cells = []
        for token, size in box.tokens:
            if not size:
                continue
            # One column has 4 points; a cell of n columns takes n times what the box is stretched.
            columns = max(1, round(_BAR * size / box.bytes))
            tip = f'tooltip="{escape(token)}: {bytes_text(size)}"'
            wide = f'colspan="{columns}" width="{4 * columns}" height="8"'
            edge = f'border="2" color="{ALERT.hex}"' if token == "-" else f'color="{_LINE}"'
            cells.append(f'<td {wide} bgcolor="{shade(token).hex}" {edge} {tip}></td>')
        row = f"<tr>{''.join(cells)}</tr>"
        return _table([row], 'border="0" cellborder="1" cellspacing="0" cellpadding="0"')

    def _rows(self, box: Box, columns: int) -> Iterator[str]:
        rows = box.rows
        height = -(-len(rows) // columns)
        for line in range(height):
            cells: list[str] = []
            for column in range(columns):
                place = column * height + line
                cells.extend(
                    self._row(box, rows[place], place)
                    if place < len(rows)
                    else [_cell("", f'colspan="{self._width}"')]
                )
            yield f"<tr>{''.join(cells)}</tr>"

    def _row(self, box: Box, row: Row, place: int) -> Iterator[str]:
        tip = f'port="b{box.index}r{place}" tooltip="{_tooltip(self._view, row)}"'
        name = shorten(row.label, _NAME)
        times = row.count // box.count
        text = f"<b>{escape(name)}</b>" if row.mark else escape(name)
        if times > 1:
            text += f" <b>x{times}</b>"
        if row.warned:
            text = f'<font color="{ALERT.hex}"><b>!</b></font> {text}'
        yield _cell(text, tip)
        if row.kind == "link":
            same = _small(f"= {shorten(row.ties[0], _NAME)}")
            yield _cell(same, f'colspan="{self._width - 1}"')
            return
        yield _cell("  ".join(self._size(row)))
        if not self._view.has_layouts:
            return
        yield self._token(row)
        if self._with_local:
            cut = row.local_shape is not None and row.local_shape != row.shape
            text = escape(f"-> {shape_text(row.local_shape or ())}") if cut else ""
            if row.pieces:
                text += "  " + _small(f"uneven: {shorten(runs_text(row.pieces), 24)}")
            yield _cell(text)

    def _size(self, row: Row) -> Iterator[str]:
        yield escape(shape_text(row.shape))
        if row.experts is not None:
            yield f"<b>E={row.experts}</b>"
        if self._several_dtypes:
            yield _small(short_dtype(row.dtype))
        if row.kind != "parameter":
            yield _small(row.kind)
        elif not row.requires_grad:
            yield _small("frozen")
        if row.ties:
            more = f" +{len(row.ties) - 1}" if len(row.ties) > 1 else ""
            yield _small(f"tied: {shorten(row.ties[0], 28)}{more}")

    @staticmethod
    def _token(row: Row) -> str:
        if row.kind != "parameter":
            return _cell("")
        border = f'border="3" color="{ALERT.hex}"' if row.mark else f'border="1" color="{_LINE}"'
        fill = f'bgcolor="{shade(row.token).hex}"'
        text = escape(row.token) + (f" <b>{row.mark}</b>" if row.mark else "")
        return _cell(text, border, fill, align="center")

    def _closing(self, box: Box) -> Iterator[str]:
        if box.same:
            names = ", ".join(shorten(name, 30) for name in box.same[:8])
            if len(box.same) > 8:
                names += f" and {len(box.same) - 8} more"
            wrapped = textwrap.wrap(f"as in {box.same_as}: {names}", 60)
            yield '<br align="left"/>'.join(map(_small, wrapped)) + '<br align="left"/>'
        if box.hidden_rows:
            yield _small(f"... {counted(box.hidden_rows, 'more row')}")
        if box.hidden:
            yield _small(f"... {counted(box.hidden, 'module')} below")


def _tooltip(view: View, row: Row) -> str:
    lines = [row.path, f"{shape_text(row.shape)} {row.dtype}"]
    if row.count > 1:
        lines.append(f"{row.count:,} of them, {bytes_text(row.bytes)}")
    elif row.bytes:
        lines.append(bytes_text(row.bytes))
    if view.has_layouts and row.token:
        lines.append(f"layout {row.token}" + (f" on the {row.mesh} mesh" if row.mesh else ""))
    if row.local_shape is not None:
        lines.append(f"rank {view.rank} holds {shape_text(row.local_shape)}")
    if row.reduce:
        lines.append(f"gradient summed over {', '.join(row.reduce)}")
    if row.passes:
        lines.append(f"decided by {', '.join(row.passes)}" + (f", {row.rule}" if row.rule else ""))
    lines.extend(f"also named {name}" for name in row.ties[:5])
    return "&#10;".join(escape(line) for line in lines)


def header_label(view: View) -> str:
    """The label of the whole picture: what it shows, problems, and the legend."""
    lines = [f'<font point-size="16"><b>{escape(shorten(view.title, 80))}</b></font>']
    known = dict(facts(view))
    known["parameters"] += f"; {known.pop('bytes')}; {known.pop('dtype')}"
    lines.extend(f"<b>{key}</b>  {_wrapped(value)}" for key, value in known.items())
    rows = [f"<tr>{_cell(line)}</tr>" for line in lines]
    for finding in view.findings[:6]:
        text = _wrapped(f"{finding.level}: {finding.text}")
        color = _LINE if finding.level == "info" else ALERT.hex
        border = f'border="2" color="{color}"'
        rows.append(f"<tr>{_cell(text, border)}</tr>")
    if len(view.findings) > 6:
        more = _small(f"and {counted(len(view.findings) - 6, 'more problem')}")
        rows.append(f"<tr>{_cell(more)}</tr>")
    if view.has_layouts:
        rows.append(f"<tr>{_cell(_swatches(view))}</tr>")
    if view.passes:
        passes = ", ".join(f"{name} {count:,}" for name, count in view.passes)
        line = f"<b>decided by</b>  {_wrapped(passes)}"
        rows.append(f"<tr>{_cell(line)}</tr>")
    rows.append(f"<tr>{_cell(_small(drawn_text(view)))}</tr>")
    return "<" + _table(rows, 'border="0" cellborder="0" cellspacing="2" cellpadding="1"') + ">"


def _wrapped(text: str) -> str:
    lines = textwrap.wrap(text, _WRAP, break_on_hyphens=False) or [""]
    if len(lines) == 1:
        return escape(lines[0])
    return '<br align="left"/>'.join(map(escape, lines)) + '<br align="left"/>'


def _swatches(view: View) -> str:
    cells = [_cell("<b>layout</b>", 'border="0"')]
    for token, count in view.tokens[:8]:
        edge = f'border="3" color="{ALERT.hex}"' if token == "-" else f'color="{_LINE}"'
        cells.append(_cell(escape(token), f'bgcolor="{shade(token).hex}"', edge))
        meaning = token_meaning(token)
        text = f"{count:,} ({meaning})" if meaning else f"{count:,}"
        cells.append(_cell(escape(text), 'border="0"'))
    if len(view.tokens) > 8:
        cells.append(_cell(_small(f"and {len(view.tokens) - 8} more"), 'border="0"'))
    return _table(
        [f"<tr>{''.join(cells)}{_FILLER}</tr>"],
        'border="0" cellborder="1" cellspacing="0" cellpadding="3"',
    )
