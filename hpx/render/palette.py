"""Colours by layout: Okabe and Ito's set, which colour-blind readers can tell apart.

A colour only repeats what the printed token says, so a picture reads the same in grey.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = ["ALERT", "CHANGES", "SCALE", "Shade", "kind_shade", "shade"]


class Shade(NamedTuple):
    """A colour for a background, and the nearest one that a terminal has."""

    hex: str
    terminal: int


ALERT: Final = Shade("#D55E00", 202)
"""Unset, in conflict, or unlike its siblings."""

CHANGES: Final = {
    "added": Shade("#009E73", 36),
    "removed": Shade("#D55E00", 202),
    "changed": Shade("#0072B2", 25),
}
"""Of a diff; each is a word, too."""

SCALE: Final = (
    Shade("#F7FBFF", 255),
    Shade("#DCEAF6", 189),
    Shade("#B3D3EA", 152),
    Shade("#7FB4DA", 110),
    Shade("#4C93C6", 68),
)
"""From little to much."""

_BY_DIM: Final = {
    0: Shade("#E69F00", 214),
    1: Shade("#56B4E9", 74),
    2: Shade("#009E73", 36),
}
_OTHER: Final = Shade("#F0E442", 227)
_WHOLE: Final = Shade("#FFFFFF", 250)
_KINDS: Final = (
    *_BY_DIM.values(),
    _OTHER,
    Shade("#CC79A7", 175),
    Shade("#BBBBBB", 250),
)
_CUT: Final = re.compile(r"S\((\d+)\)")


def shade(token: str) -> Shade:
    """The colour of a layout's token: by the dim it cuts; another if it cuts several.

    >>> shade("tp:S(0)").hex, shade("R").hex, shade("tp:S(0),ep:S(1)").hex
    ('#E69F00', '#FFFFFF', '#F0E442')
    """
    dims = {int(dim) for dim in _CUT.findall(token)}
    if len(dims) == 1:
        return _BY_DIM.get(dims.pop(), _OTHER)
    return _OTHER if dims or "P" in token or token == "mixed" else _WHOLE


def kind_shade(place: int) -> Shade:
    """A colour for the passes or dtypes of a picture, by their place; the last for all others."""
    return _KINDS[min(place, len(_KINDS) - 1)]
