"""The one view model that every format is written from: plain values, no graph behind them.

A `View` is a tree of `Box`es (modules) that hold `Row`s (tensors). Both may stand for many equal
siblings. `hpx.render.build` makes it; `hpx.render.trim` cuts it to a depth or a number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from hpx.layout import Range
from hpx.mesh import MeshSpec

__all__ = ["Box", "Finding", "Item", "Mark", "Row", "Totals", "View"]

Mark: TypeAlias = Literal["", "unset", "conflict", "deviates", "added", "removed", "changed"]
"""Why something stands out: no layout, an error of the run, unlike its siblings; or what a
comparison says of it."""


@dataclass(frozen=True, slots=True)
class Row:
    """Equal tensors, or a further name of a tensor that has its row elsewhere.

    Attributes:
        label: The name below the box: ``q_proj.weight``.
        path: The whole name, numbers folded.
        node: Id of the first.
        kind: ``parameter``, ``buffer``, ``tensor``; ``link`` for a further name.
        count: How many it stands for in the whole model.
        shape: The global shape.
        dtype: Name of the torch dtype.
        requires_grad: Whether it is trained.
        token: The layout, ``-`` for none, ``mixed`` where the folded ones differ.
        mesh: The mesh view: ``dense``, ``expert`` or None.
        local_shape: What the rank holds; None where the mesh is not known.
        ranges: The same as index ranges.
        pieces: Of an uneven cut, the size on every rank of the axis.
        bytes: Of all that it stands for.
        passes: Which passes decided the layout.
        rule: The rule: ``plan.yaml:12``.
        ties: Other names of the same tensor.
        experts: How many experts are stacked in it; None for other tensors.
        reduce: Axes over which its gradient is summed besides the data axes.
        mark: Why it stands out.
        was: Of what a comparison changed: its old values, ``layout tp:S(1)``.
        warned: Whether a warning of the run names it.
    """

    label: str
    path: str
    node: int
    kind: str
    count: int
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    token: str
    mesh: str | None = None
    local_shape: tuple[int, ...] | None = None
    ranges: tuple[Range, ...] | None = None
    pieces: tuple[int, ...] = ()
    bytes: int = 0
    passes: tuple[str, ...] = ()
    rule: str | None = None
    ties: tuple[str, ...] = ()
    experts: int | None = None
    reduce: tuple[str, ...] = ()
    mark: Mark = ""
    was: str = ""
    warned: bool = False


Item: TypeAlias = "Row | int"
"""Something in a box: a row, or the index of a box below."""


@dataclass(frozen=True, slots=True)
class Box:
    """A module, or equal sibling modules, with what is directly below.

    Attributes:
        index: Its place in `View.boxes`, which is in preorder.
        parent: The index of the box above; -1 for the top.
        depth: How many boxes are above.
        label: The name below the box above, single children merged: ``model.layers``.
        path: The whole name, numbers folded.
        cls: The class, without its module; empty where only names are known.
        members: How many equal siblings it stands for.
        count: How often it occurs in the whole model.
        items: Rows and boxes below, in the order of the tree.
        notes: What else to know: variants, attributes that passes changed.
        same: Labels of what is below and equal to its counterpart in ``same_as``.
        same_as: The name of the siblings that it is compared with.
        parameters: How many parameters there are below, all siblings counted.
        bytes: Their bytes.
        tokens: Their bytes by token, most first.
        mark: Why it stands out by itself (it lacks a tensor that its siblings have).
        alert: Whether anything in it or below stands out.
        hidden: How many boxes below are cut off.
        hidden_rows: How many rows of its own are cut off.
    """

    index: int
    parent: int
    depth: int
    label: str
    path: str
    cls: str
    members: int
    count: int
    items: tuple[Item, ...]
    notes: tuple[str, ...]
    same: tuple[str, ...]
    same_as: str
    parameters: int
    bytes: int
    tokens: tuple[tuple[str, int], ...]
    mark: Mark = ""
    alert: bool = False
    hidden: int = 0
    hidden_rows: int = 0

    @property
    def rows(self) -> list[Row]:
        """The rows alone."""
        return [item for item in self.items if isinstance(item, Row)]

    @property
    def below(self) -> list[int]:
        """The boxes below alone."""
        return [item for item in self.items if isinstance(item, int)]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a person should look at: ``deviation``, ``error``, ``warning`` or ``info``."""

    level: str
    text: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the whole view, each tied parameter once.

    Attributes:
        parameters: How many there are.
        original_parameters: How many the model came with, where passes changed that.
        elements: Their elements.
        bytes: Their bytes.
        local_bytes: The bytes that the rank holds; None where no mesh is known.
        tied: How many of them have several names.
        buffers: How many buffers and plain tensors there are besides.
    """

    parameters: int
    original_parameters: int | None
    elements: int
    bytes: int
    local_bytes: int | None
    tied: int
    buffers: int


@dataclass(frozen=True)
class View:
    """What there is to draw.

    Attributes:
        title: The class of the model, or what it was read from.
        source: What it was read from.
        boxes: The boxes in preorder; the first is the top.
        findings: What to look at, deviations first.
        totals: The sums.
        tokens: Parameters by token, most first; empty where no layouts are known.
        passes: Parameters by the pass that decided their layout.
        dtypes: Parameters by dtype.
        mesh: The mesh, if known.
        rank: The rank whose pieces are shown.
        step: Which step of a run this is, in words.
        fold: What had to be equal to fold.
        depth: The depth that boxes are cut at; None for no cut.
        full_depth: The depth of the deepest box before a cut.
        extra: More facts of the header, as pairs of a word and its text.
        changes: Of a comparison: what differs and the events that explain it, as lines of text.
        marks: Why nodes stand out, by id, all that fold into a row or box; without ``unset``.
    """

    title: str
    source: str
    boxes: tuple[Box, ...]
    findings: tuple[Finding, ...]
    totals: Totals
    tokens: tuple[tuple[str, int], ...]
    passes: tuple[tuple[str, int], ...]
    dtypes: tuple[tuple[str, int], ...]
    mesh: MeshSpec | None = None
    rank: int = 0
    step: str | None = None
    fold: str = "layout"
    depth: int | None = None
    full_depth: int = 0
    extra: tuple[tuple[str, str], ...] = ()
    changes: tuple[str, ...] = ()
    marks: Mapping[int, Mark] = field(default_factory=dict)

    @property
    def has_layouts(self) -> bool:
        """Whether any layout is known; without one there are no layout columns."""
        return bool(self.tokens)

    @property
    def num_nodes(self) -> int:
        """How many nodes are drawn: boxes and rows."""
        return len(self.boxes) + sum(len(box.rows) for box in self.boxes)

    def rows(self) -> Iterator[Row]:
        """Every row, in order."""
        return (row for box in self.boxes for row in box.rows)
