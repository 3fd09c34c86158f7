"""Put the page together: one file that asks for nothing and runs nothing but its own script."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hpx._text import printable

__all__ = ["SCRIPTS", "assemble", "script_json"]

SCRIPTS: Final = ("model.js", "tree.js", "list.js", "panel.js", "head.js", "main.js")
"""The parts of the script, in order; together they are one strict function."""

_HERE: Final = Path(__file__).parent
# What could end a script element, or a line in older readers of JavaScript.
_ESCAPES: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def assemble(data: Mapping[str, object], *, title: str) -> bytes:
    """The page that shows ``data``.

    Args:
        data: What `hpx.render.page.data.page_data` makes.
        title: Of the window.
    """
    style = _part("page.css")
    script = "".join(["(() => {\n'use strict';\n", *map(_part, SCRIPTS), "})();\n"])
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    text = _part("page.html")
    for word, value in (
        ("@policy@", policy),
        ("@title@", html.escape(printable(title))),
        ("@style@", style),
        ("@script@", script),
        ("@data@", script_json(data)),
    ):
        # One at a time and once each: a value with such a word in it comes after that word.
        before, _, after = text.partition(word)
        text = before + value + after
    return text.encode()


def script_json(value: object) -> str:
    r"""JSON that may stand in a script element: plain ASCII, without a character of markup.

    >>> print(script_json({"</script>": "\u2028"}))
    {"\u003c/script\u003e":"\u2028"}
    """
    return json.dumps(value, separators=(",", ":")).translate(_ESCAPES)


def _part(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
