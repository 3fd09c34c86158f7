"""Choose how a tree of boxes flows, so that the picture fits a screen and is no strip."""

from __future__ import annotations

import math
from typing import Final, Literal, TypeAlias

from hpx.render.labels import columns_of
from hpx.render.viewmodel import Box, View

__all__ = ["Direction", "best_direction", "stagger"]

Direction: TypeAlias = Literal["LR", "TB"]

_CHAR: Final = 6.0
_LINE: Final = 16.0
_GAP: Final = 30.0
_BEST: Final = 1.5
"""Width over height of a screen, less what stands above the tree."""


def _size(box: Box) -> tuple[float, float]:
    """Roughly how wide and high a box is, in points."""
    rows = box.rows
    columns = columns_of(box)
    name = max((len(row.label) for row in rows), default=0)
    layout = max((len(row.token) + 2 * len(str(row.shape)) for row in rows), default=0)
    width = max((min(name, 44) + layout) * columns + 6, len(box.label) + len(box.cls), 30)
    lines = 1 + -(-len(rows) // columns) + len(box.notes) + bool(box.same) + 2 * bool(box.hidden)
    return width * _CHAR, lines * _LINE


def _extent(view: View, direction: Direction) -> tuple[float, float]:
    """Along the flow the highest box of every level, across it the sum of what is below."""
    along: dict[int, float] = {}
    across = [0.0] * len(view.boxes)
    for box in reversed(view.boxes):
        width, height = _size(box)
        thick, long = (width, height) if direction == "TB" else (height, width)
        along[box.depth] = max(along.get(box.depth, 0.0), long)
        across[box.index] = max(thick + _GAP, across[box.index])
        if box.parent >= 0:
            across[box.parent] += across[box.index]
    length = sum(along.values()) + 2 * _GAP * len(along)
    return (across[0], length) if direction == "TB" else (length, across[0])


def best_direction(view: View) -> Direction:
    """Top-down or left-right, whichever comes nearer to a screen."""

    def strip(direction: Direction) -> float:
        width, height = _extent(view, direction)
        return abs(math.log(width / height / _BEST))

    return "TB" if strip("TB") <= strip("LR") else "LR"


def stagger(view: View, box: Box, direction: Direction) -> int:
    """Over how many levels to spread the boxes below one box; 1 where they fit side by side."""
    leaves = [view.boxes[index] for index in box.below if not view.boxes[index].below]
    if len(leaves) < 4 or len(leaves) < len(box.below):
        return 1
    sizes = [_size(leaf) for leaf in leaves]
    width, height = (sum(side) / len(sizes) for side in zip(*sizes, strict=True))
    if direction == "LR":
        width, height = height * _BEST * _BEST, width
    # n boxes on r levels are n / r * width wide and r * height high.
    return max(1, round(math.sqrt(len(leaves) * width / ((height + 2 * _GAP) * _BEST))))
