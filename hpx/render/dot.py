"""The view as DOT text: the picture, and all that is needed of it without Graphviz installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpx.render.labels import LabelMaker, header_label
from hpx.render.palette import ALERT
from hpx.render.shape import Direction, best_direction, stagger
from hpx.render.viewmodel import View

if TYPE_CHECKING:
    import graphviz

__all__ = ["view_to_dot"]

_MOST_TIES: Final = 12
"""More dashed lines than this tell nothing; the marks on the rows stay."""


def view_to_dot(view: View, *, direction: Direction | None = None) -> str:
    """The whole view as DOT text.

    Args:
        view: The view, cut to what can be drawn.
        direction: ``LR`` or ``TB``; chosen by the shape of the tree if not given.
    """
    import graphviz

    flow = direction or best_direction(view)
    dot = graphviz.Digraph(
        "hpx",
        graph_attr={
            "rankdir": flow,
            "label": header_label(view),
            "labelloc": "t",
            "labeljust": "l",
            "fontname": "Helvetica",
            "fontsize": "10",
            "nodesep": "0.25",
            "ranksep": "0.4",
            "ordering": "out",
            "bgcolor": "white",
        },
        node_attr={"shape": "plain", "fontname": "Helvetica", "fontsize": "10"},
        edge_attr={"color": "#777777", "arrowsize": "0.6"},
    )
    labels = LabelMaker(view)
    for box in view.boxes:
        dot.node(f"n{box.index}", label=labels.box(box))
    for box in view.boxes:
        levels = stagger(view, box, flow)
        for place, below in enumerate(box.below):
            attributes = {"minlen": str(1 + place % levels)} if levels > 1 else {}
            if view.boxes[below].alert:
                attributes |= {"color": ALERT.hex, "penwidth": "2"}
            dot.edge(f"n{box.index}", f"n{below}", **attributes)
    _add_ties(dot, view)
    text: str = dot.source
    return text


def _add_ties(dot: graphviz.Digraph, view: View) -> None:
    places: dict[int, str] = {}
    for box in view.boxes:
        for place, row in enumerate(box.rows):
            if row.kind != "link":
                places[row.node] = f"n{box.index}:r{place}"
    ties = [
        (places[row.node], f"n{box.index}:r{place}")
        for box in view.boxes
        for place, row in enumerate(box.rows)
        if row.kind == "link" and row.node in places
    ]
    if len(ties) > _MOST_TIES:
        return
    for first, other in ties:
        dot.edge(
            first,
            other,
            style="dashed",
            dir="none",
            constraint="false",
            color="#333333",
            tooltip="one parameter with two names",
        )
