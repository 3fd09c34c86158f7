"""What kind of thing a value is: a mapping, a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hpx.inert.effects import set_items
from hpx.inert.values import Object

__all__ = ["is_module", "mapping_of"]

_TABLES: Final = ("_parameters", "_buffers", "_modules")


def is_module(value: object) -> bool:
    """Whether a value is an instance with the tables of a module."""
    if not isinstance(value, Object):
        return False
    return all(mapping_of(value.field(table)) is not None for table in _TABLES)


def mapping_of(value: object) -> Mapping[object, object] | None:
    """The entries of a mapping, of a subclass of one too; None for anything else."""
    if type(value) is dict:
        return value
    if type(value) is not Object:
        return None
    if value.mapping is None and value.items:
        value.mapping = _from_pairs(value.items)
        if value.mapping is None:
            value.items = []  # many may share it, and nobody needs to go through it again
    args = value.args
    if value.mapping is None and type(args) is tuple and len(args) == 2 and type(args[1]) is dict:
        return args[1]  # what copyreg._reconstructor makes of a subclass of dict
    return value.mapping


def _from_pairs(items: list[object]) -> dict[object, object] | None:
    made: dict[object, object] = {}
    for pair in items:
        if type(pair) is not tuple or len(pair) != 2:
            return None
        set_items(made, list(pair))
    return made
