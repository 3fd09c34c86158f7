"""Find what a name means in a run: any name that exists now, or that existed before a pass.

`find` works on the folded entry graph and the log alone, so that a loaded run answers without
being expanded. A name that stacking or tying replaced leads to what it became, and says how.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from hpx.errors import UsageError, nearest
from hpx.graph.nodes import ModuleSpec
from hpx.lineage import Lineage, Permute, Source, sources
from hpx.order import Order
from hpx.provenance import Derivation, Event

if TYPE_CHECKING:
    from hpx.params import Param
    from hpx.run import Run

__all__ = ["Found", "Kind", "Names", "Slot", "find"]

Kind: TypeAlias = Literal["parameter", "buffer", "tensor", "module", "attribute"]

_MAX_CANDIDATES = 400


@dataclass(frozen=True)
class Slot:
    """The place of an original tensor in a stacked one.

    Attributes:
        index: The slot, one number for each stack around the tensor, outermost first.
        counts: How many slots each of these stacks has.
        seq: The event that stacked it.
    """

    index: tuple[int, ...]
    counts: tuple[int, ...]
    seq: int

    def __str__(self) -> str:
        index = ".".join(map(str, self.index))
        return f"slot {index} of {'x'.join(map(str, self.counts))}"


@dataclass(frozen=True)
class Found:
    """What a name means.

    Attributes:
        asked: The name as it was given.
        kind: What it names.
        node: Id of the node whose history answers: what the name has become.
        origin: Id of the node that had the name at first; differs from ``node`` where a pass
            stacked or tied it.
        path: The canonical name of ``origin``.
        param: The record of the parameter; None for everything else and for what is gone.
        slot: Where ``origin`` went in a stacked parameter.
        attribute: For ``module.attribute`` the name of the attribute.
        gone: The event that removed the node, if nothing took its place.
    """

    asked: str
    kind: Kind
    node: int
    origin: int
    path: str
    param: Param | None = None
    slot: Slot | None = None
    attribute: str | None = None
    gone: Event | None = None


class Names:
    """The names of a run: those of its entry graph, and what its events made of them."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._tree = run.tree
        self.placed: dict[tuple[int, str], int] = {}
        self.place_of: dict[int, tuple[int, str]] = {}
        self.lineages: dict[int, tuple[Lineage, int]] = {}
        self.orders: dict[int, Order] = {}
        self.tied_to: dict[int, int] = {}
        for event in run.events:
            self._take(event)

    def _take(self, event: Event) -> None:
        if event.kind == "derive":
            made = cast(Derivation, event.new)
            self._put(event.nodes[0], made.parent, made.name)
            self.lineages[event.nodes[0]] = (made.lineage, event.seq)
        elif event.kind == "set" and event.key == "order":
            self.orders.update(dict.fromkeys(event.nodes, cast(Order, event.new)))
        elif event.kind == "rename":
            self._put(event.nodes[0], *cast(tuple[int, str], event.new))
        elif event.kind == "alias":
            self.tied_to[cast(int, event.old)] = event.nodes[0]

    def _put(self, node_id: int, parent: int, name: str) -> None:
        self.placed[parent, name] = node_id
        self.place_of[node_id] = (parent, name)

    @cached_property
    def _made_paths(self) -> set[str]:
        """The names that passes made: only they can hide a name of the model."""
        return {self.path(node_id) for node_id in self.place_of}

    @cached_property
    def removed(self) -> dict[int, Event]:
        """The events that removed nodes, by node."""
        events = (event for event in self.run.events if event.kind == "remove")
        return {node_id: event for event in events for node_id in event.nodes}

    @cached_property
    def _slots(self) -> dict[int, tuple[int, Slot]]:
        found: dict[int, tuple[int, Slot]] = {}
        for node_id, (lineage, seq) in self.lineages.items():
            for source, index, counts in _places(lineage):
                found[source] = (node_id, Slot(index, counts, seq))
        return found

    def expression(self, node_id: int) -> Lineage:
        """How a parameter is computed from original tensors: itself, if nothing was done to it."""
        made = self.lineages.get(node_id)
        lineage = Source(node_id) if made is None else made[0]
        order = self.orders.get(node_id)
        return lineage if order is None else Permute(lineage, order)

    def path(self, node_id: int) -> str:
        """The canonical name of a node, made by a pass or not."""
        place = self.place_of.get(node_id)
        if place is None:
            return self._tree.path(node_id)
        owner = self.path(place[0])
        return f"{owner}.{place[1]}" if owner else place[1]

    def parent(self, node_id: int) -> int | None:
        """The module that a node belongs to, by its first name."""
        place = self.place_of.get(node_id)
        if place is not None:
            return place[0]
        path = self._tree.path(node_id)
        return self._tree.find(path.rpartition(".")[0]) if path else None

    def walk(self, name: str) -> tuple[int, list[str]]:
        """As far as a name leads: the node there, and the parts that lead nowhere."""
        parts = name.split(".") if name else []
        found = self._tree.find(name)
        if found is not None and self._made_paths.isdisjoint(accumulate(parts, "{}.{}".format)):
            return found, []
        here = self._tree.find("")
        assert here is not None
        for place, part in enumerate(parts):
            step = self._step(here, part)
            if step is None:
                return here, parts[place:]
            here = step
        return here, []

    def _step(self, node_id: int, part: str) -> int | None:
        if node_id in self.place_of:
            return None
        made = self.placed.get((node_id, part))
        if made is None:
            made = self.placed.get((self._tree.unwrapped(node_id), part))
        return self._tree.child(node_id, part) if made is None else made

    def became(self, node_id: int) -> tuple[int, Slot | None]:
        """What took the place of a node: the stacked or tied parameter, or the node itself."""
        slot: Slot | None = None
        seen: set[int] = set()
        while node_id not in seen:
            seen.add(node_id)
            if node_id in self.tied_to:
                node_id = self.tied_to[node_id]
            elif node_id in self.removed and node_id in self._slots:
                node_id, slot = self._slots[node_id]
        return node_id, slot

    def history(self, node_id: int) -> list[Event]:
        """Every event about a node, about what it is made of, and about names that it took over."""
        nodes = {node_id}
        if node_id in self.lineages:
            nodes.update(sources(self.lineages[node_id][0]))
        nodes.update(drop for drop in self.tied_to if self.became(drop)[0] == node_id)
        seqs = {seq for node in nodes for seq in self.run.log.seqs_of(node)}
        return [self.run.events[seq] for seq in sorted(seqs)]

    def candidates(self, node_id: int) -> list[str]:
        """Registered names below a module, now and before, and its attributes."""
        if node_id in self.place_of or self._tree.kind(node_id) != "module":
            return []
        inner = self._tree.unwrapped(node_id)
        spec = self._tree.spec(inner)
        assert isinstance(spec, ModuleSpec)
        made = [name for parent, name in self.placed if parent in (node_id, inner)]
        return [*made, *self._tree.children(inner), *dict(spec.attributes)]


def find(run: Run, name: str, names: Names | None = None) -> Found:
    """What ``name`` means in a run.

    Args:
        run: Fresh or loaded.
        name: A name that exists now or existed before a pass; parts that a wrapper adds may be
            left out or given. ``module.attribute`` finds an integer attribute.
        names: The run's names, if they are at hand.

    Raises:
        UsageError: There is and was nothing of that name; has the nearest names.
    """
    names = names or Names(run)
    node_id, rest = names.walk(name)
    made = node_id in names.place_of
    tree = run.tree
    if not rest and (made or tree.kind(node_id) != "module"):
        return _tensor(run, names, name, node_id)
    module = node_id if made else tree.unwrapped(node_id)
    if not rest:
        gone = names.removed.get(module)
        return Found(name, "module", module, module, names.path(module), gone=gone)
    if not made:
        spec = tree.spec(module)
        attribute = ".".join(rest)  # a count that is read in a config has a dot in its name
        if isinstance(spec, ModuleSpec) and _has_attribute(run, module, spec, attribute):
            path = ".".join(filter(None, (names.path(module), attribute)))
            gone = names.removed.get(module)
            return Found(name, "attribute", module, module, path, attribute=attribute, gone=gone)
    raise _not_found(run, names, name, node_id, rest)


def _tensor(run: Run, names: Names, asked: str, origin: int) -> Found:
    node_id, slot = names.became(origin)
    kind: Kind = "parameter" if origin in names.place_of else run.tree.kind(origin)
    return Found(
        asked,
        kind,
        node_id,
        origin,
        names.path(origin),
        param=run.param(node_id) if kind == "parameter" else None,
        slot=slot,
        gone=names.removed.get(node_id),
    )


def _has_attribute(run: Run, module: int, spec: ModuleSpec, attribute: str) -> bool:
    if attribute in dict(spec.attributes):
        return True
    return any(event.key == f"attributes.{attribute}" for event in run.log.of(module))


def _places(lineage: Lineage) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """Every source with its slot and the numbers of slots, outermost stack first."""
    todo: list[tuple[Lineage, tuple[int, ...], tuple[int, ...]]] = [(lineage, (), ())]
    while todo:
        item, index, counts = todo.pop()
        if isinstance(item, Source):
            yield item.node, index, counts
            continue
        if isinstance(item, Permute):
            todo.append((item.part, index, counts))
            continue
        size = (*counts, len(item.parts))
        todo.extend((part, (*index, place), size) for place, part in enumerate(item.parts))


def _not_found(run: Run, names: Names, name: str, node_id: int, rest: list[str]) -> UsageError:
    close = _near_siblings(names, node_id, rest) or _near_anywhere(run, name)
    known = names.path(node_id)
    return UsageError(
        f"there is no '{name}' in {run.model['source'] or 'the model'}",
        why=f"'{known}' has no '{rest[0]}'" if known else None,
        fix=f"did you mean {', '.join(close)}?" if close else None,
    )


def _near_siblings(names: Names, node_id: int, rest: list[str]) -> list[str]:
    """Names that differ in the first part that led nowhere; those that exist in full, if any."""
    known = names.path(node_id)
    full: list[str] = []
    begun: list[str] = []
    for part in nearest(rest[0], dict.fromkeys(names.candidates(node_id))):
        path = ".".join(filter(None, [known, part, *rest[1:]]))
        reached, left = names.walk(path)
        if not left:
            full.append(path)
        elif len(left) < len(rest):
            begun.append(names.path(reached))
    return full or begun


def _near_anywhere(run: Run, name: str) -> list[str]:
    """Parameters that share most parts with the name."""
    wanted = set(name.split("."))
    groups: dict[int, list[str]] = {}
    for known in run.by_name:
        groups.setdefault(len(wanted & set(known.split("."))), []).append(known)
    groups.pop(0, None)
    best = groups[max(groups)][:_MAX_CANDIDATES] if groups else list(run.by_name)[:_MAX_CANDIDATES]
    return nearest(name, best) or (best[:3] if groups else [])
