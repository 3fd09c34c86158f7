"""One parameter in focus, or equal ones that fold to one: who holds what of it."""

from __future__ import annotations

from hpx.layout import Layout
from hpx.mesh import MeshSpec
from hpx.render.options import Options
from hpx.render.subject import Subject
from hpx.render.viewmodel import Row, View

__all__ = ["the_row", "who_holds"]


def the_row(view: View) -> Row:
    """The one parameter's row of a view that has one."""
    [row] = _rows(view)
    return row


def who_holds(
    subject: Subject, view: View, options: Options
) -> tuple[tuple[int, ...], Layout, MeshSpec] | None:
    """Shape, layout and mesh of the one parameter that ``focus`` leaves.

    None where it leaves several that differ, or where the layout or the mesh is not known.
    """
    rows = _rows(view)
    if not options.focus or len(rows) != 1 or subject.mesh is None or rows[0].token == "mixed":
        return None
    node = subject.graph.tensor(rows[0].node)
    return None if node.layout is None else (node.shape, node.layout, subject.mesh)


def _rows(view: View) -> list[Row]:
    return [row for row in view.rows() if row.kind == "parameter"]
