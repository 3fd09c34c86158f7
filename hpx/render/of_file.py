"""What a reader has to know of the file that a model came from, as problems of the view."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from hpx._text import counted, printable
from hpx.graph.graph import ModuleGraph

if TYPE_CHECKING:
    from hpx.pipeline.context import Problem

__all__ = ["file_problems", "foreign_text"]

_MOST: Final = 3


def file_problems(graph: ModuleGraph) -> Iterator[Problem]:
    """Foreign names in the file, and what its reader noted: pieces, things that are no tensors."""
    from hpx.pipeline.context import Problem

    foreign = foreign_text(graph)
    if foreign:
        yield Problem("warning", (), foreign, "nothing of it was run; --strict refuses such files")
    for note in _texts(graph.hints.get("notes")):
        yield Problem("info", (), note, "")
    ignored = [printable(name) for name in _texts(graph.hints.get("ignored"))]
    if ignored:
        what = "that is no tensor" if len(ignored) == 1 else "that are no tensors"
        entries = f"{counted(len(ignored), 'entry', 'entries')} {what} of the model"
        yield Problem("info", (), f"left out {entries}: {_first(ignored)}", "")


def foreign_text(graph: ModuleGraph) -> str:
    """The foreign names that the file holds, as a sentence; empty if it holds none."""
    names = _texts(graph.hints.get("foreign"))
    if not names:
        return ""
    what = counted(len(names), "foreign name")
    return f"the file holds {what}, which could run code: {_first(names)}"


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST:,} more" if len(names) > _MOST else ""
    return f"{', '.join(names[:_MOST])}{more}"


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, Sequence) else []
