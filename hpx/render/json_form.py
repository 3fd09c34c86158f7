"""The view as JSON, ``hpx.viz/1``: every parameter unfolded, the groups, the header, the history.

The fields are described in docs/reference/viz-file.md. What is not known has no field: without
layouts there are none of ``token``, ``layout``, ``local_shape`` and the like.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final, cast

from hpx.graph.nodes import TensorNode
from hpx.layout import Layout
from hpx.plan import Rule
from hpx.ranges import fold_names
from hpx.render.header import drawn_text
from hpx.render.more import unmatched_rules, without_rule
from hpx.render.options import Options
from hpx.render.page.history import Histories
from hpx.render.placing import Placer
from hpx.render.subject import Subject
from hpx.render.viewmodel import Box, Mark, Row, View

__all__ = ["SCHEMA", "view_to_json"]

SCHEMA: Final = "hpx.viz/1"
_EVENT: Final = ("seq", "step", "pass", "kind", "key", "text", "why", "rule")


def view_to_json(subject: Subject, view: View, options: Options) -> str:
    """The whole view as JSON text, on one line.

    Args:
        subject: What is viewed.
        view: The view of it.
        options: How it was made.
    """
    return json.dumps(_Writer(subject, view, options).whole(), separators=(",", ":")) + "\n"


class _Writer:
    def __init__(self, subject: Subject, view: View, options: Options) -> None:
        self.subject = subject
        self.view = view
        self.graph = subject.graph
        self.placer = Placer(subject.mesh, options.rank or 0)
        self.histories = Histories(subject.run)
        self.start = None if options.root is None else self.graph.get(options.root).id
        self.rules: dict[Rule, int] = {}

    def whole(self) -> dict[str, object]:
        view, subject = self.view, self.subject
        tensors = [n for n in self.graph.walk(self.start) if isinstance(n, TensorNode)]
        parameters = [self._parameter(node) for node in tensors if node.kind == "parameter"]
        told = self.histories.to_json()
        events = [_event(values) for values in cast(Sequence[Sequence[object]], told["events"])]
        return {
            "schema": SCHEMA,
            "title": view.title,
            "source": view.source,
            "step": view.step,
            "mesh": view.mesh.to_json() if view.mesh is not None else None,
            "rank": view.rank if view.mesh is not None else None,
            "selection": subject.selection or None,
            "drawn": drawn_text(view),
            "totals": asdict(view.totals),
            "layouts": dict(view.tokens) if view.has_layouts else None,
            "passes": dict(view.passes),
            "dtypes": dict(view.dtypes),
            "problems": [asdict(finding) for finding in view.findings],
            "unmatched_rules": unmatched_rules(subject),
            "without_rule": fold_names(self.graph.path(n) for n in without_rule(subject)),
            "rules": [rule.to_json() for rule in self.rules],
            "parameters": parameters,
            "buffers": [self._other(node) for node in tensors if node.kind != "parameter"],
            "groups": [self._group(box) for box in view.boxes],
            "histories": [
                _history(cast(Sequence[int], places), events)
                for places in cast(Sequence[object], told["histories"])
            ],
            "events": events,
            "dataflow": [
                [self.graph.path(start), self.graph.path(end)] for start, end in self.graph.feeds
            ],
            "diff": subject.diff.to_json() if subject.diff is not None else None,
        }

    def _parameter(self, node: TensorNode) -> dict[str, object]:
        names = self.graph.paths(node.id)
        history = self.histories.index(node.id)
        out: dict[str, object] = {
            "name": names[0],
            "aliases": names[1:],
            "shape": list(node.shape),
            "dtype": node.spec.dtype,
            "requires_grad": node.spec.requires_grad,
            "bytes": node.spec.num_bytes,
            "lineage": self.histories.lineage(node) or None,
            "mark": self._mark(node),
            "was": self.subject.was.get(node.id),
            "history": None if history < 0 else history,
        }
        gone = self.subject.compared.get(node.id) == "removed"
        return out if gone or not self.view.has_layouts else {**out, **self._placed(node)}

    def _mark(self, node: TensorNode) -> Mark | None:
        known = self.view.marks.get(node.id)
        unset = self.view.has_layouts and not self.placer.of(node).decided
        return known or ("unset" if unset else None)

    def _placed(self, node: TensorNode) -> dict[str, object]:
        placing = self.placer.of(node)
        decision = self.subject.decisions.get(node.id)
        layout = _layout(node)
        reduce = node.props.get("reduce", ())
        out: dict[str, object] = {
            "token": placing.token,
            "layout": None if layout is None else layout.to_json(),
            "mesh": placing.mesh,
            "pass": None if decision is None else decision.pass_,
            "rule": self._rule(decision.rule if decision is not None else None),
            "reduce": list(reduce) if isinstance(reduce, tuple) else [],
        }
        if placing.local_shape is not None and placing.ranges is not None:
            out["local_shape"] = list(placing.local_shape)
            out["local_bytes"] = placing.local_bytes
            out["ranges"] = [list(pair) for pair in placing.ranges]
            out["pieces"] = list(placing.pieces)
        return out

    def _rule(self, rule: Rule | None) -> int | None:
        """The place of a rule in the table of rules."""
        return None if rule is None else self.rules.setdefault(rule, len(self.rules))

    def _other(self, node: TensorNode) -> dict[str, object]:
        names = self.graph.paths(node.id)
        return {
            "name": names[0],
            "aliases": names[1:],
            "kind": node.kind,
            "shape": list(node.shape),
            "dtype": node.spec.dtype,
            "bytes": node.spec.num_bytes,
        }

    def _group(self, box: Box) -> dict[str, object]:
        return {
            "parent": box.parent if box.parent >= 0 else None,
            "label": box.label,
            "path": box.path,
            "class": box.cls,
            "members": box.members,
            "count": box.count,
            "parameters": box.parameters,
            "bytes": box.bytes,
            "layouts": dict(box.tokens) if self.view.has_layouts else None,
            "notes": list(box.notes),
            "same": list(box.same),
            "same_as": box.same_as or None,
            "mark": box.mark or None,
            "alert": box.alert,
            "hidden": box.hidden,
            "rows": [self._row(row) for row in box.rows],
            "groups": box.below,
        }

    def _row(self, row: Row) -> dict[str, object]:
        out: dict[str, object] = {
            "label": row.label,
            "path": row.path,
            "kind": row.kind,
            "count": row.count,
            "shape": list(row.shape),
            "dtype": row.dtype,
            "bytes": row.bytes,
            "ties": list(row.ties),
            "experts": row.experts,
            "mark": row.mark or None,
        }
        if self.view.has_layouts and row.kind == "parameter":
            out["token"] = row.token
            out["passes"] = list(row.passes)
        return out


def _layout(node: TensorNode) -> Layout | None:
    if node.layout is not None or node.spec.placed is None:
        return node.layout
    if any(text.startswith("P") for _, _, text in node.spec.placed):
        return None
    return Layout.parse({axis: text for axis, _, text in node.spec.placed})


def _event(values: Sequence[object]) -> dict[str, object]:
    """An event by names; without a key or rule where it has none."""
    return {name: value for name, value in zip(_EVENT, values, strict=True) if value != ""}


def _history(places: Sequence[int], events: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """The places of the events in order, and of those that a later one overrode."""
    return {"events": list(places), "overridden": list(_overridden(places, events))}


def _overridden(places: Sequence[int], events: Sequence[Mapping[str, object]]) -> Iterator[int]:
    last = {events[place]["key"]: place for place in places if events[place]["kind"] == "set"}
    for place in places:
        event = events[place]
        if event["kind"] == "set" and last[event["key"]] != place:
            yield place
