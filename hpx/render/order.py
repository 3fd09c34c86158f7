"""Put siblings in another order than that of the tree: the biggest first, or by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from hpx.render.options import Sort
from hpx.render.viewmodel import Box, Item, Row, View

__all__ = ["in_order"]

_NUMBER: Final = re.compile(r"([0-9]+)")


def in_order(view: View, by: Sort) -> View:
    """The view with the rows and boxes in every box sorted; boxes stay in preorder.

    Args:
        view: The view, not cut yet.
        by: ``tree`` leaves it as it is; ``bytes`` has the biggest first; ``name`` the first by
            alphabet, numbers in names by their value.
    """
    if by == "tree":
        return view
    boxes = view.boxes

    def size(item: Item) -> tuple[object, ...]:
        return (-(item.bytes if isinstance(item, Row) else boxes[item].bytes),)

    def name(item: Item) -> tuple[object, ...]:
        return natural(item.label if isinstance(item, Row) else boxes[item].label)

    key: Callable[[Item], tuple[object, ...]] = size if by == "bytes" else name
    return _renumbered(view, [tuple(sorted(box.items, key=key)) for box in boxes])


def natural(text: str) -> tuple[object, ...]:
    """A key that sorts ``layers.2`` before ``layers.10``.

    >>> sorted(["a.10", "a.2", "a.b"], key=natural)
    ['a.2', 'a.10', 'a.b']
    """
    parts = _NUMBER.split(text)
    return tuple((0, int(p), "") if i % 2 else (1, 0, p) for i, p in enumerate(parts))


def _renumbered(view: View, items: list[tuple[Item, ...]]) -> View:
    """The boxes in preorder of their sorted items."""
    order: list[int] = []
    todo = [0]
    while todo:
        index = todo.pop()
        order.append(index)
        todo.extend(item for item in reversed(items[index]) if not isinstance(item, Row))
    number = {old: new for new, old in enumerate(order)}
    done: list[Box] = []
    for old in order:
        box = view.boxes[old]
        mine = tuple(x if isinstance(x, Row) else number[x] for x in items[old])
        parent = number[box.parent] if box.parent >= 0 else -1
        done.append(replace(box, index=number[old], parent=parent, items=mine))
    return replace(view, boxes=tuple(done))
