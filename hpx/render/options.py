"""What a picture may be asked for, and how an output's name says its format."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from hpx.errors import UsageError, did_you_mean
from hpx.mesh import MeshSpec
from hpx.render.shape import Direction

if TYPE_CHECKING:
    from hpx.graph.graph import ModuleGraph
    from hpx.run import Run

__all__ = [
    "COLUMNS",
    "ColorBy",
    "Column",
    "Engine",
    "Fold",
    "Format",
    "Only",
    "Options",
    "Sort",
    "format_of",
]

Format: TypeAlias = Literal["text", "json", "html", "svg", "png", "pdf", "dot"]
Fold: TypeAlias = Literal["auto", "structure", "layout", "none"]
Only: TypeAlias = Literal[
    "unsharded", "replicated", "unset", "conflict", "tied", "experts", "changed"
]
ColorBy: TypeAlias = Literal["layout", "pass", "dtype", "bytes"]
Column: TypeAlias = Literal["name", "shape", "dtype", "layout", "local_shape", "bytes", "pass"]
Sort: TypeAlias = Literal["tree", "bytes", "name"]
Engine: TypeAlias = Literal["auto", "dot", "builtin"]

COLUMNS: Final[tuple[Column, ...]] = ("name", "shape", "dtype", "layout", "local_shape", "pass")
"""The columns of text that nobody chose; ``bytes`` is there for the asking."""

_SUFFIXES: Final[dict[str, Format]] = {
    ".txt": "text",
    ".text": "text",
    ".json": "json",
    ".html": "html",
    ".htm": "html",
    ".svg": "svg",
    ".png": "png",
    ".pdf": "pdf",
    ".dot": "dot",
    ".gv": "dot",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to draw.

    Several patterns or words are a tuple; one alone may be given as it is.

    Attributes:
        step: Of a run: the graph after this step; None for the last.
        mesh: Of a graph: the mesh that its layouts are on. A run has its own.
        against: What is compared with: it is the new side, and what is drawn.
        root: The name of the module to begin at.
        focus: Patterns as in plan files; what matches none is left out. A pattern may name a
            parameter or a module above it.
        ignore: The same; what matches one is left out.
        only: Which parameters are shown, those of any of these kinds.
        expand: Patterns of siblings, or of the module around them, that are not folded.
        fold: ``layout`` (and ``auto``) folds numbered siblings of equal structure and layout,
            ``structure`` whatever their layout, ``none`` nothing.
        depth: How deep to draw; everything if not given, as far as ``max_nodes`` allows.
        max_nodes: How many boxes and rows a picture may have; text has no limit.
        direction: ``LR`` or ``TB``; chosen by the shape of the tree if not given.
        axis: The mesh axis whose cuts colours tell; all of them if not given.
        color_by: What colours tell.
        columns: Of text, which columns; the name is always there.
        sort: In which order siblings stand: of the ``tree``, by ``bytes`` or by ``name``.
        dataflow: Whether to draw the edges of traced dataflow, where the graph has them.
        rank: The rank whose pieces are shown; text then adds their index ranges.
        engine: Who lays a picture out: Graphviz (``dot``), or the outline that is built in.
        timeout: Seconds that Graphviz gets.
        color: Whether text repeats layouts in colours of the terminal.

    Raises:
        UsageError: A value is out of range.
    """

    step: int | None = None
    mesh: MeshSpec | None = None
    against: Run | ModuleGraph | None = None
    root: str | None = None
    focus: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    only: tuple[Only, ...] = ()
    expand: tuple[str, ...] = ()
    fold: Fold = "auto"
    depth: int | None = None
    max_nodes: int = 200
    direction: Direction | None = None
    axis: str | None = None
    color_by: ColorBy = "layout"
    columns: tuple[Column, ...] = COLUMNS
    sort: Sort = "tree"
    dataflow: bool = False
    rank: int | None = None
    engine: Engine = "auto"
    timeout: float = 30.0
    color: bool = False

    def __post_init__(self) -> None:
        for name in ("focus", "ignore", "only", "expand", "columns"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        if self.depth is not None and self.depth < 0:
            raise UsageError(f"the depth is {self.depth}", fix="0 or more")
        if self.max_nodes < 1:
            raise UsageError(f"the number of nodes is {self.max_nodes}", fix="1 or more")
        if not 0 < self.timeout < threading.TIMEOUT_MAX:  # nor is it "nan", which compares to none
            raise UsageError(f"the time limit is {self.timeout:g} s", fix="more than 0")
        _known("fold", self.fold, get_args(Fold))
        _known("direction", self.direction or "TB", get_args(Direction))
        _known("color_by", self.color_by, get_args(ColorBy))
        _known("sort", self.sort, get_args(Sort))
        _known("engine", self.engine, get_args(Engine))
        for word in self.only:
            _known("only", word, get_args(Only))
        for column in self.columns:
            _known("a column", column, get_args(Column))


def _known(name: str, value: str, known: Collection[str]) -> None:
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
            f"{path.name or path} does not say its format",
            why=f"its suffix is {path.suffix!r}" if path.suffix else "it has no suffix",
            fix=f"end it in {', '.join(_SUFFIXES)}; or name the format (-f svg)",
        )
    return found
