"""Open what a user names as MODEL with the module behind it, where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpx.graph.graph import ModuleGraph
from hpx.graph.sources import open_model

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Opened", "open_with_model"]


class Opened(NamedTuple):
    """A graph, and what a proof needs.

    Attributes:
        graph: The graph.
        model: The module; None for a checkpoint, which has no code.
        inputs: Example inputs that a factory gave.
    """

    graph: ModuleGraph
    model: nn.Module | None = None
    inputs: object = None


def open_with_model(text: str) -> Opened:
    """The graph of what ``text`` names, as `open_model` reads it, and its module if it has one.

    Raises:
        HpxError: As `open_model` does.
    """
    path = Path(text)
    if not path.exists():
        return _from_factory(text) if ":" in text else Opened(open_model(text))
    graph = open_model(text)
    if not graph.source.startswith("config:"):
        return Opened(graph)
    from hpx.graph.from_config import model_from_config

    file = path / "config.json" if path.is_dir() else path
    return Opened(graph, model_from_config(file, text))


def _from_factory(text: str) -> Opened:
    from hpx.graph.from_factory import model_and_inputs_from_factory

    try:
        known = Path(text).parent.is_dir() and text.count(":") == 1
    except (OSError, ValueError):
        known = False
    if not known or "/" in text:
        return Opened(open_model(text))  # which says what is wrong with it
    from hpx.graph.from_module import graph_from_module

    model, inputs = model_and_inputs_from_factory(text)
    return Opened(graph_from_module(model, source=f"factory:{text}"), model, inputs)
