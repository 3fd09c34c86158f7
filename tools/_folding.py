"""Parameters that differ in nothing but the numbers in their names, as one row."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from hpx.params import Param
from hpx.ranges import fold_names

__all__ = ["Folded", "fold_params", "unfolded"]

_NUMBER: Final = re.compile(r"(?<![^.])[0-9]+(?![^.])")
_INNER_NUMBER: Final = re.compile(r"(?<=\.)[0-9]+(?=\.)")


@dataclass(frozen=True)
class Folded:
    """Equal parameters.

    Attributes:
        names: Their names, folded.
        count: How many they are.
        first: The first of them.
    """

    names: tuple[str, ...]
    count: int
    first: Param

    @property
    def name(self) -> str:
        """All names as one text."""
        return " ".join(self.names)


def fold_params(params: Iterable[Param]) -> list[Folded]:
    """Groups of equal parameters, in the order of their first one."""
    groups: dict[tuple[object, ...], list[Param]] = {}
    for param in params:
        groups.setdefault(_key(param), []).append(param)
    return [
        Folded(tuple(fold_names(_shown(param) for param in group)), len(group), group[0])
        for group in groups.values()
    ]


def unfolded(params: Iterable[Param]) -> list[Folded]:
    """Every parameter as a group of its own."""
    return [Folded((_shown(param),), 1, param) for param in params]


def _shown(param: Param) -> str:
    return " = ".join([param.name, *param.aliases])


def _key(param: Param) -> tuple[object, ...]:
    names = tuple(_NUMBER.sub("#", name) for name in (param.name, *param.aliases))
    lineage = None if param.lineage is None else _INNER_NUMBER.sub("#", param.lineage)
    # A hash of layout and rule for each of 45,000 parameters would cost more than their texts.
    rule = None if param.rule is None else (param.rule.index, param.rule.where, param.rule.pattern)
    layout = None if param.layout is None else param.layout.entries
    return (
        *(names, param.shape, param.dtype, param.requires_grad, layout),
        *(param.mesh, param.local_shape, lineage, rule, param.reduce),
    )
