"""Choose how a tree of boxes flows, so that the picture fits a screen and is no strip.

Sizes are estimated from the text, without Graphviz: the choice has to be the same everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from hpx.render.viewmodel import Box, View

__all__ = ["Arrangement", "Direction", "Panel", "arrange", "columns_of"]

Direction: TypeAlias = Literal["LR", "TB"]

_CHAR: Final = 6.0
_LINE: Final = 16.0
_GAP: Final = 30.0
_BEST: Final = 1.5
"""Width over height of a screen."""
_HEADER: Final = (600.0, 8 * _LINE)
_NAME: Final = 44
_ROWS: Final = 26
"""A box with more rows than this has them in several columns."""
_PANELS: Final = ((6, 0.0), (3, 0.3), (2, 0.4))
"""So many boxes without any below share a panel; and how much better that has to look."""


@dataclass(frozen=True)
class Panel:
    """Sibling boxes drawn as one node, row by row.

    Attributes:
        boxes: Their indices.
        columns: How many stand side by side.
    """

    boxes: tuple[int, ...]
    columns: int


@dataclass(frozen=True)
class Arrangement:
    """How to draw a tree.

    Attributes:
        direction: Where it flows.
        panels: The panels, by the index of the box above.
    """

    direction: Direction
    panels: dict[int, Panel]


def columns_of(box: Box) -> int:
    """In how many columns the rows of a box stand, so that it is not a strip."""
    count = len(box.rows)
    if count <= _ROWS:
        return 1
    return max(2, min(8, round(math.sqrt(_BEST * count * _LINE / (_row_chars(box) * _CHAR)))))


def arrange(view: View, direction: Direction | None = None) -> Arrangement:
    """The arrangement that comes nearest to a screen.

    Args:
        view: The view.
        direction: Where it has to flow; free if not given.
    """
    best: Arrangement | None = None
    least = math.inf
    sizes = [_size(box) for box in view.boxes]
    for flow in _flows(direction):
        for fewest, price in _PANELS:
            found = Arrangement(flow, _panels(view, flow, fewest, sizes))
            width, height = _extent(view, found, sizes)
            width, height = max(width, _HEADER[0]), height + _HEADER[1]
            strip = abs(math.log(width / height / _BEST)) + price
            if strip < least:
                best, least = found, strip
    assert best is not None
    return best


def _flows(direction: Direction | None) -> Iterator[Direction]:
    if direction is not None:
        yield direction
        return
    yield "TB"
    yield "LR"


def _row_chars(box: Box) -> int:
    """Characters of the widest row."""
    rows = box.rows
    name = min(_NAME, max((len(row.label) for row in rows), default=0))
    shape = max((len(str(row.shape)) for row in rows), default=0)
    token = max((len(row.token) for row in rows), default=0)
    cut = any(row.local_shape not in (None, row.shape) for row in rows)
    return name + shape + token + cut * shape + 3


def _size(box: Box) -> tuple[float, float]:
    """Roughly how wide and high a box is, in points."""
    columns = columns_of(box)
    chars = max(_row_chars(box) * columns, len(box.label) + len(box.cls), 24)
    lines = 1 + -(-len(box.rows) // columns) + len(box.notes)
    lines += bool(box.same) + bool(box.hidden) + (2 if box.members > 1 else 0)
    return chars * _CHAR, lines * _LINE


def _panels(
    view: View, flow: Direction, fewest: int, sizes: list[tuple[float, float]]
) -> dict[int, Panel]:
    found: dict[int, Panel] = {}
    for box in view.boxes:
        leaves = tuple(index for index in box.below if not view.boxes[index].below)
        if len(leaves) < fewest:
            continue
        width = sum(sizes[index][0] for index in leaves) / len(leaves)
        height = sum(sizes[index][1] for index in leaves) / len(leaves)
        columns = round(math.sqrt(len(leaves) * height * _BEST / width))
        if len(leaves) < _PANELS[0][0]:  # a few: across the flow, as that is what is too long
            columns = len(leaves) if flow == "LR" else 1
        found[box.index] = Panel(leaves, max(1, min(columns, len(leaves))))
    return found


def _extent(
    view: View, arrangement: Arrangement, sizes: list[tuple[float, float]]
) -> tuple[float, float]:
    """Along the flow the longest box of every level, across it the sum of what is below."""
    down = arrangement.direction == "TB"
    along: dict[int, float] = {}
    across = [0.0] * len(view.boxes)
    in_panel = {index for panel in arrangement.panels.values() for index in panel.boxes}

    def add(size: tuple[float, float], depth: int, below: float) -> float:
        thick, long = size if down else (size[1], size[0])
        along[depth] = max(along.get(depth, 0.0), long)
        return max(thick + _GAP, below)

    for box in reversed(view.boxes):
        if box.index in in_panel:
            continue
        panel = arrangement.panels.get(box.index)
        if panel is not None:
            across[box.index] += add(_panel_size(panel, sizes), box.depth + 1, 0.0)
        across[box.index] = add(sizes[box.index], box.depth, across[box.index])
        if box.parent >= 0:
            across[box.parent] += across[box.index]
    length = sum(along.values()) + _GAP * len(along)
    return (across[0], length) if down else (length, across[0])


def _panel_size(panel: Panel, sizes: list[tuple[float, float]]) -> tuple[float, float]:
    width = max(sizes[index][0] for index in panel.boxes) * panel.columns
    height = max(sizes[index][1] for index in panel.boxes)
    return width, height * -(-len(panel.boxes) // panel.columns)
