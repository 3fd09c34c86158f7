"""What `hpx.roles` finds: cut matrices, and the boundaries that they make of modules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from hpx.check.findings import Finding
from hpx.plan.boundary import Boundary

__all__ = ["Cut", "Role", "Roles"]


class Cut(NamedTuple):
    """A matrix that is cut on tp, at one of its names.

    Attributes:
        weight: Its id.
        owner: The module that holds it.
        name: Its name there.
        inputs: Its inputs over all ranks; of an embedding its width.
        outputs: Its outputs over all ranks; of an embedding its rows.
        layer: The module that stands for it: its owner, or the LoRA layer around that.
    """

    weight: int
    owner: int
    name: str
    inputs: int
    outputs: int
    layer: int


@dataclass(frozen=True)
class Role:
    """A module that is a boundary.

    Attributes:
        module: Its id.
        kind: What `hpx.runtime.boundaries` makes of it.
        role: ``attention``, ``mlp``, ``colwise``, ``rowwise``, ``embedding``, ``lm_head`` or
            ``declared``; under sequence parallelism also ``stream`` and ``whole``.
        inputs: Inputs by name, ``R`` or ``none``; None for the first one.
        output: What is done to its output; ``columns`` leaves them apart, as one DTensor.
        size: Rows or columns over all ranks, where the runtime needs them.
        bias: Path of the bias to withhold.
        rowwise: Paths of the rowwise layers inside.
        colwise: Paths of the colwise layers inside.
        declared: The plan's entry, if one changed it.
        sequence: Whether it stands in a stream that is cut on the sequence.
        layers: Of a stream: the modules that work on it, in their order.
        regions: Of a stream: the boundaries whose input it is.
    """

    module: int
    kind: Literal["region", "rowwise", "embedding", "head", "stream", "whole"]
    role: str
    inputs: dict[str, str] | None = None
    output: Literal["sum", "gather", "columns"] | None = None
    size: int | None = None
    bias: str | None = None
    rowwise: tuple[str, ...] = ()
    colwise: tuple[str, ...] = ()
    declared: Boundary | None = None
    sequence: bool = False
    layers: tuple[int, ...] = ()
    regions: tuple[int, ...] = ()


@dataclass
class Roles:
    """What was found.

    Attributes:
        boundaries: The boundaries, in the order of the tree.
        findings: What stands against running the model with them.
        whole: Parameters whose gradient is whole though they are inside a region, as the plan says
            that it is none.
        partial: Parameters that are whole, of whose gradient every rank has a part, though they are
            outside a region: in a LoRA layer.
        widths: (module, name, value) of integers by which a colwise layer views its outputs.
        positions: Parameters that are whole and read by a rank for its own positions of a
            sequence, so that every rank has a part of their gradient.
        columns: Modules with a colwise matrix of their own: its outputs over all ranks.
    """

    boundaries: list[Role] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)
    partial: list[int] = field(default_factory=list)
    widths: list[tuple[int, str, int]] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    columns: dict[int, int] = field(default_factory=dict)
