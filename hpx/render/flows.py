"""Traced dataflow between what a picture draws: which box's result another box takes."""

from __future__ import annotations

from hpx.graph.graph import ModuleGraph
from hpx.render.viewmodel import Box, View

__all__ = ["box_flows", "flows_text"]


def box_flows(graph: ModuleGraph, view: View) -> list[tuple[int, int]]:
    """Edges between boxes, by their indices, in the order in which they run.

    What flows within a box, as from one row to the next, is none; neither is what flows between
    equal siblings that are one box.

    Args:
        graph: The graph, with the edges that tracing found.
        view: The view of it.
    """
    box_of = {module: box for box, module in _modules(graph, view).items()}
    found: dict[tuple[int, int], None] = {}
    for start, end in graph.feeds:
        first, then = _box(graph, box_of, start), _box(graph, box_of, end)
        if first is not None and then is not None and first != then:
            found[first, then] = None
    return list(found)


def flows_text(graph: ModuleGraph, flows: list[tuple[int, int]]) -> str:
    """How many of the traced edges are drawn, or why none are; for the header."""
    if not graph.feeds:
        return str(graph.hints.get("dataflow", "none: it was not traced"))
    return (
        f"{len(flows):,} of {len(graph.feeds):,} traced edges run between two boxes that are drawn"
    )


def _modules(graph: ModuleGraph, view: View) -> dict[int, int]:
    """The id of every box's module; of folded ones, that of the first."""
    found: dict[int, int] = {}
    for box in reversed(view.boxes):
        module = _module(graph, view, box, found)
        if module is not None:
            found[box.index] = module
    return found


def _module(graph: ModuleGraph, view: View, box: Box, known: dict[int, int]) -> int | None:
    """Told by what is directly in it: as many names up as its label has."""
    below = [(row.node, row.label) for row in box.rows if row.kind != "link"]
    below += [(known[index], view.boxes[index].label) for index in box.below if index in known]
    for node_id, label in below:
        node = graph.nodes.get(node_id)
        for _ in label.split("."):
            node = graph.nodes.get(node.parent) if node is not None else None
        if node is not None:
            return node.id
    return None


def _box(graph: ModuleGraph, box_of: dict[int, int], module: int) -> int | None:
    """The box that a module is drawn in: its own, that of its equal sibling, or the next above."""
    node = graph.nodes.get(module)
    while node is not None:
        if node.id in box_of:
            return box_of[node.id]
        if node.name.isdigit():
            above = graph.module(node.parent)
            drawn = [
                id_ for name, id_ in above.children.items() if name.isdigit() and id_ in box_of
            ]
            if drawn:
                return box_of[drawn[0]]
        node = graph.nodes.get(node.parent)
    return None
