"""What the derivation finds: blocks of matrices that are cut together, a choice a parameter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

from hpx.derive.layers import Layer
from hpx.layout import REPLICATED, Layout

__all__ = ["Block", "Choice", "Kind", "Origin", "PackedFact", "cut", "said_by"]

Kind: TypeAlias = Literal["attention", "mlp"]
Origin: TypeAlias = Literal["model", "structure", "names", "given"]
"""Who decided: the model itself, shapes and integers, the table of names, or a plan in another form
that a user gave."""

_WORDS: Final = {
    "model": "declared by the model",
    "structure": "from structure",
    "names": "from names",
    "given": "in the given plan",
}


def said_by(origin: Origin) -> str:
    """How a reason names its origin."""
    return _WORDS[origin]


def cut(axis: str, dim: int) -> Layout:
    """A layout with one cut."""
    return Layout(((axis, dim),))


class Choice(NamedTuple):
    """What is decided for one parameter.

    Attributes:
        layout: Its layout.
        reason: Why, with the numbers.
        origin: Who decided.
        heading: The group of the plan file that it stands in.
    """

    layout: Layout
    reason: str
    origin: Origin
    heading: str

    @classmethod
    def whole(cls, reason: str, heading: str, origin: Origin = "structure") -> Choice:
        """A parameter that every rank holds whole."""
        return cls(REPLICATED, reason, origin, heading)


class PackedFact(NamedTuple):
    """How the rows of a fused matrix lie, and what fixes it."""

    layer: Layer
    repeat: int
    parts: tuple[tuple[str, int], ...]
    fixed_by: str


@dataclass
class Block:
    """Matrices that are cut together, or not at all.

    Attributes:
        kind: ``attention`` or ``mlp``.
        owner: The module that computes with them.
        columns: Layers that read the stream; their outputs would be cut.
        rows: Layers that give to the stream; their inputs would be cut.
        origin: Who told which is which.
        heading: The group of the plan file.
        column_reason: Why the columns are cut.
        row_reason: Why the rows are.
        vectors: Parameters with one value a head, cut with the heads.
        tables: Tables with one column a head, cut on their columns.
        inner: Whole layers inside (latent projections), with the reason.
        packed: Fused layers whose rows are known to lie so.
        obstacle: Why none of it is cut; None if it is.
    """

    kind: Kind
    owner: int
    columns: tuple[Layer, ...] = ()
    rows: tuple[Layer, ...] = ()
    origin: Origin = "structure"
    heading: str = ""
    column_reason: str = ""
    row_reason: str = ""
    vectors: list[int] = field(default_factory=list)
    tables: list[int] = field(default_factory=list)
    inner: tuple[Layer, ...] = ()
    packed: list[PackedFact] = field(default_factory=list)
    obstacle: str | None = None
