"""Fit a run to a model: one that it was not made from, but a twin of it, or of a part of it.

A plan is worked out on the whole model, on meta; what is to be sharded is real, and often only a
pipeline stage. `fit` finds every node of the model in the run by name, and tells the run's log over
for it. Nothing is decided anew, so a parameter of a stage is cut as it is in the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, cast

from torch import nn

from hpx.errors import PassError
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.lineage import Lineage, Permute, Source, Stack, sources
from hpx.provenance import Derivation, Event, Provenance, apply_event
from hpx.ranges import compact_ids
from hpx.run import Run
from hpx.runtime.gather import kept_as

__all__ = ["fit"]

_COMPARED: Final = ("shape", "dtype", "requires_grad")


def fit(run: Run, model: nn.Module, prefix: str = "") -> Run:
    """The run for a model that it was made for, or for a part of that.

    Args:
        run: The run of the whole.
        model: The model: all or some of the modules of the whole, under the names they have there.
        prefix: The name that the model itself has in the whole.

    Returns:
        The same run if it was made from an equal model, else its part.

    Raises:
        PassError: The model has something that the run does not know, or knows otherwise.
    """
    entry = ModuleGraph.from_module(model)
    if not prefix and entry == run.entry:
        return run
    if not run.entry.has_structure:
        raise PassError(
            f"the run was made from {run.entry.source}, which has names and shapes alone",
            why="attributes such as head counts are not in it, so they were not divided",
            fix="make the run from the model; on the meta device it needs no memory",
        )
    return _Fitting(run, entry, prefix).run()


class _Fitting:
    """One fitting: the ids of the whole, and those of the part that they became."""

    def __init__(self, run: Run, entry: ModuleGraph, prefix: str) -> None:
        self.whole = run
        self.entry = entry
        self.merged = kept_as(run)
        self.ids: dict[int, int] = {}
        self.twins: dict[int, int] = {}
        start = run.entry.get(prefix).id if prefix else run.entry.root
        for part, whole in self.pairs(start):
            self.pair(part, whole)
        for gone, kept in self.merged.items():
            if gone in self.ids:  # a stage may have the tied head, and not the embedding
                self.ids.setdefault(kept, self.ids[gone])

    def pairs(self, start: int) -> Iterator[tuple[int, int]]:
        """Every node of the part with its twin in the whole, found by registered names."""
        todo = [(self.entry.root, start)]
        while todo:
            part, whole = (
                _unwrapped(graph, node_id)
                for graph, node_id in zip((self.entry, self.whole.entry), todo.pop(), strict=True)
            )
            yield part, whole
            mine, theirs = self.entry.nodes[part], self.whole.entry.nodes[whole]
            if not isinstance(mine, ModuleNode):
                continue
            if not isinstance(theirs, ModuleNode):
                raise _foreign(self.entry, part, "the run has a tensor of that name")
            for name, child in mine.children.items():
                found = theirs.children.get(name)
                if found is not None:
                    todo.append((child, found))
                elif self.entry.nodes[child].kind in ("module", "parameter"):
                    raise _foreign(self.entry, child, "there is no such name")

    def pair(self, part: int, whole: int) -> None:
        known = self.ids.setdefault(whole, part)
        if known != part:
            raise _foreign(
                self.entry, part, f"in the run it is one with '{self.entry.path(known)}'"
            )
        twin = self.twins.setdefault(part, whole)
        if self.merged.get(twin, twin) != self.merged.get(whole, whole):
            there = self.whole.entry.path
            raise _foreign(
                self.entry, part, f"in the run '{there(twin)}' and '{there(whole)}' are two"
            )
        mine, theirs = self.entry.nodes[part], self.whole.entry.nodes[whole]
        if not isinstance(mine, TensorNode) or mine.kind != "parameter":
            return
        if not isinstance(theirs, TensorNode) or theirs.kind != "parameter":
            raise _foreign(self.entry, part, "in the run it is no parameter")
        for field in _COMPARED:
            found, expected = getattr(mine.spec, field), getattr(theirs.spec, field)
            if found != expected:
                raise _foreign(self.entry, part, f"its {field} is {found}, the run says {expected}")

    def run(self) -> Run:
        """The run of the part."""
        graph = self.entry.copy()
        log = Provenance()
        seqs: dict[int, int] = {}
        for event in self.whole.events:
            told = self.told(event, graph)
            if told is not None:
                cause = None if event.cause is None else seqs.get(event.cause)
                seqs[event.seq] = len(log)
                told = told._replace(seq=len(log), cause=cause)
                log.record(told)
                apply_event(graph, told)
        whole = self.whole
        specs = [node.spec for node in self.entry.parameters()]
        return Run(
            model={
                "source": self.entry.source,
                "num_parameters": len(specs),
                "num_elements": sum(spec.num_elements for spec in specs),
                "bytes": sum(spec.num_bytes for spec in specs),
            },
            mesh=whole.mesh,
            plan=whole.plan,
            pipeline=whole.pipeline,
            options=whole.options,
            schedule=whole.schedule,
            facts=whole.facts,
            problems=[
                p._replace(nodes=tuple(self.mine(p.nodes)))
                for p in whole.problems
                if not p.nodes or self.mine(p.nodes)
            ],
            log=log,
            timings=whole.timings,
            entry=self.entry,
            graph=graph,
        )

    def mine(self, nodes: Iterable[int]) -> list[int]:
        """Those of some nodes that the part has, by its own ids."""
        return list(dict.fromkeys(self.ids[node] for node in nodes if node in self.ids))

    def told(self, event: Event, graph: ModuleGraph) -> Event | None:
        """The event as it is for the part; None if the part has nothing of it."""
        new, old = event.new, event.old
        if event.kind == "derive":
            made = cast(Derivation, new)
            if not self.mine(sources(made.lineage)):
                return None
            new = self.derivation(made, event)
            self.ids[event.nodes[0]] = graph.take_id()
        elif event.kind == "alias":
            kept, gone = self.ids.get(event.nodes[0]), self.ids.get(cast(int, old))
            if kept is None or gone is None or kept == gone:
                return None
            old = gone
        elif event.kind == "rename":
            parent, name = cast(tuple[int, str], new)
            if parent not in self.ids:
                return None
            new = (self.ids[parent], name)
        nodes = self.mine(event.nodes)
        if event.nodes and not nodes:
            return None
        if event.kind == "set" and event.key is not None:
            self.check_attribute(event, nodes)
        return event._replace(nodes=compact_ids(nodes), new=new, old=old)

    def derivation(self, made: Derivation, event: Event) -> Derivation:
        missing = [node for node in sources(made.lineage) if node not in self.ids]
        if missing or made.parent not in self.ids:
            raise PassError(
                "the model has only some of what this parameter is made of",
                where=self.whole.graph.path(event.nodes[0]),
                why=f"{len(missing)} of its sources are not there",
                fix="keep the experts of a container in one part",
            )
        first = self.entry.tensor(self.ids[next(sources(made.lineage))])
        return Derivation(
            self.ids[made.parent],
            made.name,
            self.lineage(made.lineage),
            made.spec._replace(device=first.spec.device),
        )

    def lineage(self, lineage: Lineage) -> Lineage:
        if isinstance(lineage, Source):
            return Source(self.ids[lineage.node])
        if isinstance(lineage, Permute):
            return lineage._replace(part=self.lineage(lineage.part))
        return Stack(tuple(map(self.lineage, lineage.parts)), lineage.dim)

    def check_attribute(self, event: Event, nodes: Iterable[int]) -> None:
        """Refuse a module whose integer is not the one that the run divided."""
        name = cast(str, event.key).removeprefix("attributes.")
        if name == event.key:
            return
        for node in nodes:
            found = dict(self.entry.module(node).spec.attributes).get(name)
            if found != event.old:
                raise _foreign(
                    self.entry, node, f"its {name} is {found}, the run divided {event.old}"
                )


def _unwrapped(graph: ModuleGraph, node_id: int) -> int:
    node = graph.nodes[node_id]
    while isinstance(node, ModuleNode) and node.spec.wrapper is not None:
        node = graph.nodes[node.children[node.spec.wrapper]]
    return node.id


def _foreign(entry: ModuleGraph, node_id: int, why: str) -> PassError:
    return PassError(
        "the model is neither the one that the run was made for nor a part of it:"
        f" '{entry.path(node_id)}'",
        why=why,
        fix="make the run from this model; for a part, prefix= says where it stands in the whole",
    )
