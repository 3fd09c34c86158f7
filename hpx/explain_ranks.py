"""The part of an explanation that says what ranks hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from hpx._text import bytes_text, counted, shape_text
from hpx.holding import Piece, Pulled, pieces, ranges_text, uneven
from hpx.layout import REPLICATED
from hpx.lineage import Stack

if TYPE_CHECKING:
    from hpx.lookup import Found, Names
    from hpx.params import Param
    from hpx.run import Run

__all__ = ["held_by_rank", "held_by_ranks", "slot_holders"]

_MAX_PIECES = 8
_MAX_POSITIONS = 4096


def held_by_ranks(run: Run, param: Param) -> Iterator[str]:
    """The mesh, the local shape and the index ranges by position."""
    layout = param.layout or REPLICATED
    view = run.mesh.view_of(layout)
    yield ""
    yield "what a rank holds"
    yield f"  {view.name} mesh {view} ({counted(run.mesh.world_size, 'rank')}), layout {layout}"
    if not layout.shards:
        yield f"  the whole tensor: {shape_text(param.shape)}, {bytes_text(param.bytes)}"
    else:
        cuts = ", ".join(f"dim {dim} in {view.size(axis)} on {axis}" for axis, dim in layout.shards)
        yield (
            f"  {shape_text(param.local_shape)}, {bytes_text(param.local_bytes)} of "
            f"{bytes_text(param.bytes)}: {cuts}"
        )
        yield from _pieces(run, param)
        if (sizes := uneven(param, run.mesh)) is not None:
            yield f"  uneven: {sizes}"
    same = [axis for axis, size in view.axes if layout.dim(axis) is None and size > 1]
    if same:
        yield f"  the same at every position on {', '.join(same)}"
    if param.reduce:
        yield f"  its gradient must be summed over {', '.join(param.reduce)}"


def _pieces(run: Run, param: Param) -> Iterator[str]:
    found = list(islice(pieces(param, run.mesh), _MAX_POSITIONS))
    width = max(len(piece.position) for piece in found)
    lines = [f"    {piece.position:<{width}}  {ranges_text(piece.ranges)}" for piece in found]
    if len(lines) <= _MAX_PIECES:
        yield from lines
        return
    yield from lines[: _MAX_PIECES // 2]
    yield f"    {'...':<{width}}  --rank R shows any other"
    yield lines[-1]


def slot_holders(run: Run, names: Names, found: Found, param: Param) -> Iterator[str]:
    """Where the slot lies that an original tensor became."""
    lineage = names.lineages[found.node][0]
    if not isinstance(lineage, Stack) or found.slot is None or param.layout is None:
        return
    slot = found.slot.index[0]
    holders = [
        piece.position
        for piece in islice(pieces(param, run.mesh), found.slot.counts[0] * 64)
        if piece.ranges[lineage.dim][0] <= slot < piece.ranges[lineage.dim][1]
    ]
    if holders and holders != [""]:
        yield f"  slot {slot}, which {found.path} became, is held at {' and '.join(holders)}"


def held_by_rank(
    rank: int | None, param: Param, piece: Piece, pulled: Iterable[Pulled]
) -> Iterator[str]:
    """What one rank holds, and the originals behind it."""
    size = param.bytes // max(1, math.prod(param.shape)) * piece.num_elements
    yield ""
    yield f"rank {rank}, at {piece.position}"
    yield f"  holds {ranges_text(piece.ranges)} = {shape_text(piece.shape)}, {bytes_text(size)}"
    items = list(pulled)
    layout = param.layout or REPLICATED
    if items and layout.dim("ep") is not None:
        dim = layout.dim("ep") or 0
        start, end = piece.ranges[dim]
        yield f"  experts {start}..{end - 1} of {param.shape[dim]}"
    for item in items:
        yield f"  = {item}"
    if piece.num_elements == 0:
        yield "  which is nothing: this rank is empty"
