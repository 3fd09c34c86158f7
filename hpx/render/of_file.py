"""What a reader has to know of the file that a model came from, as problems of the view."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from hpx._text import counted
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


def foreign_text(graph: ModuleGraph) -> str:
    """The foreign names that the file holds, as a sentence; empty if it holds none."""
    names = _texts(graph.hints.get("foreign"))
    if not names:
        return ""
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    what = counted(len(names), "foreign name")
    return f"the file holds {what}, which could run code: {', '.join(names[:_MOST])}{more}"


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, Sequence) else []
