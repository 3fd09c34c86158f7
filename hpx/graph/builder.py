"""Build a graph in preorder; equal specifications become one object, subtrees get signatures."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hpx.errors import InputError
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import (
    NO_EDGES,
    NO_PROPS,
    Edge,
    ModuleNode,
    ModuleSpec,
    Node,
    TensorKind,
    TensorNode,
    TensorSpec,
)

__all__ = ["GraphBuilder"]

_LINK = 0  # in a signature: a child that is owned elsewhere, whatever it is


class _Repeat(NamedTuple):
    """Siblings with the nodes of a first one: ``size`` ids each, from ``start`` on."""

    parent: int
    first: int
    start: int
    size: int
    names: tuple[str, ...]

    @property
    def roots(self) -> range:
        return range(self.start, self.start + self.size * len(self.names), self.size)


class GraphBuilder:
    """Collects nodes in preorder and makes the graph.

    A module's tensors have to be added before its child modules, and a subtree before the next
    sibling: then ids are preorder numbers, which folded files rely on.
    """

    def __init__(self) -> None:
        # A tensor's node is ready at once; a module's follows when all that is below is known.
        self._nodes: list[TensorNode | None] = []
        self._signatures: list[int] = []
        self._modules: list[int] = []
        self._parents: list[int] = []
        self._names: list[str] = []
        self._specs: list[ModuleSpec] = []
        self._children: dict[int, dict[str, int]] = {}
        self._links: list[tuple[int, str, int]] = []
        self._repeats: list[_Repeat] = []
        self._numbers: dict[object, int] = {"link": _LINK}
        self._module_specs: dict[ModuleSpec, ModuleSpec] = {}
        self._kept: set[int] = set()  # ids of the specifications that are kept, so none is reused
        self._tensor_specs: dict[tuple[TensorKind, TensorSpec], tuple[TensorSpec, int]] = {}
        self._by_id: dict[tuple[TensorKind, int], tuple[TensorSpec, int]] = {}
        self._open: list[int] = []  # the module that nodes are added to, and those above it
        self._in_preorder = True

    @property
    def count(self) -> int:
        """How many nodes there are: the id that the next one gets."""
        return len(self._nodes)

    def module(self, parent: int, name: str, spec: ModuleSpec) -> int:
        """Add a module below ``parent`` (-1 for the root) and return its id."""
        node_id = len(self._nodes)
        if parent >= 0:
            self._name_child(parent, name, node_id)
        if id(spec) not in self._kept:
            spec = self._module_specs.setdefault(spec, spec)
            self._kept.add(id(spec))
        self._modules.append(node_id)
        self._parents.append(parent)
        self._names.append(name)
        self._specs.append(spec)
        self._children[node_id] = {}
        self._open.append(node_id)
        self._nodes.append(None)
        self._signatures.append(0)
        return node_id

    def tensor(self, kind: TensorKind, parent: int, name: str, spec: TensorSpec) -> int:
        """Add a parameter, buffer or plain tensor attribute and return its id."""
        node_id = len(self._nodes)
        self._name_child(parent, name, node_id)
        # Hashing a specification costs more than looking its id up, and most come again.
        known = self._by_id.get((kind, id(spec)))
        if known is None:
            known = self._tensor_number(kind, spec)
        shared, signature = known
        fields = (node_id, kind, parent, name, NO_EDGES, shared, NO_PROPS, None)
        self._nodes.append(tuple.__new__(TensorNode, fields))
        self._signatures.append(signature)
        return node_id

    def tensor_spec(self, node_id: int) -> TensorSpec:
        """The specification of a tensor that was added."""
        node = self._nodes[node_id]
        assert node is not None
        return node.spec

    def repeat(self, parent: int, first: int, names: Sequence[str]) -> int:
        """Add siblings with the same nodes as ``first``, the module added last below ``parent``.

        Returns:
            The id of the first sibling; each takes as many ids as ``first`` has nodes.
        """
        start = len(self._nodes)
        size = start - first
        for number, name in enumerate(names):
            self._name_child(parent, name, start + number * size)
        self._repeats.append(_Repeat(parent, first, start, size, tuple(names)))
        self._nodes += [None] * (size * len(names))
        self._signatures += [0] * (size * len(names))
        return start

    def link(self, parent: int, name: str, node_id: int, place: int | None = None) -> None:
        """Give an existing node one more name: a shared module or a tied parameter.

        Args:
            parent: The module that holds the further name.
            name: The registered name there.
            node_id: The node.
            place: Where the name stands among the module's children; last if not given.
        """
        children = self._children[parent]
        children[name] = node_id
        if place is not None:
            order = list(children)
            order.insert(place, order.pop())
            for other in order:
                children[other] = children.pop(other)
        self._links.append((parent, name, node_id))

    def above(self, node_id: int) -> Iterator[int]:
        """A node and the modules that contain it, by first names, up to the root."""
        while node_id >= 0:
            yield node_id
            node_id = self._place(node_id)[0]

    def path(self, node_id: int) -> str:
        """The registered dotted name of a node, for messages while the graph is being built."""
        names = [self._place(above)[1] for above in self.above(node_id)]
        return ".".join(reversed(names[:-1]))

    def finish(
        self,
        *,
        source: str = "",
        hints: Mapping[str, object] | None = None,
        has_structure: bool = True,
    ) -> ModuleGraph:
        """The graph of everything that was added."""
        more: dict[int, tuple[Edge, ...]] = {}
        for parent, name, node_id in self._links:
            more[node_id] = (*more.get(node_id, NO_EDGES), (parent, name))
        linked = {parent for parent, _, _ in self._links}
        nodes: list[Node | None] = list(self._nodes)
        signatures, numbers = self._signatures, self._numbers
        repeats: dict[int, list[_Repeat]] = {}
        for repeat in self._repeats:
            repeats.setdefault(repeat.parent, []).append(repeat)
        # Children have larger ids than their parents, so the reverse order sees them first.
        drafts = zip(
            *(reversed(self._modules), reversed(self._parents)),
            *(reversed(self._names), reversed(self._specs)),
            strict=True,
        )
        for node_id, parent, name, spec in drafts:
            children = self._children[node_id]
            for repeat in repeats.get(node_id, ()):
                for root in repeat.roots:
                    signatures[root] = signatures[repeat.first]
            below = [signatures[child] for child in children.values()]
            if node_id in linked:
                below = [
                    signatures[child] if self._place(child) == (node_id, child_name) else _LINK
                    for child_name, child in children.items()
                ]
            key = (id(spec), *children, *below)
            signature = signatures[node_id] = numbers.setdefault(key, len(numbers))
            fields = (node_id, parent, name, NO_EDGES, spec, children, signature, NO_PROPS)
            nodes[node_id] = tuple.__new__(ModuleNode, fields)
        for repeat in self._repeats:  # those inside others come first
            _copy_nodes(nodes, repeat)
        graph = {node.id: node for node in nodes if node is not None}
        for node_id, edges in more.items():
            graph[node_id] = graph[node_id]._replace(more=edges)
        return ModuleGraph(
            graph,
            source=source,
            hints=hints,
            has_structure=has_structure,
            order=range(len(nodes)) if self._in_preorder else None,
        )

    def _name_child(self, parent: int, name: str, node_id: int) -> None:
        if self._open[-1] != parent:
            self._close_up_to(parent)
        siblings = self._children[parent]
        if name in siblings:
            raise InputError(f"the name '{name}' occurs twice in one module")
        siblings[name] = node_id

    def _close_up_to(self, parent: int) -> None:
        stack = self._open
        while stack and stack[-1] != parent:
            stack.pop()
        if not stack:
            self._in_preorder = False
            stack.append(parent)

    def _tensor_number(self, kind: TensorKind, spec: TensorSpec) -> tuple[TensorSpec, int]:
        known = self._tensor_specs.get((kind, spec))
        if known is None:
            number = self._numbers.setdefault((kind, spec), len(self._numbers))
            known = self._tensor_specs[kind, spec] = (spec, number)
        # Only kept specifications are known by id, so an id is never that of another one.
        self._by_id[kind, id(known[0])] = known
        return known

    def _place(self, node_id: int) -> Edge:
        node = self._nodes[node_id]
        if node is not None:
            return (node.parent, node.name)
        at = bisect_left(self._modules, node_id)
        if at < len(self._modules) and self._modules[at] == node_id:
            return (self._parents[at], self._names[at])
        repeat = next(r for r in reversed(self._repeats) if r.start <= node_id < r.roots.stop)
        number, offset = divmod(node_id - repeat.start, repeat.size)
        if offset == 0:
            return (repeat.parent, repeat.names[number])
        parent, name = self._place(repeat.first + offset)
        return (parent + node_id - repeat.first - offset, name)


def _copy_nodes(nodes: list[Node | None], repeat: _Repeat) -> None:
    """Make the nodes of siblings from those of the first."""
    template = nodes[repeat.first : repeat.first + repeat.size]
    base = repeat.first
    for root, name in zip(repeat.roots, repeat.names, strict=True):
        # One object a number: 100,000 ids that each stand in three places are worth sharing.
        ids = list(range(root, root + repeat.size))
        for node_id, node in zip(ids, template, strict=True):
            assert node is not None
            parent = repeat.parent if node_id == root else ids[node.parent - base]
            own = name if node_id == root else node.name
            if isinstance(node, TensorNode):
                _, kind, _, _, more, spec, props, lineage = node
                fields = (node_id, kind, parent, own, more, spec, props, lineage)
                nodes[node_id] = tuple.__new__(TensorNode, fields)
            else:
                _, _, _, more, spec_, children, signature, props = node
                below = {key: ids[child - base] for key, child in children.items()}
                where = (node_id, parent, own, more)
                nodes[node_id] = tuple.__new__(ModuleNode, (*where, spec_, below, signature, props))
