"""A picture of who holds what of one parameter, for any number of dims.

The tensor is drawn as a grid of its pieces: the last two dims that are cut run down and across, and
the other cut dims give one grid for each of their pieces. A piece names the ranks that hold it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, TypeAlias

from hpx._text import counted, shape_text
from hpx.holding import ranges_text
from hpx.layout import Layout, chunk_range
from hpx.mesh import MeshSpec
from hpx.render.palette import ALERT, shade
from hpx.render.ranks import Holding, RankPiece, nested_place, ranks_label, shown_places
from hpx.render.svg import CHAR, GREY, document, svg_text, title
from hpx.render.words import shorten

__all__ = ["ranks_svg"]

_LINE: Final = 16
_MARGIN: Final = 14
_HEIGHT: Final = 26
"""Of a piece."""
_GAP: Final = 44
"""Where pieces are left out."""
_MOST: Final = 12
"""So many pieces of a dim are drawn; of more, the first and the last."""
_MOST_GRIDS: Final = 6
_WIDE: Final = 1560

_Place: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class _Side:
    """One dim that is cut, as a side of a grid.

    Attributes:
        dim: The dim; None for a side that nothing cuts.
        axes: The axes that cut it, with their sizes, in the order of the cuts.
        size: Its size.
        numbers: Which of its pieces are drawn.
    """

    dim: int | None
    axes: tuple[tuple[str, int], ...]
    size: int
    numbers: tuple[int, ...]

    def places(self) -> list[tuple[int, _Place]]:
        """The pieces that are drawn: how many are left out before each, and where it is."""
        before = (-1, *self.numbers)
        return [
            (number - last - 1, nested_place(self.axes, number))
            for last, number in zip(before, self.numbers, strict=False)
        ]

    def labels(self, place: _Place) -> tuple[str, str]:
        """``("tp=1 dp=0", "4:8")``."""
        if self.dim is None:
            return "", ""
        start, end = 0, self.size
        for (_, parts), at in zip(self.axes, place, strict=True):
            first, last = chunk_range(end - start, parts, at)
            start, end = start + first, start + last
        named = zip(self.axes, place, strict=True)
        return " ".join(f"{axis}={at}" for (axis, _), at in named), f"{start}:{end}"


_NO_SIDE: Final = _Side(None, (), 0, (0,))


def ranks_svg(
    shape: Sequence[int],
    layout: Layout,
    mesh: MeshSpec,
    *,
    name: str = "",
    rank: int | None = None,
) -> str:
    """Who holds what, as an svg.

    Args:
        shape: The global shape.
        layout: A resolved layout, with or without further cuts.
        mesh: The mesh.
        name: The name of the parameter.
        rank: A rank whose piece stands out and is drawn in any case.

    Raises:
        LayoutError: See `hpx.render.ranks.Holding`.
        MeshError: There is no such rank.
    """
    holding = Holding(shape, layout, mesh)
    mine = None if rank is None else holding.piece_of(rank)
    return _Drawing(holding, name, rank, mine).svg()


class _Drawing:
    """Draws one holding."""

    def __init__(
        self, holding: Holding, name: str, rank: int | None, mine: RankPiece | None
    ) -> None:
        self.holding = holding
        self.name = name
        self.rank = rank
        self.mine = mine
        self.color = shade(str(holding.layout)).hex
        dims = sorted({dim for _, dim in holding.layout.shards})
        one_across = dims == [1]
        self.across = self._side(dims[-1]) if len(dims) > 1 or one_across else _NO_SIDE
        self.down = self._side(dims[-2:][0]) if dims and not one_across else _NO_SIDE
        self.others = [self._side(dim) for dim in dims[:-2]]
        self.label_width = self._label_width()
        self.cell_width = self._cell_width()
        self.parts: list[str] = []

    def _side(self, dim: int) -> _Side:
        sizes = dict(self.holding.axes)
        axes = tuple((axis, sizes[axis]) for axis in self.holding.layout.axes_on(dim))
        own = None
        if self.mine is not None:
            at = dict(self.mine.at)
            own = [at[axis] for axis, _ in axes]
        numbers = shown_places(axes, _MOST, own)
        return _Side(dim, axes, self.holding.shape[dim], tuple(numbers))

    def _label_width(self) -> float:
        if self.down.dim is None:
            return 7 * CHAR
        return (
            max(len("  ".join(self.down.labels(at))) for _, at in self.down.places()) + 2
        ) * CHAR

    def _cell_width(self) -> float:
        """Wide enough for the ranks of any piece, and for the label above it."""
        last = math.prod(size for _, size in self.holding.axes) - 1
        texts = [_ranks(self.holding.piece_at(number)) for number in (0, last)]
        texts += [text for _, at in self.across.places() for text in self.across.labels(at)]
        return (max(map(len, texts)) + 2) * CHAR

    def svg(self) -> str:
        """The whole picture."""
        y, right = self._title()
        wide, high = self._grid_size()
        grids = list(product(*(side.places() for side in self.others)))
        drawn = grids if len(grids) <= _MOST_GRIDS else [*grids[: _MOST_GRIDS - 1], grids[-1]]
        columns = max(1, min(len(drawn), int(_WIDE // wide)))
        for number, places in enumerate(drawn):
            row, column = divmod(number, columns)
            at = [place for _, place in places]
            self._grid(at, _MARGIN + column * wide, y + row * high)
        y += -(-len(drawn) // columns) * high
        hidden = math.prod(size for side in self.others for _, size in side.axes) - len(drawn)
        if hidden > 0:
            self._say(_MARGIN, y + 12, f"and {counted(hidden, 'more grid')} like these")
            y += _LINE
        width = max(columns * wide, right) + 2 * _MARGIN
        return document(self.name or "who holds what", width, y + _MARGIN, self.parts)

    def _grid_size(self) -> tuple[float, float]:
        across, down = self.across.places(), self.down.places()
        wide = self.label_width + len(across) * self.cell_width + 24
        high = len(down) * _HEIGHT + 18.0
        wide += _GAP * sum(skipped > 0 for skipped, _ in across)
        high += _LINE * sum(skipped > 0 for skipped, _ in down)
        high += 2 * _LINE * (self.across.dim is not None) + _LINE * bool(self.others)
        return wide, high

    def _title(self) -> tuple[float, float]:
        """What it is about; the height and width that this takes."""
        holding = self.holding
        lines = [holding.title()]
        cut = {dim for _, dim in holding.layout.shards}
        whole = [f"dim {dim} ({n:,})" for dim, n in enumerate(holding.shape) if dim not in cut]
        if whole and cut:
            lines.append(f"whole in every piece: {', '.join(whole)}")
        if holding.empty_ranks:
            lines.append(holding.empty_text())
        if self.mine is not None:
            held = "nothing" if self.mine.is_empty else ranges_text(self.mine.ranges)
            lines.append(f"rank {self.rank} holds {held}")
        head = f"{shorten(self.name, 90)}  {shape_text(holding.shape)}".strip()
        self.parts.append(svg_text(_MARGIN, _MARGIN + 14, head, bold=True, size=15))
        for place, line in enumerate(lines):
            self.parts.append(svg_text(_MARGIN, _MARGIN + 38 + place * _LINE, line))
        right = max(len(head) * 9.1, *(len(line) * CHAR for line in lines))
        return _MARGIN + 34.0 + len(lines) * _LINE, right

    def _say(self, x: float, y: float, text: str, *, middle: bool = False) -> None:
        self.parts.append(svg_text(x, y, text, color=GREY, middle=middle))

    def _grid(self, others: Sequence[_Place], x: float, y: float) -> None:
        """One grid: labels above and to the left, and a cell for each piece."""
        fixed: dict[str, int] = {}
        texts = []
        for side, place in zip(self.others, others, strict=True):
            fixed.update(zip(dict(side.axes), place, strict=True))
            texts.append(f"dim {side.dim}: {'  '.join(side.labels(place))}")
        if texts:
            self.parts.append(svg_text(x, y + 12, ", ".join(texts), bold=True))
            y += _LINE
        if self.across.dim is not None:
            y = self._above(x, y)
        for skipped, place in self.down.places():
            if skipped:
                self._say(x, y + 12, f"... {counted(skipped, 'more piece')}")
                y += _LINE
            self._say(x, y + _HEIGHT / 2 + 3, "  ".join(self.down.labels(place)))
            self._row(fixed | dict(zip(dict(self.down.axes), place, strict=True)), x, y)
            y += _HEIGHT

    def _columns(self, x: float) -> list[tuple[int, float, _Place]]:
        """How many are left out before each column, where it stands, and its place."""
        found = []
        left = x + self.label_width
        for skipped, place in self.across.places():
            left += _GAP if skipped else 0
            found.append((skipped, left, place))
            left += self.cell_width
        return found

    def _above(self, x: float, y: float) -> float:
        self._say(x, y + 11, f"dim {self.across.dim}")
        for skipped, left, place in self._columns(x):
            if skipped:
                self._say(left - _GAP / 2, y + 24, f"+{skipped:,}", middle=True)
            for line, text in enumerate(self.across.labels(place)):
                self._say(left + self.cell_width / 2, y + 11 + line * 13, text, middle=True)
        return y + 2 * _LINE

    def _row(self, at: dict[str, int], x: float, y: float) -> None:
        for _, left, place in self._columns(x):
            whole = at | dict(zip(dict(self.across.axes), place, strict=True))
            piece = self.holding.piece([whole[axis] for axis, _ in self.holding.axes])
            self._cell(piece, left, y)

    def _cell(self, piece: RankPiece, x: float, y: float) -> None:
        own = self.mine is not None and piece.at == self.mine.at
        outer = piece.at[0][1] if piece.at else 0
        strength = 1.0 if own else 0.45 if outer % 2 == 0 else 0.15
        look = f'fill="{self.color}" fill-opacity="{strength}"'
        look += ' stroke="#000000" stroke-width="2.5"' if own else ' stroke="#888888"'
        if piece.is_empty:
            look = f'fill="none" stroke="{ALERT.hex}" stroke-dasharray="3,3"'
        held = f"{ranges_text(piece.ranges)} = {shape_text(piece.shape)}"
        tip = [
            piece.position,
            "nothing" if piece.is_empty else held,
            f"{counted(len(piece.ranks), 'rank')}: {ranks_label(piece.ranks)}",
        ]
        wide = self.cell_width - 2
        self.parts.append(
            f'<g>{title(tip)}<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}"'
            f' height="{_HEIGHT - 2}" {look}/>'
            f"{svg_text(x + wide / 2, y + _HEIGHT / 2 + 3, _ranks(piece), middle=True)}</g>"
        )


def _ranks(piece: RankPiece) -> str:
    word = "rank" if len(piece.ranks) == 1 else "ranks"
    return f"{word} {ranks_label(piece.ranks)}" + (": none" if piece.is_empty else "")
