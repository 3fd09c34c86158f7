"""The order that a packed dim gets, so that a contiguous cut takes an equal share of every part.

``[q; k; v]`` cut in two gives the first rank only q. With the dim reordered to q0 k0 v0 q1 k1 v1
it gives each rank its own q, its own k and its own v, in the order that the module's code expects.
Parts with rows q0 q1 q2 q3 k0 k1 v0 v1 and two pieces:

>>> order = Order(0, (("q", 4), ("k", 2), ("v", 2)), 2)
>>> list(order.blocks())
[(0, 2), (4, 5), (6, 7), (2, 4), (5, 6), (7, 8)]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from hpx.errors import LayoutError
from hpx.layout import Range

__all__ = ["Order"]


class Order(NamedTuple):
    """A dim on which parts stand one after the other, each cut and the cuts regrouped by piece.

    Attributes:
        dim: The dim.
        parts: Names of the parts and how many indices of the dim each has, in their own order.
        pieces: In how many pieces each part is cut; a piece of the reordered dim is one of each.
    """

    dim: int
    parts: tuple[tuple[str, int], ...]
    pieces: int

    def check(self, shape: Sequence[int]) -> None:
        """Whether a tensor of this shape can have the order.

        Raises:
            LayoutError: It has no such dim, another size, or a part does not divide.
        """
        total = sum(size for _, size in self.parts)
        if not 0 <= self.dim < len(shape) or shape[self.dim] != total:
            raise LayoutError(f"{self} has {total} indices on dim {self.dim}, not {list(shape)}")
        for name, size in self.parts:
            if size % self.pieces:
                raise LayoutError(
                    f"part {name} cannot be cut in {self.pieces}",
                    why=f"{size} % {self.pieces} = {size % self.pieces}",
                )

    def blocks(self) -> Iterator[Range]:
        """The ranges of the dim before, in the order in which they stand after."""
        for piece in range(self.pieces):
            start = 0
            for _, size in self.parts:
                step = size // self.pieces
                yield start + piece * step, start + (piece + 1) * step
                start += size

    def pull(self, wanted: Range) -> Iterator[Range]:
        """The ranges of the dim before that a range of the dim after is made of, in its order."""
        position = 0
        for start, end in self.blocks():
            low, high = (min(max(index - position, 0), end - start) for index in wanted)
            if low < high:
                yield start + low, start + high
            position += end - start

    def where(self) -> Iterator[Range]:
        """The ranges of the dim after where that before lies, in the order of the one before."""
        width = sum(size for _, size in self.parts) // self.pieces
        before = 0
        for _, size in self.parts:
            step = size // self.pieces
            for piece in range(self.pieces):
                start = piece * width + before
                yield start, start + step
            before += step

    def to_json(self) -> dict[str, object]:
        """``{dim, parts: [[name, size], ...], pieces}``."""
        return {
            "dim": self.dim,
            "parts": [list(part) for part in self.parts],
            "pieces": self.pieces,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Order:
        """The inverse of `to_json`."""
        parts = cast(Sequence[Sequence[object]], value["parts"])
        named = tuple((cast(str, name), cast(int, size)) for name, size in parts)
        return cls(cast(int, value["dim"]), named, cast(int, value["pieces"]))

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size}" for name, size in self.parts)
        return f"dim {self.dim}: {parts}, each in {self.pieces}"
