"""What modules of one class have in common, so that an import looks at each form once."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, Final

import torch
from torch import nn

from hpx.graph.nodes import ModuleSpec
from hpx.heads import KV_COUNTS, Q_COUNTS

__all__ = ["EVERY_MODULE", "Form", "class_counts"]

EVERY_MODULE: Final = frozenset(nn.Module().__dict__)
"""Names of the fields that a module of torch's own has."""

_INT, _TENSOR, _OTHER = range(3)


class Form:
    """What modules whose fields have the same names and types have in common.

    Attributes:
        names: Names of all fields.
        own: Gets the values of the fields that not every module has.
        types: Their types.
        integers: Names of those that are plain integers.
        tensors: Names of those that are tensors.
        specs: Specifications of usual modules of this form, by class and values of the integers.
    """

    __slots__ = ("integers", "names", "own", "specs", "tensors", "types")

    def __init__(self, names: tuple[str, ...], fields: dict[str, object]) -> None:
        own = [name for name in names if name not in EVERY_MODULE]
        kinds = [(name, _kind_of(type(fields[name]))) for name in own]
        self.names: Final = names
        # One name more than needed, so that the getter always gives a tuple.
        self.own: Final = itemgetter("_modules", "_modules", *own)
        self.types: Final = [type(value) for value in self.own(fields)]
        self.integers: Final = [name for name, kind in kinds if kind == _INT]
        self.tensors: Final = [name for name, kind in kinds if kind == _TENSOR]
        self.specs: Final[dict[tuple[object, ...], ModuleSpec]] = {}

    def fits(self, fields: dict[str, object]) -> bool:
        """Whether the fields of another module have these names and types.

        Looking at every value of 60,000 modules takes longer than all the rest: only those are
        looked at that a module of torch's own does not have.
        """
        return self.names == tuple(fields) and self.types == list(map(type, self.own(fields)))


def class_counts(cls: type, fields: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Head counts that the class has for all its modules; a module's own come first."""
    for name in (*Q_COUNTS, *KV_COUNTS):
        if name not in fields:
            value = inspect.getattr_static(cls, name, None)
            if type(value) is int:
                yield name, value


def _kind_of(cls: type) -> int:
    if cls is int or (cls.__module__ == "numpy" and cls.__name__.startswith(("int", "uint"))):
        return _INT
    return _TENSOR if issubclass(cls, torch.Tensor) else _OTHER
