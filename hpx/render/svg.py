"""The few elements of svg that the writers without Graphviz are made of."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Final

from hpx._text import printable

__all__ = ["CHAR", "GREY", "document", "escape", "svg_text", "title"]

CHAR: Final = 6.6
"""The width of a letter of size 11; all letters have one width, so no font has to be asked."""
GREY: Final = "#555555"
_FONT: Final = "DejaVu Sans Mono, Menlo, Consolas, monospace"


def escape(text: str) -> str:
    """Text for svg: printable, and meaning only itself."""
    return html.escape(printable(text))


def title(lines: Sequence[str]) -> str:
    """A tooltip."""
    return f"<title>{chr(10).join(map(escape, lines))}</title>"


def svg_text(
    x: float,
    y: float,
    text: str,
    *,
    color: str = "#000000",
    bold: bool = False,
    middle: bool = False,
    size: int = 11,
) -> str:
    """A line of text.

    Args:
        x: Where it begins, or has its middle.
        y: Its base line.
        text: What it says.
        color: Its colour.
        bold: Whether it is.
        middle: Whether ``x`` is its middle.
        size: Of its letters.
    """
    more = "" if color == "#000000" else f' fill="{color}"'
    more += ' font-weight="bold"' if bold else ""
    more += ' text-anchor="middle"' if middle else ""
    more += "" if size == 11 else f' font-size="{size}"'
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(text)}</text>'


def document(name: str, width: float, height: float, parts: Iterable[str]) -> str:
    """A whole picture on white.

    Args:
        name: Its title.
        width: In pixels.
        height: In pixels.
        parts: What is on it.
    """
    size = f'width="{width:.0f}" height="{height:.0f}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:.0f} {height:.0f}"'
        f' font-family="{_FONT}" font-size="11" xml:space="preserve">'
    )
    rest = [title([name]), f'<rect {size} fill="white"/>', *parts, "</svg>\n"]
    return "\n".join([head, *rest])
