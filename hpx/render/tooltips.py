"""Tooltips of Graphviz's svg as every viewer shows them: ``title`` elements, not link titles.

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
_CHROME: Final = re.compile(r"<!--.*?-->\n?", re.DOTALL)


def with_titles(svg: str) -> str:
    r"""The picture with its tooltips as ``title`` elements.

    Args:
        svg: What Graphviz wrote.

    >>> with_titles('<g id="a_n0"><a xlink:title="w&#10;2 bytes">\n<text>w</text>\n</a>\n</g>')
    '<g id="a_n0"><g><title>w&#10;2 bytes</title>\n<text>w</text>\n</g>\n</g>'
    """
    svg = _OWN.sub(r"\1", _CHROME.sub("", svg))
    return _LINK.sub(r"<g><title>\1</title>", svg).replace("</a>", "</g>")
