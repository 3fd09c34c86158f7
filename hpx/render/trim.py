"""Cut a view to what can be read: to a depth, or to a number of drawn nodes.

The budget is met by collapsing the deepest level first, for the whole tree alike; only where a
single level is over it is a level cut short, what stands out kept first.
"""

from __future__ import annotations

from dataclasses import replace

from hpx.render.viewmodel import Box, Item, Row, View

__all__ = ["fit", "trim"]


def trim(view: View, depth: int) -> View:
    """The view with the boxes deeper than ``depth`` cut off; those above say how many there were.

    Args:
        view: The view.
        depth: 0 keeps the top box alone.
    """
    if depth >= view.full_depth:
        return view
    hidden = [0] * len(view.boxes)
    for box in reversed(view.boxes):
        if box.depth > depth:
            hidden[box.parent] += 1 + hidden[box.index]
    return replace(_keep(view, [box.depth <= depth for box in view.boxes], hidden), depth=depth)


def fit(view: View, max_nodes: int, max_depth: int | None = None) -> View:
    """The view cut to ``max_nodes`` boxes and rows.

    Args:
        view: The view.
        max_nodes: The budget; at least 1.
        max_depth: Deeper levels are cut off in any case.
    """
    limit = view.full_depth if max_depth is None else min(max_depth, view.full_depth)
    levels = [0] * (view.full_depth + 1)
    for box in view.boxes:
        levels[box.depth] += 1 + len(box.rows)
    total, depth = 0, -1
    while depth < limit and total + levels[depth + 1] <= max_nodes:
        depth += 1
        total += levels[depth]
    if depth < 0 or (depth < limit and total < max_nodes // 4):
        return _cut_short(trim(view, depth + 1), max_nodes)
    return trim(view, depth)


def _cut_short(view: View, max_nodes: int) -> View:
    """Keep as many rows and boxes as there is room for, level by level, what stands out first."""
    room = max_nodes - 1  # the top box
    keep = [box.depth == 0 for box in view.boxes]
    kept_rows: dict[int, set[int]] = {}
    for box in sorted(view.boxes, key=lambda box: (box.depth, not box.alert, box.index)):
        if box.depth > 0:
            if not keep[box.parent] or room <= 0:
                continue
            keep[box.index] = True
            room -= 1
        rows = sorted(enumerate(box.rows), key=lambda pair: (not pair[1].mark, pair[0]))
        kept_rows[box.index] = {place for place, _ in rows[: max(room, 0)]}
        room -= len(kept_rows[box.index])
    hidden = [box.hidden for box in view.boxes]
    for box in reversed(view.boxes):
        if not keep[box.index]:
            hidden[box.parent] += 1 + hidden[box.index]
    boxes = [
        _with_rows(box, kept_rows[box.index]) if keep[box.index] else box for box in view.boxes
    ]
    return _keep(replace(view, boxes=tuple(boxes)), keep, hidden)


def _with_rows(box: Box, places: set[int]) -> Box:
    if len(places) == len(box.rows):
        return box
    items: list[Item] = []
    place = 0
    for item in box.items:
        if not isinstance(item, Row):
            items.append(item)
            continue
        if place in places:
            items.append(item)
        place += 1
    return replace(box, items=tuple(items), hidden_rows=len(box.rows) - len(places))


def _keep(view: View, keep: list[bool], hidden: list[int]) -> View:
    """The boxes that are kept, numbered anew."""
    number = [-1] * len(view.boxes)
    kept = [box for box in view.boxes if keep[box.index]]
    for new, box in enumerate(kept):
        number[box.index] = new
    boxes = [
        replace(
            box,
            index=number[box.index],
            parent=number[box.parent] if box.parent >= 0 else -1,
            items=tuple(
                item if isinstance(item, Row) else number[item]
                for item in box.items
                if isinstance(item, Row) or keep[item]
            ),
            hidden=hidden[box.index],
        )
        for box in kept
    ]
    return replace(view, boxes=tuple(boxes))
