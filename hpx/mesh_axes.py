"""The axes that a mesh is made of: reading them from text, and what may stand together.

- `KNOWN_AXES` and `WEIGHT_AXES` are the closed sets of names.
- `read_axes` turns ``dp=4,tp=8,ep=16`` into pairs; `check_axes` refuses what makes no mesh.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Final

from hpx.errors import MeshError, did_you_mean

__all__ = [
    "KNOWN_AXES",
    "MOST_RANKS",
    "WEIGHT_AXES",
    "axes_text",
    "check_axes",
    "divisors",
    "num_ranks",
    "read_axes",
]

Axis = tuple[str, int]
"""The name of an axis and its size."""

WEIGHT_AXES: Final = ("tp", "ep")
"""The axes that a layout may cut a parameter on, in mesh order."""

KNOWN_AXES: Final = ("dp", "dp_replicate", "dp_shard", "cp", "pp", "tp", "ep")
"""Every axis that a mesh text may name."""

MOST_RANKS: Final = 2**20
"""More than any machine has; sizes of every rank's piece are listed one by one."""

_EXAMPLE: Final = "dp=4,tp=8,ep=16"
_SIZE: Final = re.compile(r"[0-9]{1,9}")
_PAIR: Final = re.compile(r"(\w+)\s*=\s*(.*)", re.ASCII | re.DOTALL)
_ALMOST_PAIR: Final = re.compile(r"(\w+)\s*[ :]\s*([0-9]+)", re.ASCII)


def axes_text(axes: Iterable[Axis]) -> str:
    """The axes as text, in the form that `read_axes` reads.

    >>> axes_text([("dp", 4), ("tp", 8)])
    'dp=4,tp=8'
    """
    return ",".join(f"{axis}={size}" for axis, size in axes)


def num_ranks(axes: Iterable[Axis]) -> int:
    """How many ranks the axes multiply out to."""
    return math.prod(size for _, size in axes)


def divisors(number: int) -> list[int]:
    """Every divisor of a positive number, smallest first.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    low = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return low + [number // n for n in reversed(low) if n * n != number]


def read_axes(text: str) -> list[Axis]:
    """Read ``axis=size`` pairs separated by commas, each axis at most once.

    Raises:
        MeshError: The text is not such a list.
    """
    if not text.strip():
        raise MeshError(
            f"mesh {text!r} names no axis", fix=f"write axis=size pairs, such as {_EXAMPLE}"
        )
    where = f"mesh {text!r}"
    axes = [_read_pair(part.strip(), where) for part in text.split(",")]
    _check_unique([axis for axis, _ in axes], where)
    return axes


def check_axes(axes: Sequence[Axis], ep: int | None) -> None:
    """Refuse dense axes and an expert size that make no mesh.

    Raises:
        MeshError: An axis is unknown, named twice or of a size below 1; ``dp`` stands beside its
            own parts; there is no dense axis; there are too many ranks; or ``ep`` does not divide.
    """
    virtual = [] if ep is None else [("ep", ep)]
    where = f"mesh {axes_text((*axes, *virtual))!r}"
    for axis, size in (*axes, *virtual):
        _check_axis(axis, size, where)
    _check_names([axis for axis, _ in axes], where)
    if num_ranks(axes) > MOST_RANKS:
        raise MeshError(
            f"the mesh has {num_ranks(axes):,} ranks",
            where=where,
            why=f"hpx takes {MOST_RANKS:,} at most",
            fix="use smaller sizes",
        )
    if ep is not None:
        _check_ep(axes, ep, where)


def _read_pair(part: str, where: str) -> Axis:
    if not part:
        raise MeshError(
            "there is nothing between two commas, or before the first or after the last",
            where=where,
            fix=f"remove the comma; write axis=size pairs, such as {_EXAMPLE}",
        )
    pair = _PAIR.fullmatch(part)
    if pair is None:
        almost = _ALMOST_PAIR.fullmatch(part)
        better = f"{almost[1]}={almost[2]}" if almost else f"axis=size pairs, such as {_EXAMPLE}"
        raise MeshError(f"{part!r} is not axis=size", where=where, fix=f"write {better}")
    axis, size = pair[1], pair[2]
    if _SIZE.fullmatch(size) is None:
        raise MeshError(
            f"axis {axis} has size {size!r}",
            where=where,
            why="a size is a whole number from 1",
            fix=f"write axis=size pairs with commas between them, such as {_EXAMPLE}",
        )
    return axis, int(size)


def _check_unique(names: list[str], where: str) -> None:
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise MeshError(f"axis {twice} is named twice", where=where, fix="name it once")


def _check_axis(axis: str, size: int, where: str) -> None:
    if axis.startswith("edp"):
        raise MeshError(
            f"axis {axis} cannot be given",
            where=where,
            why="it follows from the dense axes and ep",
            fix=f"leave {axis} out",
        )
    if axis not in KNOWN_AXES:
        raise MeshError(
            f"unknown axis {axis!r}",
            where=where,
            why=f"the axes are {', '.join(KNOWN_AXES)}",
            fix=did_you_mean(axis.lower(), KNOWN_AXES) or None,
        )
    if size < 1:
        raise MeshError(
            f"axis {axis} has size {size}",
            where=where,
            why="a size is a whole number from 1",
            fix=f"write {axis}=1 if the axis is meant to be inactive, or leave it out",
        )


def _check_names(names: list[str], where: str) -> None:
    _check_unique(names, where)
    parts = [name for name in names if name in ("dp_replicate", "dp_shard")]
    if "dp" in names and parts:
        raise MeshError(
            f"axes dp and {parts[0]} stand in one mesh",
            where=where,
            why="dp is the two of dp_replicate and dp_shard in one",
            fix="give either dp, or dp_replicate and dp_shard",
        )
    if "ep" in names:
        raise MeshError("ep is no dense axis", where=where, fix="pass it as MeshSpec(axes, ep=...)")
    if not names:
        raise MeshError(
            "the mesh has no dense axis",
            where=where,
            why="ep adds no ranks, it regroups those of the dense axes",
            fix=f"name a dense axis as well, such as {_EXAMPLE}",
        )


def _check_ep(axes: Sequence[Axis], ep: int, where: str) -> None:
    stage = [pair for pair in axes if pair[0] != "pp"]
    replicas = dict(stage).get("dp_replicate", 1)
    if replicas > 1 and stage[0][0] != "dp_replicate":
        raise MeshError(
            f"dp_replicate stands after {stage[0][0]}",
            where=where,
            why="with ep, a replica must be a run of neighbouring ranks",
            fix="put dp_replicate first (after pp, if there is pp)",
        )
    total = num_ranks(stage)
    room = total // replicas
    if room % ep == 0:
        return
    apart = " outside pp" if len(stage) < len(axes) else ""
    axes_of_stage = " x ".join(f"{axis}={size}" for axis, size in stage) or "1"
    why = f"there are {axes_of_stage} = {total} ranks{apart}"
    if replicas > 1:
        why += f", {room} in each of the {replicas} replicas"
    raise MeshError(
        f"ep={ep} does not divide D = {room}",
        where=where,
        why=why,
        fix=f"use an ep of {', '.join(map(str, divisors(room)))}",
    )
