"""Whether two views of one memory are the same, apart, or one a part of the other."""

from __future__ import annotations

from typing import Final, NamedTuple

from hpx.errors import InputError
from hpx.graph.nodes import item_size

__all__ = ["View", "overlap_error", "overlaps", "tie_error"]

_MOST_STEPS: Final = 100_000


class View(NamedTuple):
    """How a tensor lies in its memory; sizes, strides and offset in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: str

    @property
    def extent(self) -> tuple[int, int]:
        """First and one past the last byte that the tensor can touch."""
        size = item_size(self.dtype)
        start = self.offset * size
        if 0 in self.shape:
            return (start, start)
        reach = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        return (start, start + (reach + 1) * size)


def overlaps(a: View, b: View) -> bool:
    """Whether two views of one memory have an element in common."""
    (start, stop), (first, last) = a.extent, b.extent
    if max(start, first) >= min(stop, last):
        return False
    # Columns or every other row of one matrix interleave without sharing an element.
    comparable = a.strides == b.strides and item_size(a.dtype) == item_size(b.dtype)
    return not comparable or _meet(a, b)


def overlap_error(
    a: View, b: View, named: tuple[str, str], shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> InputError:
    """The refusal of a tensor that overlaps a part of an earlier one.

    Args:
        a: The tensor.
        b: The earlier one.
        named: Their names.
        shapes: Their whole shapes, of which the views may be one rank's piece.
    """
    mine, theirs = a.extent, b.extent
    return InputError(
        f"'{named[0]}' {list(shapes[0])} overlaps a part of '{named[1]}' {list(shapes[1])}",
        why=f"bytes {mine[0]}..{mine[1]} and {theirs[0]}..{theirs[1]} of one storage",
        fix="give each its own memory (clone one), or tie them whole",
    )


def tie_error(trained: str, frozen: str) -> InputError:
    """The refusal of two names for one memory, of which only one is trained.

    Args:
        trained: The name that asks for a gradient.
        frozen: The one that does not.
    """
    return InputError(
        f"'{trained}' and '{frozen}' share one memory, and only the first is trained",
        why="a tied parameter is one parameter, trained or frozen as a whole",
        fix="give both the same requires_grad, or each its own memory (clone one)",
    )


def _meet(a: View, b: View) -> bool:
    """Whether two views of equal strides have an element in common.

    They do if index differences exist, each within its dim, whose strides add up to the difference
    of the offsets. The largest stride is settled first, which leaves few differences to go on with;
    where it does not, as in views that overlap themselves, the two count as overlapping.
    """
    dims = sorted(zip(a.strides, a.shape, b.shape, strict=True), reverse=True)
    gaps = {b.offset - a.offset}
    steps = 0
    for k, (step, size_a, size_b) in enumerate(dims):
        if step == 0:
            break
        up = sum((m - 1) * s for s, m, _ in dims[k + 1 :])
        down = sum((n - 1) * s for s, _, n in dims[k + 1 :])
        left: set[int] = set()
        for gap in gaps:
            lowest = max(1 - size_b, -((up - gap) // step))
            highest = min(size_a - 1, (gap + down) // step)
            steps += max(highest - lowest, 0)
            if steps > _MOST_STEPS:
                return True
            left.update(gap - step * index for index in range(lowest, highest + 1))
        gaps = left
    return 0 in gaps
