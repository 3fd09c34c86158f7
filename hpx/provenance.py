"""The log: every decision as one event, in order. The log builds the graph.

An event names nodes by id, so it survives renames, stacks and ties. `replay` applies events to a
copy of the entry graph; a pass's context applies each event the moment it is recorded, through the
same function. One event covers a regular group of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from hpx.graph import edit
from hpx.graph.graph import ModuleGraph
from hpx.graph.jsonform import spec_from_json, spec_to_json
from hpx.graph.nodes import TensorSpec
from hpx.layout import Layout
from hpx.lineage import Lineage, lineage_from_json, lineage_to_json, sources
from hpx.order import Order
from hpx.plan import Rule
from hpx.ranges import compact_ids, expand_ids, pack_ids

__all__ = ["Derivation", "Event", "EventKind", "Provenance", "apply_event", "replay"]

EventKind: TypeAlias = Literal[
    "set", "derive", "alias", "remove", "rename", "attach", "skip", "note"
]


class Derivation(NamedTuple):
    """The new value of a ``derive`` event: where the parameter goes and what it is made of."""

    parent: int
    name: str
    lineage: Lineage
    spec: TensorSpec


class Event(NamedTuple):
    """One decision.

    Attributes:
        seq: Its place in the log, from 0.
        step: The step of the schedule that made it, from 1.
        pass_: The step's name, such as ``shard-params`` or ``name#2``.
        kind: ``set`` a key; ``derive`` a parameter from others; ``alias`` two into one; ``remove``;
            ``rename``; ``attach`` something to install later; ``skip`` a rule or node; ``note``.
        nodes: The ids it is about, the same decision for each.
        key: Of ``set`` the key; of ``skip`` the key that was not set.
        old: The value before (for ``alias`` the id that went, for ``rename`` the old place).
        new: The value after.
        why: The reason, for people.
        rule: The plan's rule that decided, or lost.
        cause: The seq of an event that this one follows from.
    """

    seq: int
    step: int
    pass_: str
    kind: EventKind
    nodes: Sequence[int]
    key: str | None
    old: object
    new: object
    why: str
    rule: Rule | None = None
    cause: int | None = None

    def to_json(self) -> dict[str, object]:
        """A JSON object with the fields of ``hpx.run/1``; empty ones are left out."""
        nodes = pack_ids(self.nodes)
        out: dict[str, object] = {
            "seq": self.seq,
            "step": self.step,
            "pass": self.pass_,
            "kind": self.kind,
            "node": _node_form(nodes),
            "key": self.key,
            "old": _encode(self.key, self.old),
            "new": _encode(self.key, self.new),
            "why": self.why,
            "rule": self.rule.to_json() if self.rule else None,
            "cause": self.cause,
        }
        return {key: value for key, value in out.items() if value is not None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Event:
        """The inverse of `to_json`."""
        node = value.get("node", [])
        key = value.get("key")
        rule = value.get("rule")
        return cls(
            value["seq"],
            value["step"],
            value["pass"],
            value["kind"],
            (node,) if isinstance(node, int) else compact_ids(expand_ids(node)),
            key,
            _decode(key, value.get("old")),
            _decode(key, value.get("new")),
            value["why"],
            Rule.from_json(rule) if rule else None,
            value.get("cause"),
        )


def _node_form(packed: list[int | list[int]]) -> int | list[int | list[int]] | None:
    """One id, a packed list, or None for no node."""
    if len(packed) == 1 and isinstance(packed[0], int):
        return packed[0]
    return packed or None


_TUPLE_KEYS: Final = frozenset(["reduce", "place"])


def _encode(key: str | None, value: object) -> object:
    if isinstance(value, Layout | Order):
        return value.to_json()
    if isinstance(value, Derivation):
        return {
            "parent": value.parent,
            "name": value.name,
            "lineage": lineage_to_json(value.lineage),
            "spec": spec_to_json(value.spec),
        }
    if key in _TUPLE_KEYS and isinstance(value, tuple):
        return list(value)
    return value


def _decode(key: str | None, value: Any) -> object:
    if value is None:
        return None
    if key == "layout":
        return Layout.from_json(value)
    if key == "order":
        return Order.from_json(value)
    if key == "lineage":
        return Derivation(
            value["parent"],
            value["name"],
            lineage_from_json(value["lineage"]),
            spec_from_json(value["spec"]),
        )
    if key in _TUPLE_KEYS:
        return tuple(value)
    return cast(object, value)


def apply_event(graph: ModuleGraph, event: Event) -> None:
    """Do to the graph what the event says; skips, notes and attachments change nothing in it."""
    kind = event.kind
    if kind == "set":
        assert event.key is not None
        edit.set_key(graph, event.nodes, event.key, event.new)
    elif kind == "derive":
        made = cast(Derivation, event.new)
        edit.derive_node(graph, event.nodes[0], made.parent, made.name, made.lineage, made.spec)
    elif kind == "remove":
        edit.remove_nodes(graph, event.nodes)
    elif kind == "alias":
        edit.alias_node(graph, event.nodes[0], cast(int, event.old))
    elif kind == "rename":
        parent, name = cast(tuple[int, str], event.new)
        edit.rename_node(graph, event.nodes[0], parent, name)


def replay(entry: ModuleGraph, events: Iterable[Event]) -> ModuleGraph:
    """The graph that the events make of the entry graph, which stays as it is."""
    graph = entry.copy()
    for event in events:
        apply_event(graph, event)
    return graph


class Provenance:
    """The events of a run, with an index by node."""

    def __init__(self, events: Sequence[Event] = ()) -> None:
        self.events: list[Event] = list(events)
        self._by_node: dict[int, tuple[int, ...]] = {}
        self._ranges: list[tuple[Sequence[int], int]] = []
        self._indexed = 0

    def __len__(self) -> int:
        return len(self.events)

    def record(self, event: Event) -> None:
        """Add an event; its seq has to be its place."""
        assert event.seq == len(self.events)
        self.events.append(event)

    def of(self, node_id: int) -> list[Event]:
        """The events that name a node, as what they are about or as a source, in order."""
        return [self.events[seq] for seq in self.seqs_of(node_id)]

    def seqs_of(self, node_id: int) -> list[int]:
        """As `of`, by seq."""
        self._index()
        own = self._by_node.get(node_id, ())
        return sorted({*own, *(seq for nodes, seq in self._ranges if node_id in nodes)})

    def _index(self) -> None:
        # Nodes with one history share one tuple: 45,000 nodes have few different ones.
        longer: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}
        for event in self.events[self._indexed :]:
            for nodes in _named(event):
                if isinstance(nodes, range):
                    self._ranges.append((nodes, event.seq))
                    continue
                for node_id in nodes:
                    before = self._by_node.get(node_id, ())
                    key = (before, event.seq)
                    after = longer.get(key)
                    if after is None:
                        after = longer[key] = (*before, event.seq)
                    self._by_node[node_id] = after
        self._indexed = len(self.events)


def _named(event: Event) -> Iterator[Sequence[int]]:
    yield event.nodes
    if event.kind == "derive":
        yield compact_ids(sources(cast(Derivation, event.new).lineage))
    elif event.kind == "alias":
        yield (cast(int, event.old),)
