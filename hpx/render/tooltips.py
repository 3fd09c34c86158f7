"""Graphviz's svg made fit for browsers: tooltips that they show, letters that stay in their places.

Graphviz writes a tooltip as ``<a xlink:title="...">``, a link to nowhere, and as ``title`` the name
of its own node (``n3``), which means nothing to a reader.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["with_titles"]

_LINK: Final = re.compile(r'<a xlink:title="([^"]*)">')
_OWN: Final = re.compile(
    r"(<g id=\"(?:node|edge)\d+\" class=\"(?:node|edge)\">\n)<title>.*?</title>\n"
)
_SIZE: Final = re.compile(r'font-size="([0-9.]+)"')
_NARROWER: Final = 0.95
"""Browsers set the same letters up to 4 % wider than Graphviz reckons, over what stands beside."""
_CHROME: Final = re.compile(r"<!--.*?-->\n?", re.DOTALL)


def with_titles(svg: str) -> str:
    r"""The picture with its tooltips as ``title`` elements, and letters a little smaller.

    Args:
        svg: What Graphviz wrote.

    >>> with_titles('<g id="a_n0"><a xlink:title="w&#10;2 bytes">\n<text>w</text>\n</a>\n</g>')
    '<g id="a_n0"><g><title>w&#10;2 bytes</title>\n<text>w</text>\n</g>\n</g>'
    """
    svg = _OWN.sub(r"\1", _CHROME.sub("", svg))
    svg = _SIZE.sub(lambda found: f'font-size="{float(found[1]) * _NARROWER:.2f}"', svg)
    return _LINK.sub(r"<g><title>\1</title>", svg).replace("</a>", "</g>")
