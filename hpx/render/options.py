"""What a picture may be asked for, and how an output's name says its format."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

from hpx.errors import UsageError, did_you_mean
from hpx.mesh import MeshSpec
from hpx.render.shape import Direction

__all__ = ["Fold", "Format", "Options", "format_of"]

Format: TypeAlias = Literal["text", "svg", "png", "dot"]
Fold: TypeAlias = Literal["auto", "structure", "layout", "none"]

_SUFFIXES: Final[dict[str, Format]] = {
    ".txt": "text",
    ".text": "text",
    ".svg": "svg",
    ".png": "png",
    ".dot": "dot",
    ".gv": "dot",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to draw.

    Attributes:
        step: Of a run: the graph after this step; None for the last.
        mesh: Of a graph: the mesh that its layouts are on. A run has its own.
        root: The name of the module to begin at.
        fold: ``layout`` (and ``auto``) folds numbered siblings of equal structure and layout,
            ``structure`` whatever their layout, ``none`` nothing.
        depth: How deep to draw; everything if not given, as far as ``max_nodes`` allows.
        max_nodes: How many boxes and rows a picture may have; text has no limit.
        direction: ``LR`` or ``TB``; chosen by the shape of the tree if not given.
        rank: The rank whose pieces are shown; text then adds their index ranges.
        timeout: Seconds that Graphviz gets.
        color: Whether text repeats layouts in colours of the terminal.

    Raises:
        UsageError: A value is out of range.
    """

    step: int | None = None
    mesh: MeshSpec | None = None
    root: str | None = None
    fold: Fold = "auto"
    depth: int | None = None
    max_nodes: int = 200
    direction: Direction | None = None
    rank: int | None = None
    timeout: float = 30.0
    color: bool = False

    def __post_init__(self) -> None:
        if self.depth is not None and self.depth < 0:
            raise UsageError(f"the depth is {self.depth}", fix="0 or more")
        if self.max_nodes < 1:
            raise UsageError(f"the number of nodes is {self.max_nodes}", fix="1 or more")
        if not 0 < self.timeout < threading.TIMEOUT_MAX:  # nor is it "nan", which compares to none
            raise UsageError(f"the time limit is {self.timeout:g} s", fix="more than 0")
        for name, value, known in (
            ("fold", self.fold, get_args(Fold)),
            ("direction", self.direction or "TB", get_args(Direction)),
        ):
            if value not in known:
                fix = did_you_mean(value, known) or f"one of {', '.join(known)}"
                raise UsageError(f"{name} is {value!r}", fix=fix)


def format_of(path: Path) -> Format:
    """The format that the suffix of a file's name says.

    Raises:
        UsageError: It says none that there is.
    """
    found = _SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise UsageError(
            f"{path.name} does not say its format",
            why=f"its suffix is {path.suffix!r}" if path.suffix else "it has no suffix",
            fix=f"end it in {', '.join(_SUFFIXES)}; or name the format (-f svg)",
        )
    return found
