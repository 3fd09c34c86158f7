"""The view that people read: one record for every parameter of the final graph."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import TensorNode, item_size
from hpx.layout import REPLICATED, Layout, Range, index_range, local_shape
from hpx.lineage import Source, describe
from hpx.mesh import MeshSpec
from hpx.plan import Rule
from hpx.provenance import Provenance

__all__ = ["Param", "model_summary", "param_of", "params_from_json", "params_of", "params_to_json"]

_FOLD_ABOVE = 5000
"""More parameters than this are saved with equal records written once (see `params_to_json`)."""


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter as the run leaves it.

    Attributes:
        id: Node id in the run's graph.
        name: First canonical name.
        aliases: Its further names (a tied group is one parameter).
        kind: ``parameter``.
        shape: Global shape.
        dtype: Name of the torch dtype.
        requires_grad: Whether it is trained.
        layout: Placements, or None where no pass decided.
        mesh: The view the layout lives on: ``dense`` or ``expert``.
        local_shape: What the first rank holds (no other holds more).
        bytes: Of the global tensor.
        local_bytes: Of the first rank's piece.
        lineage: ``stack(...)`` for a derived parameter, ``permute(...)`` for one with a packed
            dim in another order, else None.
        rule: The plan's rule that decided the layout.
        events: The seqs of the events that name it or its names.
        reduce: Axes over which its gradient must be summed besides the data axes.
    """

    id: int
    name: str
    aliases: tuple[str, ...]
    kind: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    layout: Layout | None
    mesh: str | None
    local_shape: tuple[int, ...]
    bytes: int
    local_bytes: int
    lineage: str | None
    rule: Rule | None
    events: tuple[int, ...]
    reduce: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """The ``params`` entry of ``hpx.run/1``."""
        return {
            "id": self.id,
            "name": self.name,
            "aliases": list(self.aliases),
            "kind": self.kind,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "requires_grad": self.requires_grad,
            "layout": None if self.layout is None else self.layout.to_json(),
            "mesh": self.mesh,
            "local_shape": list(self.local_shape),
            "bytes": self.bytes,
            "local_bytes": self.local_bytes,
            "lineage": self.lineage,
            "rule": None if self.rule is None else self.rule.to_json(),
            "events": list(self.events),
            "reduce": list(self.reduce),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Param:
        """The inverse of `to_json`."""
        return cls(
            value["id"],
            value["name"],
            tuple(value["aliases"]),
            value["kind"],
            tuple(value["shape"]),
            value["dtype"],
            value["requires_grad"],
            None if value["layout"] is None else Layout.from_json(value["layout"]),
            value["mesh"],
            tuple(value["local_shape"]),
            value["bytes"],
            value["local_bytes"],
            value["lineage"],
            None if value["rule"] is None else Rule.from_json(value["rule"]),
            tuple(value["events"]),
            tuple(value["reduce"]),
        )

    @classmethod
    def of(
        cls,
        graph: ModuleGraph,
        node: TensorNode,
        layout: Layout | None,
        mesh: MeshSpec | None,
        entry: ModuleGraph,
        *,
        rule: Rule | None = None,
        events: tuple[int, ...] = (),
        reduce: tuple[str, ...] = (),
    ) -> Param:
        """The record of a parameter node with a layout that its graph need not have.

        Args:
            graph: The graph of the node.
            node: The node.
            layout: The layout, or None.
            mesh: The mesh; None where it is not known, and a piece is told as large as the whole.
            entry: The graph of the original tensors.
            rule: The rule that decided the layout.
            events: The seqs of the events that name it.
            reduce: Axes over which its gradient must be summed.
        """
        names = graph.paths(node.id)
        local, view = node.shape, node.mesh
        if layout is not None and mesh is not None:
            on = mesh.view_of(layout)
            view = on.name
            if layout.shards:
                local = local_shape(node.shape, layout, on.sizes, on.coordinate(0))
        made = node.expression
        return cls(
            id=node.id,
            name=names[0],
            aliases=tuple(names[1:]),
            kind=node.kind,
            shape=node.shape,
            dtype=node.spec.dtype,
            requires_grad=node.spec.requires_grad,
            layout=layout,
            mesh=view,
            local_shape=local,
            bytes=node.spec.num_bytes,
            local_bytes=math.prod(local) * item_size(node.spec.dtype),
            lineage=None if isinstance(made, Source) else describe(made, entry.path),
            rule=rule,
            events=events,
            reduce=reduce,
        )

    def ranges(self, mesh: MeshSpec, rank: int) -> tuple[Range, ...]:
        """What a rank holds, as a range of indices in every dim."""
        layout = self.layout or REPLICATED
        view = mesh.view_of(layout)
        return index_range(self.shape, layout, view.sizes, view.coordinate(rank))


def param_of(
    graph: ModuleGraph, node: TensorNode, mesh: MeshSpec, log: Provenance, entry: ModuleGraph
) -> Param:
    """The record of one parameter node."""
    events = log.of(node.id)
    rules = (e.rule for e in reversed(events) if e.kind == "set" and e.key == "layout")
    reduce = node.props.get("reduce", ())
    return Param.of(
        graph,
        node,
        node.layout,
        mesh,
        entry,
        rule=next(rules, None),
        events=tuple(event.seq for event in events),
        reduce=tuple(reduce) if isinstance(reduce, tuple) else (),
    )


def params_of(
    graph: ModuleGraph, mesh: MeshSpec, log: Provenance, entry: ModuleGraph
) -> Iterator[Param]:
    """The records of all parameters, in the order of the tree."""
    return (param_of(graph, node, mesh, log, entry) for node in graph.parameters())


def params_to_json(params: Iterable[Param]) -> list[dict[str, object]]:
    """The ``params`` list.

    Of more than 5,000, a record that differs from an earlier one in id and name alone is
    ``{"id", "name", "like": index}``, so that 45,000 take a few MB.
    """
    entries = [param.to_json() for param in params]
    if len(entries) <= _FOLD_ABOVE:
        return entries
    seen: dict[str, int] = {}
    out: list[dict[str, object]] = []
    for index, entry in enumerate(entries):
        rest = {key: value for key, value in entry.items() if key not in ("id", "name")}
        first = seen.setdefault(repr(rest), index)
        if first == index:
            out.append(entry)
        else:
            out.append({"id": entry["id"], "name": entry["name"], "like": first})
    return out


def params_from_json(
    entries: Sequence[Mapping[str, Any]], places: Iterable[int] | None = None
) -> list[Param]:
    """The inverse of `params_to_json`; of the entries at ``places`` alone, if given."""
    out: list[Param] = []
    whole: dict[int, Param] = {}  # those that others are like: each is read once
    for place in range(len(entries)) if places is None else places:
        entry = entries[place]
        like = entry.get("like")
        if like is None:
            out.append(Param.from_json(entry))
            continue
        first = whole.get(like)
        if first is None:
            first = whole[like] = Param.from_json(entries[like])
        out.append(replace(first, id=entry["id"], name=entry["name"]))
    return out


def model_summary(graph: ModuleGraph) -> dict[str, object]:
    """The ``model`` entry of ``hpx.run/1``: source, parameters, elements and bytes."""
    # Equal specifications are one object: each is measured once.
    specs = [node.spec for node in graph.parameters()]
    counts = Counter(map(id, specs))
    kinds = {id(spec): spec for spec in specs}.values()
    return {
        "source": graph.source,
        "num_parameters": len(specs),
        "num_elements": sum(spec.num_elements * counts[id(spec)] for spec in kinds),
        "bytes": sum(spec.num_bytes * counts[id(spec)] for spec in kinds),
    }
