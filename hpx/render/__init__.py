"""Draw a model or a run: text, JSON, HTML, DOT and pictures, all written from one view model.

`view` folds and sorts, `draw` writes one format, `render` writes a file. Nothing here imports
torch, and only pictures need Graphviz.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpx._files import write_bytes
from hpx.errors import TooLargeError, UsageError, did_you_mean
from hpx.graph.graph import ModuleGraph
from hpx.render.build import build_view
from hpx.render.dot import view_to_dot
from hpx.render.events import row_histories
from hpx.render.flows import box_flows, flows_text
from hpx.render.focus import the_row, who_holds
from hpx.render.options import Format, Options, format_of
from hpx.render.order import in_order
from hpx.render.picture import PictureFormat, draw_dot, keep_dot
from hpx.render.placing import meshes_of_dtensors
from hpx.render.prepare import prepare
from hpx.render.subject import Subject
from hpx.render.text import view_to_text
from hpx.render.trim import fit, trim
from hpx.render.viewmodel import View

if TYPE_CHECKING:
    from hpx.run import Run

__all__ = [
    "Format",
    "Options",
    "View",
    "draw",
    "format_of",
    "graph_to_dot",
    "render",
    "save",
    "view",
]

_PICTURE_DEPTH = 10
"""More levels than this are a strip, however few nodes they have."""
_MOST_LAID_OUT = 1000
"""More nodes than this, asked for with ``max_nodes``, are an outline rather than a layout."""


def view(target: Run | ModuleGraph | Subject, options: Options, *, picture: bool) -> View:
    """The view of a run or graph, cut to what was asked for.

    Args:
        target: What to view.
        options: How.
        picture: Whether it is to be drawn, which has a limit of nodes; text has none.

    Raises:
        UsageError: There is no such step or root, or a rank is asked for where no mesh is known.
        MeshError: The mesh has no such rank.
    """
    subject = prepare(target, options)
    _check_rank_and_axis(subject, options)
    fold = "layout" if options.fold == "auto" else options.fold
    made = build_view(
        subject, fold=fold, root=options.root, rank=options.rank or 0, expand=options.expand
    )
    made = in_order(made, options.sort)
    if options.depth is not None:
        made = trim(made, options.depth)
    if not picture:
        return made
    return fit(made, options.max_nodes, None if options.depth is not None else _PICTURE_DEPTH)


def _check_rank_and_axis(subject: Subject, options: Options) -> None:
    if options.rank is not None and subject.mesh is None:
        raise UsageError(
            f"what rank {options.rank} holds is not known",
            why="there is no mesh",
            fix="give a run, or a mesh and a plan",
        )
    if options.axis is not None:
        _check_axis(subject, options.axis)


def _check_axis(subject: Subject, axis: str) -> None:
    mesh = subject.mesh
    if mesh is None:
        known = dict(pair for axes in meshes_of_dtensors(subject.graph) for pair in axes)
    else:
        known = {**mesh.dense.sizes, **(mesh.expert.sizes if mesh.expert else {})}
    if not known:
        raise UsageError(
            f"there is no axis {axis!r}",
            why="there is no mesh",
            fix="give a run, or a mesh and a plan",
        )
    if axis not in known:
        raise UsageError(
            f"there is no axis {axis!r}",
            why=f"the mesh has {', '.join(known)}",
            fix=did_you_mean(axis, known) or None,
        )


def draw(target: Run | ModuleGraph | Subject, format: Format, options: Options) -> bytes:  # noqa: A002 - the word of the command line
    """The run or graph in one format.

    Raises:
        RenderError: A picture is asked for, and there is no Graphviz or it failed.
        TooLargeError: The picture took too long, or is too large for its format.
        UsageError: See `view`.
    """
    subject = prepare(target, options)
    if format == "html":
        from hpx.render.page import page

        _check_rank_and_axis(subject, options)
        return page(subject, options)
    if format == "json":
        from hpx.render.json_form import view_to_json

        made = view(subject, options, picture=False)
        return view_to_json(subject, made, options).encode()
    if format == "text":
        return _text(subject, options).encode()
    return _picture(subject, format, options)


def _text(subject: Subject, options: Options) -> str:
    made = view(subject, options, picture=False)
    if options.dataflow:
        flows = flows_text(subject.graph, box_flows(subject.graph, made))
        made = replace(made, extra=(*made.extra, ("dataflow", flows)))
    text = view_to_text(
        made, color=options.color, ranges=options.rank is not None, columns=options.columns
    )
    held = who_holds(subject, made, options)
    if held is None:
        return text
    from hpx.render.ranks import ranks_text

    table = ranks_text(*held, name=the_row(made).path, rank=options.rank)
    return f"{text}\n{table}"


def _picture(
    subject: Subject,
    format: PictureFormat | Literal["dot"],  # noqa: A002 - the word of the command line
    options: Options,
) -> bytes:
    if options.engine == "builtin" and format != "svg":
        raise UsageError(
            f"the built-in outline is svg, not {format}", fix="-f svg, or --engine dot"
        )
    made = view(subject, options, picture=options.engine != "builtin")
    if format == "svg" and options.engine != "dot":
        drawn = _without_graphviz(subject, made, options)
        if drawn is not None:
            return drawn.encode()
    flows: list[tuple[int, int]] = []
    if options.dataflow:
        flows = box_flows(subject.graph, made)
        text = flows_text(subject.graph, flows)
        made = replace(made, extra=(*made.extra, ("dataflow", text)))
    dot = view_to_dot(
        made,
        direction=options.direction,
        color_by=options.color_by,
        axis=options.axis,
        ranges=options.rank is not None,
        histories=row_histories(subject, made),
        flows=flows,
    )
    if format == "dot":
        return dot.encode()
    return draw_dot(dot, format, timeout=options.timeout)


def _without_graphviz(subject: Subject, made: View, options: Options) -> str | None:
    """The svg of one parameter over the mesh, or the outline; None if Graphviz is to draw."""
    held = who_holds(subject, made, options)
    if held is not None:
        from hpx.render.ranks_svg import ranks_svg

        return ranks_svg(*held, name=the_row(made).path, rank=options.rank)
    if options.engine == "auto" and made.num_nodes <= _MOST_LAID_OUT:
        return None
    from hpx.render.outline import view_to_svg

    return view_to_svg(
        made,
        color_by=options.color_by,
        axis=options.axis,
        ranges=options.rank is not None,
        histories=row_histories(subject, made),
    )


def render(
    target: Run | ModuleGraph | Subject,
    path: str | Path,
    *,
    format: Format | None = None,  # noqa: A002 - the word of the command line
    **options: Any,
) -> Path:
    """Write a run or graph to a file; an existing one is replaced only on success.

    Args:
        target: What to draw.
        path: Where to; the format follows the suffix.
        format: The format, whatever the suffix.
        **options: See `Options`.

    Returns:
        The path.

    Raises:
        TooLargeError: See `draw`; the DOT text is left beside ``path`` if Graphviz was to draw it.
        HpxError: See `draw`.
    """
    place = Path(path)
    return save(target, place, format or format_of(place), Options(**options))


def save(
    target: Run | ModuleGraph | Subject,
    place: Path,
    format: Format,  # noqa: A002 - the word of the command line
    options: Options,
) -> Path:
    """`render`, with the options at hand."""
    try:
        return write_bytes(place, draw(target, format, options))
    except TooLargeError as error:
        if options.engine != "builtin":  # which draws without any
            keep_dot(draw(target, "dot", options).decode(), place, error)
        raise


def graph_to_dot(graph: ModuleGraph, **options: Any) -> str:
    """A graph as DOT text; see `Options`."""
    return draw(graph, "dot", Options(**options)).decode()
