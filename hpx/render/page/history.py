"""What happened to every node, in order: equal histories are one, and every event is told once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from hpx._text import event_text, rule_place
from hpx.graph.nodes import TensorNode
from hpx.lineage import describe, sources
from hpx.lookup import Names
from hpx.provenance import Derivation, Event
from hpx.render.page.forms import Table

if TYPE_CHECKING:
    from hpx.run import Run

__all__ = ["Histories"]


class Histories:
    """The histories of the nodes of a run.

    Args:
        run: The run; None where there is only a graph, which has no events.
    """

    def __init__(self, run: Run | None) -> None:
        self._run = run
        self._of: dict[int, tuple[int, ...]] = {}
        self._made_from: dict[int, set[int]] = {}
        self._histories = Table()
        self._events: list[Event] = []
        if run is not None:
            self._events = run.events
            self._read()

    def _read(self) -> None:
        # Nodes with one history share one tuple: 45,000 nodes have few different ones.
        longer: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}
        of = self._of
        for event in self._events:
            for nodes in _named(event):
                for node_id in nodes:
                    before = of.get(node_id, ())
                    if before and before[-1] == event.seq:
                        continue
                    key = (before, event.seq)
                    after = longer.get(key)
                    if after is None:
                        after = longer[key] = (*before, event.seq)
                    of[node_id] = after
            if event.kind == "derive":
                made = cast(Derivation, event.new)
                self._made_from[event.nodes[0]] = set(sources(made.lineage))
            elif event.kind == "alias":
                gone = cast(int, event.old)
                taken = self._made_from.setdefault(event.nodes[0], set())
                taken |= {gone, *self._made_from.get(gone, ())}

    def index(self, node_id: int) -> int:
        """The index of a node's history, that of what it is made of included; -1 for none."""
        own = self._of.get(node_id, ())
        if not own:
            return -1
        origins = self._made_from.get(node_id)
        if not origins:
            return self._histories.index((own, ()))
        others = {self._of.get(origin, ()) for origin in origins}
        inherited = {seq for seqs in others for seq in seqs}.difference(own)
        return self._histories.index((own, tuple(sorted(inherited))))

    def lineage(self, node: TensorNode) -> str:
        """How a derived tensor is computed from the model's own; empty for an original one."""
        if node.lineage is None or self._run is None:
            return ""
        return describe(node.lineage, self._run.entry.path)

    def to_json(self) -> dict[str, object]:
        """``{histories, inherited, events}``.

        A history is the places of its events in the list of them; which of these are about what it
        is made of, or about a name that it took over, is in ``inherited``.
        """
        both = cast("list[tuple[tuple[int, ...], tuple[int, ...]]]", self._histories.values)
        used = sorted({seq for own, others in both for seq in (*own, *others)})
        place = {seq: index for index, seq in enumerate(used)}
        by_seq = {event.seq: event for event in self._events}
        names = Names(self._run) if self._run is not None else None
        return {
            "histories": [[place[seq] for seq in sorted((*own, *others))] for own, others in both],
            "inherited": [[place[seq] for seq in others] for _, others in both],
            "events": [_told(by_seq[seq], names) for seq in used],
        }


def _named(event: Event) -> Iterator[Sequence[int]]:
    """The nodes that an event is about, and those that it takes something from."""
    yield event.nodes
    if event.kind == "derive":
        yield list(sources(cast(Derivation, event.new).lineage))
    elif event.kind == "alias":
        yield (cast(int, event.old),)


def _told(event: Event, names: Names | None) -> list[object]:
    """An event as ``[seq, step, pass, kind, key, text, why, rule]``."""
    assert names is not None
    return [
        event.seq,
        event.step,
        event.pass_,
        event.kind,
        event.key or "",
        event_text(event, names.path),
        event.why,
        rule_place(event.rule) if event.rule else "",
    ]
