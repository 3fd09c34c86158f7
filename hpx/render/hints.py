"""All there is to say about a row, as the lines of a tooltip."""

from __future__ import annotations

from collections.abc import Iterator

from hpx._text import bytes_text, counted, shape_text
from hpx.holding import ranges_text
from hpx.render.viewmodel import Row, View
from hpx.render.words import runs_text

__all__ = ["row_lines"]


def row_lines(view: View, row: Row) -> Iterator[str]:
    """Path, shapes, dtype, bytes, layout by axis, who decided it, other names, and its events.

    Args:
        view: The view that it is in.
        row: The row.
    """
    yield row.path
    if row.kind == "link":
        yield f"another name of {row.ties[0]}"
        return
    frozen = "" if row.requires_grad or row.kind != "parameter" else ", frozen"
    kind = "" if row.kind == "parameter" else f" {row.kind}"
    yield f"{shape_text(row.shape)} {row.dtype}{kind}{frozen}"
    if row.count > 1:
        yield f"{counted(row.count, 'tensor')}, {bytes_text(row.bytes)} together"
    elif row.bytes:
        yield bytes_text(row.bytes)
    if row.experts is not None:
        yield f"{row.experts} experts stacked"
    yield from _layout(view, row)
    if row.passes:
        yield f"decided by {', '.join(row.passes)}" + (f", {row.rule}" if row.rule else "")
    if row.reduce:
        yield f"gradient summed over {', '.join(row.reduce)}"
    yield from (f"also named {name}" for name in row.ties)


def _layout(view: View, row: Row) -> Iterator[str]:
    if not view.has_layouts or not row.token:
        return
    if row.token == "-":
        yield "no layout"
        return
    mesh = f" on the {row.mesh} mesh" if row.mesh else ""
    if view.mesh is not None and row.mesh:
        axes = view.mesh.view(row.mesh).axes
        mesh += f" {view.mesh.view(row.mesh)}"
        whole = [axis for axis, size in axes if size > 1 and f"{axis}:" not in row.token]
        mesh += f", R on {', '.join(whole)}" if whole and row.token != "R" else ""
    yield f"layout {row.token}{mesh}"
    if row.was:
        yield f"was {row.was}"
    if row.local_shape is not None and row.ranges is not None:
        yield f"rank {view.rank} holds {shape_text(row.local_shape)}, {ranges_text(row.ranges)}"
    if row.pieces:
        yield f"uneven: {runs_text(row.pieces)}"
