"""Who holds what of one parameter: every piece, the ranks that hold it, and where it lies.

Ranks that differ only on axes that do not cut hold the same piece; they are told as ranges with a
step, so that 16,384 ranks take as many lines as there are pieces. Any number of dims.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from hpx._text import counted, printable, shape_text
from hpx.errors import LayoutError
from hpx.holding import ranges_text
from hpx.layout import Layout, Range, index_range, is_even
from hpx.mesh import MeshSpec, MeshView

__all__ = ["Holding", "RankPiece", "nested_place", "ranks_label", "ranks_text", "shown_places"]

_MOST_PIECES = 1 << 20
_SHOWN = 16
"""So many pieces are listed; of more, the first and the last."""
_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class RankPiece:
    """A piece of a tensor and who holds it.

    Attributes:
        at: The position on the axes that cut, in the order of the cuts.
        ranges: First index and one past the last, of every dim.
        ranks: The global ranks.
    """

    at: tuple[tuple[str, int], ...]
    ranges: tuple[Range, ...]
    ranks: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The local shape."""
        return tuple(end - start for start, end in self.ranges)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to hold."""
        return 0 in self.shape

    @property
    def position(self) -> str:
        """``tp=1 dp=0``; ``everywhere`` if nothing cuts."""
        return " ".join(f"{axis}={place}" for axis, place in self.at) or "everywhere"


class Holding:
    """The pieces of one parameter over a mesh.

    Args:
        shape: The global shape.
        layout: A resolved layout, further cuts such as FSDP's included (`Layout.then`).
        mesh: The mesh.

    Attributes:
        shape: The global shape.
        layout: The layout.
        view: The mesh view that it is cut on.
        axes: The axes that cut, with their sizes, in the order of the cuts.
        num_pieces: How many positions there are on them.

    Raises:
        LayoutError: The layout does not fit the tensor or the mesh, or has over a million pieces.
        MeshError: The layout is cut on ``ep`` and the mesh has none.
    """

    def __init__(self, shape: Sequence[int], layout: Layout, mesh: MeshSpec) -> None:
        self.shape = tuple(shape)
        self.layout = layout
        self.view: MeshView = mesh.view_of(layout)
        sizes = self.view.sizes
        index_range(self.shape, layout, sizes, dict.fromkeys(sizes, 0))  # refuses what cannot be
        self.axes = tuple((axis, sizes[axis]) for axis, _ in layout.shards)
        self.num_pieces = math.prod(size for _, size in self.axes)
        if self.num_pieces > _MOST_PIECES:
            raise LayoutError(
                f"layout {layout} has {self.num_pieces:,} pieces",
                why=f"{_MOST_PIECES:,} is the most that is told of",
            )

    def pieces(self) -> Iterator[RankPiece]:
        """All of them, in the order of the cuts."""
        for position in product(*(range(size) for _, size in self.axes)):
            yield self.piece(position)

    def piece(self, position: Sequence[int]) -> RankPiece:
        """The one at a position on `axes`."""
        at = tuple((axis, place) for (axis, _), place in zip(self.axes, position, strict=True))
        ranges = index_range(self.shape, self.layout, self.view.sizes, dict(at))
        return RankPiece(at, ranges, self.ranks_at(dict(at)))

    def piece_of(self, rank: int) -> RankPiece:
        """What one rank holds.

        Raises:
            MeshError: There is no such rank.
        """
        coordinate = self.view.coordinate(rank)
        return self.piece([coordinate[axis] for axis, _ in self.axes])

    def ranks_at(self, at: dict[str, int]) -> tuple[int, ...]:
        """The ranks at one position, whatever theirs is on the axes that do not cut."""
        places = [0]
        for axis, size in self.view.axes:
            steps = (at[axis],) if axis in at else range(size)
            places = [place * size + step for place in places for step in steps]
        return tuple(sorted(self.view.ranks[place] for place in places))

    def piece_at(self, place: int) -> RankPiece:
        """The one with this number, in the order of the cuts."""
        return self.piece(nested_place(self.axes, place))

    def shown(self, most: int, mine: RankPiece | None) -> list[int]:
        """The numbers of the pieces to show: the first, the last, and that of a rank."""
        own = None if mine is None else [at for _, at in mine.at]
        return shown_places(self.axes, most, own)

    @cached_property
    def empty_ranks(self) -> list[int]:
        """The ranks that hold nothing, because the cuts are uneven."""
        if is_even(self.shape, self.layout, self.view.sizes) and 0 not in self.shape:
            return []
        return sorted(rank for piece in self.pieces() if piece.is_empty for rank in piece.ranks)

    def empty_text(self) -> str:
        """How many they are, and which."""
        holds = "holds" if len(self.empty_ranks) == 1 else "hold"
        ranks = ranks_label(self.empty_ranks)
        return f"{counted(len(self.empty_ranks), 'rank')} {holds} nothing: {ranks}"

    @property
    def copies(self) -> int:
        """How many ranks hold each piece."""
        return len(self.view.ranks) // self.num_pieces

    def title(self) -> str:
        """Mesh and layout, and how many pieces there are."""
        view, ranks = self.view, len(self.view.ranks)
        head = f"layout {self.layout} on the {view.name} mesh {view}"
        if self.num_pieces == 1:
            return f"{head}: whole on each of {counted(ranks, 'rank')}"
        copies = "each on one" if self.copies == 1 else f"{self.copies:,} copies of each"
        return f"{head}: {counted(self.num_pieces, 'piece')} on {counted(ranks, 'rank')}, {copies}"


def nested_place(axes: Sequence[tuple[str, int]], number: int) -> tuple[int, ...]:
    """The position on nested axes that has this number.

    >>> nested_place((("tp", 4), ("dp", 2)), 5)
    (2, 1)
    """
    places: list[int] = []
    for _, size in reversed(axes):
        number, at = divmod(number, size)
        places.append(at)
    return tuple(reversed(places))


def shown_places(
    axes: Sequence[tuple[str, int]], most: int, own: Sequence[int] | None
) -> list[int]:
    """Numbers of positions on nested axes: all, or the first, the last and ``own``.

    >>> shown_places((("tp", 4), ("dp", 8)), 4, (1, 0))
    [0, 1, 2, 8, 31]
    """
    count = math.prod(size for _, size in axes)
    shown = set(range(count)) if count <= most else {*range(most - 1), count - 1}
    if own is not None:
        number = 0
        for (_, size), at in zip(axes, own, strict=True):
            number = number * size + at
        shown.add(number)
    return sorted(shown)


def ranks_label(ranks: Sequence[int]) -> str:
    """Ranks as blocks with a step.

    >>> ranks_label((5,)), ranks_label(range(8)), ranks_label(range(1, 16384, 8))
    ('5', '0-7', '1, 9, ..., 16377')
    >>> ranks_label((0, 1, 4, 5)), ranks_label([r for r in range(64) if r % 4 < 2])
    ('0-1, 4-5', '0-1, 4-5, ..., 60-61')
    """
    blocks: list[list[int]] = []
    for rank in ranks:
        if blocks and rank == blocks[-1][1] + 1:
            blocks[-1][1] = rank
        else:
            blocks.append([rank, rank])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in blocks]
    if len(texts) > _BLOCKS:
        texts = [*texts[:2], "...", texts[-1]]
    return ", ".join(texts)


def ranks_text(
    shape: Sequence[int],
    layout: Layout,
    mesh: MeshSpec,
    *,
    name: str = "",
    rank: int | None = None,
    shown: int = _SHOWN,
) -> str:
    """Who holds what, as a table in plain text.

    Args:
        shape: The global shape.
        layout: A resolved layout, with or without further cuts.
        mesh: The mesh.
        name: The name of the parameter.
        rank: A rank that is marked, and listed in any case.
        shown: How many pieces are listed.

    Raises:
        LayoutError: See `Holding`.
        MeshError: See `Holding`; or there is no such rank.

    >>> mesh = MeshSpec.parse("dp=2,tp=2")
    >>> print(ranks_text((5, 4), Layout.parse("tp:S(0)"), mesh, name="w"), end="")
    w  [5, 4]
    layout tp:S(0) on the dense mesh dp=2,tp=2: 2 pieces on 4 ranks, 2 copies of each
      at    indices     local   ranks
      tp=0  [0:3, 0:4]  [3, 4]  0, 2
      tp=1  [3:5, 0:4]  [2, 4]  1, 3
    """
    holding = Holding(shape, layout, mesh)
    mine = None if rank is None else holding.piece_of(rank)
    lines = [f"{printable(name)}  {shape_text(shape)}".strip(), holding.title()]
    rows: list[tuple[str, ...]] = [("at", "indices", "local", "ranks")]
    places = holding.shown(shown, mine)
    kept = [holding.piece_at(place) for place in places]
    rows.extend(_columns(piece) for piece in kept)
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row, place, before in zip(rows, [-1, *places], [-1, -1, *places], strict=False):
        if place - before > 1:
            lines.append(f"  ... {counted(place - before - 1, 'more piece')}")
        own = mine is not None and place >= 0 and holding.piece_at(place).at == mine.at
        cells = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        lines.append(f"{'>' if own else ' '} {cells}".rstrip())
    if holding.empty_ranks:
        lines.append(holding.empty_text())
    if rank is not None and mine is not None:
        holds = "nothing" if mine.is_empty else ranges_text(mine.ranges)
        lines.append(f"rank {rank} holds {holds}, at {_coordinate(holding, rank)}")
    return "\n".join(lines) + "\n"


def _columns(piece: RankPiece) -> tuple[str, str, str, str]:
    local = "nothing" if piece.is_empty else shape_text(piece.shape)
    ranks = ranks_label(piece.ranks)
    if "..." in ranks:
        ranks += f"  ({len(piece.ranks):,} ranks)"
    return piece.position, ranges_text(piece.ranges), local, ranks


def _coordinate(holding: Holding, rank: int) -> str:
    return ", ".join(f"{axis}={at}" for axis, at in holding.view.coordinate(rank).items())
