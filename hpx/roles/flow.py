"""Which rowwise matrices take the outputs of which colwise ones, told by their widths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from hpx.projections import Role
from hpx.roles.types import Cut

__all__ = ["Flow", "pairs"]

_MIXED: Final = ("qkv", "kv")
"""Roles of matrices whose outputs are of several kinds; what takes them is narrower."""


@dataclass(frozen=True)
class Flow:
    """What flows where, between the cut matrices of one region.

    Attributes:
        fed: Ids of the rowwise matrices whose inputs a colwise one gives.
        taken: Ids of the colwise matrices of which a rowwise one takes what they give.
    """

    fed: frozenset[int]
    taken: frozenset[int]


def pairs(columns: Iterable[tuple[Cut, Role | None]], rows: Sequence[Cut]) -> Flow:
    """Pair matrices by width.

    A layer without a known role gives what a rowwise one takes, or twice or three times as much
    where gate and up are one matrix. Of q, k and v one width is enough, as the others count fewer
    heads; fused ones may feed any narrower matrix that nothing else feeds.

    Args:
        columns: Colwise matrices with their role in attention.
        rows: Rowwise matrices.
    """
    plain: list[Cut] = []
    heads: list[tuple[Cut, Role]] = []
    for cut, role in columns:
        if role is None:
            plain.append(cut)
        else:
            heads.append((cut, role))
    widths = {cut.outputs for cut in plain}
    exact = [row for row in rows if row.inputs in widths]
    fed = {row.weight for row in exact}
    inputs = {row.inputs for row in exact}
    taken = {cut.weight for cut in plain if cut.outputs in inputs}
    loose = [cut for cut in plain if cut.weight not in taken]
    for row in rows:
        giving = [cut.weight for cut in loose if _is_several(cut.outputs, row.inputs)]
        attends = any(row.inputs == cut.outputs for cut, _ in heads)
        if not attends and row.weight not in fed:
            attends = any(_may_give(heads, row))
        if giving or attends:
            fed.add(row.weight)
            taken.update(giving)
        if attends:
            taken.update(cut.weight for cut, _ in heads)
    return Flow(frozenset(fed), frozenset(taken))


def _may_give(heads: list[tuple[Cut, Role]], row: Cut) -> Iterator[bool]:
    keys = {cut.outputs for cut, role in heads if role == "k"}
    for cut, role in heads:
        yield role in _MIXED and row.inputs < cut.outputs
        yield _is_several(cut.outputs, row.inputs)
        # Values narrower than keys: fewer heads times a head dim of their own.
        yield role == "v" and bool(keys - {cut.outputs}) and row.inputs % cut.outputs == 0


def _is_several(outputs: int, inputs: int) -> bool:
    return outputs in (2 * inputs, 3 * inputs)
