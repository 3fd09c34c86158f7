"""Short forms of long regular lists: node ids as runs, numbered names as one folded name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["compact_ids", "expand_ids", "fold_names", "number_text", "pack_ids"]

_DIGITS = re.compile(r"(?<![^.])(?:0|[1-9][0-9]*)(?![^.])")
_HOLE = "\0"  # stands for a number inside a folded name; no module name holds it


def pack_ids(ids: Iterable[int]) -> list[int | list[int]]:
    """Ids in order, runs of three or more with one step as ``[start, count, step]``.

    >>> pack_ids([4, 7, 10, 13, 20])
    [[4, 4, 3], 20]
    """
    items = list(ids)
    out: list[int | list[int]] = []
    i = 0
    while i < len(items):
        j = i + 1
        if j < len(items):
            step = items[j] - items[i]
            while j + 1 < len(items) and items[j + 1] - items[j] == step:
                j += 1
            if j - i >= 2:
                out.append([items[i], j - i + 1, step])
                i = j + 1
                continue
        out.append(items[i])
        i += 1
    return out


def expand_ids(packed: Sequence[int | list[int]]) -> list[int]:
    """The inverse of `pack_ids`.

    >>> expand_ids([[4, 4, 3], 20])
    [4, 7, 10, 13, 20]
    """
    out: list[int] = []
    for item in packed:
        if isinstance(item, int):
            out.append(item)
        else:
            start, count, step = item
            out.extend(start + step * k for k in range(count))
    return out


def compact_ids(ids: Iterable[int]) -> Sequence[int]:
    """Ids in order: a ``range`` if they ascend by one step, else a tuple.

    >>> compact_ids([4, 5, 6]), compact_ids([4, 7, 10]), compact_ids([6, 4])
    (range(4, 7), range(4, 11, 3), (6, 4))
    """
    items = tuple(ids)
    if len(items) > 2 and items[1] > items[0]:
        run = range(items[0], items[-1] + 1, items[1] - items[0])
        if len(run) == len(items) and items == tuple(run):
            return run
    return items


def number_text(numbers: Iterable[int]) -> str:
    """Sorted numbers with runs joined: ``0-29,31-57``.

    >>> number_text([0, 1, 2, 5])
    '0-2,5'
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def fold_names(names: Iterable[str]) -> list[str]:
    """Names that differ only in numbers, folded part by part: ``layers.{0-57}.w1``.

    Names fold together only if their numbers make a full grid, so that the folded name stands for
    exactly the names that were given. The order is that of the first name of each group.

    >>> fold_names(["layers.0.a", "layers.1.a", "head"])
    ['layers.{0-1}.a', 'head']
    """
    groups: dict[str, list[tuple[int, ...]]] = {}
    for name in names:
        found = tuple(int(number) for number in _DIGITS.findall(name))
        groups.setdefault(_DIGITS.sub(_HOLE, name), []).append(found)
    out: list[str] = []
    for shape, rows in groups.items():
        out.extend(_fold_group(shape, rows))
    return out


def _fold_group(shape: str, rows: list[tuple[int, ...]]) -> list[str]:
    """One folded name for rows that fill a grid, else one for each value of the first number."""
    columns = [sorted(set(column)) for column in zip(*rows, strict=True)]
    cells = 1
    for column in columns:
        cells *= len(column)
    if cells == len(set(rows)):
        return [_fill(shape, [number_text(column) for column in columns])]
    by_first: dict[int, list[tuple[int, ...]]] = {}
    for row in rows:
        by_first.setdefault(row[0], []).append(row)
    out: list[str] = []
    for first, members in by_first.items():
        inner = shape.replace(_HOLE, str(first), 1)
        out.extend(_fold_group(inner, [row[1:] for row in members]))
    return out


def _fill(shape: str, texts: list[str]) -> str:
    for text in texts:
        shape = shape.replace(_HOLE, text if text.isdigit() else "{" + text + "}", 1)
    return shape
