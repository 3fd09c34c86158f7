"""Whether sibling modules are alike to the last field, looked at column by column.

A container of 256 experts is 256 times the same subtree. Instead of describing each, the importer
describes the first, and this module makes sure that the others are no different: at each place of
the subtree it takes the column of all 256 modules (or parameters) there and compares them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final

import torch
from torch import nn

from hpx.graph.nodes import HOOKS, WRAPPER_PARTS

__all__ = ["HOOK_TABLES", "Columns", "alike"]

HOOK_TABLES: Final = itemgetter(*HOOKS)
_TABLES: Final = ("_parameters", "_modules")
_PROPERTIES: Final = attrgetter("shape", "dtype", "requires_grad", "device", "layout")

Columns = list[list[Any]]
"""Modules and parameters by their place in the subtree, in preorder; one of each sibling."""


def alike(
    siblings: Sequence[nn.Module],
    is_tensor: Callable[[type], bool],
    every_module: Collection[str],
) -> Columns | None:
    """The columns of siblings that differ in nothing but their tensors' values; None if they do.

    Also None for whatever the importer describes in a way of its own: hooks, buffers, wrappers,
    parametrizations, tensors that are no plain parameters, one object in two places.

    Args:
        siblings: Two modules at least.
        is_tensor: Whether a class is one of tensors.
        every_module: Names of the fields that every module has.
    """
    columns: Columns = []
    todo: Columns = [list(siblings)]
    while todo:
        column = todo.pop()
        if not all(isinstance(module, nn.Module) for module in column):
            return None
        fields = [module.__dict__ for module in column]
        if not _same_modules(column, fields, is_tensor, every_module):
            return None
        columns.append(column)
        parameters = _columns_of(fields, "_parameters")
        children = _columns_of(fields, "_modules")
        if parameters is None or children is None:
            return None
        parameters = [column for column in parameters if any(p is not None for p in column)]
        if not all(map(_same_parameters, parameters)):
            return None
        columns += parameters
        todo += [column for column in reversed(children) if any(m is not None for m in column)]
    objects = [item for column in columns for item in column]
    return columns if len(set(map(id, objects))) == len(objects) else None


def _same(values: Sequence[Any]) -> bool:
    """Whether all are equal; they are of one type."""
    return values.count(values[0]) == len(values)


def _same_modules(
    column: list[Any],
    fields: list[dict[str, Any]],
    is_tensor: Callable[[type], bool],
    every_module: Collection[str],
) -> bool:
    if len(set(map(type, column))) != 1 or not _same(list(map(tuple, fields))):
        return False
    first = fields[0]
    if "forward" in first or not all(name in first for name in (*_TABLES, *HOOKS)):
        return False
    if any(map(any, map(HOOK_TABLES, fields))) or any(table["_buffers"] for table in fields):
        return False
    children = first["_modules"]
    if "parametrizations" in children or "module" in children or set(WRAPPER_PARTS) & set(children):
        return False
    for name in first:
        if name in every_module:
            continue
        values = [table[name] for table in fields]
        types = set(map(type, values))
        if len(types) != 1 or any(map(is_tensor, types)):
            return False
        if types == {int} and not _same(values):
            return False
    return True


def _columns_of(fields: list[dict[str, Any]], table: str) -> Columns | None:
    """The columns of one table of names; None if the names differ."""
    tables = [own[table] for own in fields]
    if not _same(list(map(tuple, tables))):
        return None
    return [[own[name] for own in tables] for name in tables[0]]


def _same_parameters(column: list[Any]) -> bool:
    return (
        set(map(type, column)) == {nn.Parameter}
        and _same(list(map(_PROPERTIES, column)))
        and column[0].layout is torch.strided
        and _same(list(map(torch.Tensor.stride, column)))
        and not any(map(object.__getstate__, column))
    )
