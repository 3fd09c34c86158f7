"""What stands above a picture: the facts, what to look at, and the legend."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from hpx._text import counted
from hpx.render.header import drawn_text, facts
from hpx.render.labels import cell, escape, patch_cell, small, table
from hpx.render.paint import Paint
from hpx.render.palette import ALERT
from hpx.render.viewmodel import View
from hpx.render.words import shorten

__all__ = ["caption_facts", "header_label"]

_LINE: Final = "#888888"
_WRAP: Final = 110
_MOST_FINDINGS: Final = 6
_MOST_PATCHES: Final = 8
_FILLER: Final = '<td border="0" colspan="200"></td>'
"""Takes up nearly all of what a table is stretched, so that its other cells stay as they are."""


def caption_facts(view: View) -> list[tuple[str, str]]:
    """The facts of a view on few lines, as pairs of a word and its text."""
    known = dict(facts(view))
    known["parameters"] += f"; {known.pop('bytes')}; {known.pop('dtype')}"
    return list(known.items())


def header_label(view: View, paint: Paint) -> str:
    """The label of the whole picture."""
    lines = [f'<font point-size="16"><b>{escape(shorten(view.title, 80))}</b></font>']
    lines.extend(f"<b>{escape(key)}</b>  {_wrapped(value)}" for key, value in caption_facts(view))
    rows = [f"<tr>{cell(line)}</tr>" for line in lines]
    rows.extend(f"<tr>{found}</tr>" for found in _findings(view))
    title, patches = paint.legend()
    if patches and (view.has_layouts or paint.color_by != "layout"):
        rows.append(f"<tr>{cell(_swatches(title, paint))}</tr>")
    if view.passes and paint.color_by != "pass":
        passes = ", ".join(f"{name} {count:,}" for name, count in view.passes)
        rows.append(f"<tr>{cell(f'<b>decided by</b>  {_wrapped(passes)}')}</tr>")
    rows.append(f"<tr>{cell(small(drawn_text(view)))}</tr>")
    return "<" + table(rows, 'border="0" cellborder="0" cellspacing="2" cellpadding="1"') + ">"


def _findings(view: View) -> Iterator[str]:
    for finding in view.findings[:_MOST_FINDINGS]:
        color = _LINE if finding.level == "info" else ALERT.hex
        width = 1 if finding.level == "info" else 2
        text = _wrapped(f"{finding.level}: {finding.text}")
        yield cell(text, f'border="{width}" color="{color}"')
    if len(view.findings) > _MOST_FINDINGS:
        yield cell(small(f"and {counted(len(view.findings) - _MOST_FINDINGS, 'more problem')}"))


def _wrapped(text: str) -> str:
    lines = textwrap.wrap(text, _WRAP, break_on_hyphens=False) or [""]
    if len(lines) == 1:
        return escape(lines[0])
    return '<br align="left"/>'.join(map(escape, lines)) + '<br align="left"/>'


def _swatches(title: str, paint: Paint) -> str:
    """The patches in rows, each with what it stands for."""
    _, patches = paint.legend()
    cells = [cell(f"<b>{escape(title)}</b>", 'border="0"')]
    for patch, meaning in patches[:_MOST_PATCHES]:
        cells.append(patch_cell(patch))
        cells.append(cell(escape(meaning), 'border="0"'))
    if len(patches) > _MOST_PATCHES:
        cells.append(cell(small(f"and {len(patches) - _MOST_PATCHES} more"), 'border="0"'))
    if paint.has_experts:
        cells.append(cell(small("dashed: on the expert mesh"), 'border="0"'))
    return table(
        [f"<tr>{''.join(cells)}{_FILLER}</tr>"],
        'border="0" cellborder="1" cellspacing="0" cellpadding="3"',
    )
