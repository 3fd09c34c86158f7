"""The view as DOT text: the picture, and all that is needed of it without Graphviz installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from hpx.render.caption import header_label
from hpx.render.labels import LabelMaker
from hpx.render.options import ColorBy
from hpx.render.paint import Paint
from hpx.render.palette import ALERT, CHANGES
from hpx.render.shape import Arrangement, Direction, arrange
from hpx.render.viewmodel import View

if TYPE_CHECKING:
    import graphviz

__all__ = ["view_to_dot"]

_MOST_TIES: Final = 12
"""More dashed lines than this tell nothing; the marks on the rows stay."""


def view_to_dot(
    view: View,
    *,
    direction: Direction | None = None,
    color_by: ColorBy = "layout",
    axis: str | None = None,
    ranges: bool = False,
    histories: Mapping[int, Sequence[str]] | None = None,
    flows: Sequence[tuple[int, int]] = (),
) -> str:
    """The whole view as DOT text.

    Args:
        view: The view, cut to what can be drawn.
        direction: ``LR`` or ``TB``; chosen by the shape of the tree if not given.
        color_by: What colours tell.
        axis: The mesh axis that layouts are told of; all of them if not given.
        ranges: Whether rows say which indices the rank holds, rather than how many.
        histories: What happened to the rows' tensors, by node, for their tooltips.
        flows: Dataflow between boxes, by their indices.
    """
    import graphviz

    arrangement = arrange(view, direction)
    paint = Paint(view, color_by, axis)
    dot = graphviz.Digraph(
        "hpx",
        graph_attr={
            "rankdir": arrangement.direction,
            "label": header_label(view, paint),
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
    labels = LabelMaker(view, paint, ranges=ranges, histories=histories or {})
    node_of = _add_nodes(dot, view, arrangement, labels)
    _add_edges(dot, view, node_of)
    _add_ties(dot, view, node_of)
    _add_flows(dot, flows, node_of)
    text: str = dot.source
    return text


def _add_nodes(
    dot: graphviz.Digraph, view: View, arrangement: Arrangement, labels: LabelMaker
) -> list[str]:
    """One node a box, or one for a panel of boxes; the node of every box."""
    node_of = [f"n{box.index}" for box in view.boxes]
    panel_of = {panel.boxes[0]: panel for panel in arrangement.panels.values()}
    for panel in panel_of.values():
        for index in panel.boxes:
            node_of[index] = f"n{panel.boxes[0]}"
    for box in view.boxes:
        if box.index in panel_of:
            dot.node(node_of[box.index], label=labels.panel(panel_of[box.index]))
        elif node_of[box.index] == f"n{box.index}":
            dot.node(node_of[box.index], label=labels.box(box))
    return node_of


def _add_edges(dot: graphviz.Digraph, view: View, node_of: list[str]) -> None:
    """One edge from a box to each node below, coloured where something below stands out."""
    compared = any(row.mark in CHANGES for row in view.rows())
    color = CHANGES["changed"] if compared else ALERT
    for box in view.boxes:
        below: dict[str, bool] = {}
        for index in box.below:
            node = node_of[index]
            below[node] = below.get(node, False) or view.boxes[index].alert
        for node, alert in below.items():
            attributes = {"color": color.hex, "penwidth": "2"} if alert else {}
            dot.edge(node_of[box.index], node, **attributes)


def _add_ties(dot: graphviz.Digraph, view: View, node_of: list[str]) -> None:
    """A dashed line between the rows of one tensor that has several names.

    Not within one node, where it would run across the text; the rows name each other anyway. It
    leaves and arrives at the sides of the rows that face outwards, for the same reason.
    """
    places: dict[int, tuple[str, str]] = {}
    for box in view.boxes:
        for place, row in enumerate(box.rows):
            if row.kind != "link":
                places[row.node] = (node_of[box.index], f"b{box.index}r{place}")
    ties = [
        (places[row.node], (node_of[box.index], f"b{box.index}r{place}"))
        for box in view.boxes
        for place, row in enumerate(box.rows)
        if row.kind == "link" and row.node in places
    ]
    apart = [(first, other) for first, other in ties if first[0] != other[0]]
    if len(apart) > _MOST_TIES:
        return
    for (node, port), (other, other_port) in apart:
        dot.edge(
            f"{node}:{port}:w",
            f"{other}:{other_port}:w",
            style="dashed",
            dir="none",
            constraint="false",
            color="#333333",
            tooltip="one parameter with two names",
        )


def _add_flows(dot: graphviz.Digraph, flows: Sequence[tuple[int, int]], node_of: list[str]) -> None:
    """A thin blue arrow from each box to those that take its result."""
    for first, then in dict.fromkeys((node_of[a], node_of[b]) for a, b in flows):
        if first != then:
            dot.edge(
                first,
                then,
                color=CHANGES["changed"].hex,
                arrowhead="vee",
                constraint="false",
                tooltip="dataflow",
            )
