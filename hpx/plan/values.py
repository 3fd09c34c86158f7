"""Checked values of Python arguments, plan files and saved plans, and where they stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from hpx.errors import LayoutError, MeshError, PlanError, did_you_mean

__all__ = [
    "as_integer",
    "as_list",
    "as_mapping",
    "as_optional_text",
    "as_text",
    "as_texts",
    "at",
    "check_keys",
    "place",
    "saved_place",
]


def place(file: str | None, line: int | None, otherwise: str) -> str:
    """``plan.yaml:12`` as far as file and line are known; else ``otherwise``."""
    if file is None:
        return otherwise if line is None else f"line {line}"
    return file if line is None else f"{file}:{line}"


@contextmanager
def at(where: str) -> Iterator[None]:
    """Make errors from inside errors of the plan, at this place of it."""
    try:
        yield
    except (LayoutError, MeshError, PlanError) as error:
        what = f"{error.where}: {error.what}" if error.where else error.what
        raise PlanError(what, where=where, why=error.why, fix=error.fix) from None


def as_text(value: object, what: str) -> str:
    """A non-empty text."""
    if not isinstance(value, str) or not value:
        raise PlanError(f"{what} is {value!r}", why="it has to be text")
    return value


def as_optional_text(value: object, what: str) -> str | None:
    """A non-empty text or None."""
    return None if value is None else as_text(value, what)


def as_integer(value: object, what: str) -> int:
    """A whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise PlanError(f"{what} is {value!r}", why="it has to be a whole number")
    return value


def as_mapping(value: object, what: str) -> Mapping[str, object]:
    """A mapping whose keys are text."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise PlanError(f"{what} is {value!r}", why="it has to be a mapping")
    return value


def as_list(value: object, what: str) -> Sequence[object]:
    """A list or tuple."""
    if not isinstance(value, list | tuple):
        raise PlanError(f"{what} is {value!r}", why="it has to be a list")
    return value


def as_texts(value: object, what: str) -> tuple[str, ...]:
    """A list of non-empty texts."""
    return tuple(as_text(entry, f"an entry of {what}") for entry in as_list(value, what))


def check_keys(value: Mapping[str, object], known: Sequence[str], what: str) -> None:
    """Refuse keys that mean nothing."""
    for key in value:
        if key not in known:
            raise PlanError(
                f"{what} has an unknown key {key!r}",
                why=f"its keys are {', '.join(known)}",
                fix=did_you_mean(str(key), known) or None,
            )


def saved_place(saved: Mapping[str, object]) -> tuple[str | None, int | None]:
    """File and line of a saved entry."""
    line = saved.get("line")
    file = as_optional_text(saved.get("file"), "a saved file")
    return file, None if line is None else as_integer(line, "a saved line")
