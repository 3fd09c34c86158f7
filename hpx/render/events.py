"""What happened to the tensors of a picture's rows, as lines for their tooltips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from hpx.render.page.history import Histories
from hpx.render.subject import Subject
from hpx.render.viewmodel import View

__all__ = ["row_histories"]


def row_histories(subject: Subject, view: View) -> dict[int, tuple[str, ...]]:
    """The events about every row's first tensor in order, overridden ones kept.

    Args:
        subject: What the view is of; a graph alone has no events.
        view: The view.

    Returns:
        Lines by node id: ``3 shard-params: layout = tp:S(0); plan.yaml:12 'pattern' (user file)``.
    """
    if subject.run is None:
        return {}
    histories = Histories(subject.run)
    found = {row.node: histories.index(row.node) for row in view.rows()}
    told = histories.to_json()
    events = [
        _line(cast("Sequence[object]", event)) for event in cast("list[object]", told["events"])
    ]
    lists = cast("list[list[int]]", told["histories"])
    return {
        node: tuple(events[place] for place in lists[index])
        for node, index in found.items()
        if index >= 0
    }


def _line(event: Sequence[object]) -> str:
    _, step, pass_, _, _, text, why, rule = event
    reasons = "; ".join(str(part) for part in (rule, why) if part)
    return f"{step} {pass_}: {text}" + (f"; {reasons}" if reasons else "")
