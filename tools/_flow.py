"""Open a model with its traced dataflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpx.errors import UsageError
from hpx.tools._streams import tell

if TYPE_CHECKING:
    from hpx.graph.graph import ModuleGraph
    from hpx.tools._progress import Progress

__all__ = ["open_traced"]


def open_traced(text: str, progress: Progress, program: str = "hpx") -> ModuleGraph:
    """The graph of what ``text`` names, traced; where that fails, stderr says why.

    Raises:
        UsageError: It is a checkpoint, which has no code.
        HpxError: It cannot be read.
    """
    from hpx.prove import open_with_model

    opened = open_with_model(text)
    graph = opened.graph
    if opened.model is None and not graph.flow:
        raise UsageError(
            f"{text} has no code to trace",
            why="a checkpoint has names and shapes alone",
            fix="give a config.json, package.module:factory or a .pt2 program, or leave --dataflow"
            " out",
        )
    if opened.model is not None:
        progress.say(f"tracing {text}")
        graph.trace(opened.model, opened.inputs)
    tell(f"{program}: {graph.hints['dataflow']}")
    return graph
