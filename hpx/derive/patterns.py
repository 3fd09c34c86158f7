"""From one choice a parameter to few rules: ``*`` over layers, ``{a,b}`` over siblings.

A number in a path becomes ``*`` where all parameters that differ in it alone are decided alike;
else it stays, as a range where several neighbours are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from hpx.derive.types import Choice

__all__ = ["Line", "lines_of"]

_SIGNS: Final = frozenset("*{}[]")


class Line(NamedTuple):
    """A pattern, and the choice for all that it matches."""

    pattern: str
    choice: Choice


class _Entry(NamedTuple):
    numbers: tuple[str, ...]
    choice: Choice
    position: int


def lines_of(choices: Mapping[str, Choice]) -> list[Line]:
    """Rules for parameters by path, in the order of the model within each heading."""
    templates: dict[str, list[_Entry]] = {}
    for position, (path, choice) in enumerate(choices.items()):
        parts = path.split(".")
        numbers = tuple(part for part in parts if part.isdigit())
        key = ".".join("#" if part.isdigit() else part for part in parts)
        templates.setdefault(key, []).append(_Entry(numbers, choice, position))
    found: list[tuple[int, Line]] = []
    for key, entries in templates.items():
        found += _of_template(key, entries)
    first: dict[str, int] = {}
    for position, line in sorted(found, key=lambda item: item[0]):
        first.setdefault(line.choice.heading, position)
    found.sort(key=lambda item: (first[item[1].choice.heading], item[0]))
    return list(_merged([line for _, line in found]))


def _of_template(key: str, entries: Sequence[_Entry]) -> Iterator[tuple[int, Line]]:
    columns = len(entries[0].numbers)
    for literal in _subsets(columns):
        cells: dict[tuple[str, ...], _Entry] = {}
        for entry in entries:
            cell = tuple(entry.numbers[column] for column in literal)
            known = cells.setdefault(cell, entry)
            if known.choice != entry.choice:
                break
        else:
            yield from _of_cells(key, columns, literal, cells)
            return


def _subsets(columns: int) -> Iterator[tuple[int, ...]]:
    """Which columns stay numbers: as few as can be, the last ones first."""
    for size in range(columns + 1):
        yield from sorted(combinations(range(columns), size), reverse=True)


def _of_cells(
    key: str, columns: int, literal: tuple[int, ...], cells: Mapping[tuple[str, ...], _Entry]
) -> Iterator[tuple[int, Line]]:
    if not literal:
        (entry,) = cells.values()
        yield entry.position, Line(_fill(key, ["*"] * columns), entry.choice)
        return
    # Cells that are decided alike and differ in one column alone share a rule.
    groups: dict[tuple[tuple[str, ...], Choice], list[tuple[str, _Entry]]] = {}
    one = _freest(literal, cells)
    for cell, entry in cells.items():
        fixed = tuple(value for at, value in enumerate(cell) if at != one)
        groups.setdefault((fixed, entry.choice), []).append((cell[one], entry))
    for (fixed, choice), members in groups.items():
        values = ["*"] * columns
        rest = iter(fixed)
        for at, column in enumerate(literal):
            values[column] = _numbers([n for n, _ in members]) if at == one else next(rest)
        yield min(e.position for _, e in members), Line(_fill(key, values), choice)


def _freest(literal: tuple[int, ...], cells: Mapping[tuple[str, ...], _Entry]) -> int:
    """The column with most values."""
    return max(range(len(literal)), key=lambda at: len({cell[at] for cell in cells}))


def _numbers(values: Sequence[str]) -> str:
    """``3``, ``[0-7]``, or ``{0,2,[4-9]}``."""
    runs: list[list[int]] = []
    for number in sorted({int(value) for value in values}):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [str(r[0]) if len(r) == 1 else f"[{r[0]}-{r[-1]}]" for r in runs]
    return texts[0] if len(texts) == 1 else f"{{{','.join(texts)}}}"


def _fill(key: str, values: Sequence[str]) -> str:
    rest = iter(values)
    return ".".join(next(rest) if part == "#" else part for part in key.split("."))


def _merged(lines: Sequence[Line]) -> Iterator[Line]:
    """Neighbours of one choice that differ in one segment become one line; last segments first."""
    todo = list(lines)
    for from_end in (1, 2, 3):
        groups: dict[tuple[object, ...], list[Line]] = {}
        for line in todo:
            parts = line.pattern.split(".")
            at = len(parts) - from_end
            simple = _is_simple(line.pattern, from_end)
            where = (*parts[:at], "", *parts[at + 1 :]) if simple else tuple(parts)
            groups.setdefault((line.choice, simple, where), []).append(line)
        todo = []
        for members in groups.values():
            if len(members) == 1 or not _is_simple(members[0].pattern, from_end):
                todo += members
            else:
                todo.append(Line(_either(members, from_end), members[0].choice))
    yield from todo


def _is_simple(pattern: str, from_end: int) -> bool:
    parts = pattern.split(".")
    return from_end <= len(parts) and _SIGNS.isdisjoint(parts[-from_end])


def _either(members: Sequence[Line], from_end: int) -> str:
    """One pattern for lines that differ in one segment: ``{q,k,v}_proj``, never ``{up,dow}n``."""
    parts = members[0].pattern.split(".")
    words = [line.pattern.split(".")[-from_end].split("_") for line in members]
    shortest = min(map(len, words)) - 1
    start = stop = 0
    while start < shortest and len({w[start] for w in words}) == 1:
        start += 1
    while stop < shortest - start and len({w[-1 - stop] for w in words}) == 1:
        stop += 1
    inside = ["_".join(w[start : len(w) - stop]) for w in words]
    head = "".join(f"{word}_" for word in words[0][:start])
    tail = "".join(f"_{word}" for word in words[0][len(words[0]) - stop :])
    parts[-from_end] = f"{head}{{{','.join(inside)}}}{tail}"
    return ".".join(parts)
