"""Build a graph in preorder; equal specifications become one object, subtrees get signatures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


class _Draft(NamedTuple):
    kind: TensorKind | None  # None: a module
    parent: int
    name: str
    spec: ModuleSpec | TensorSpec
    children: dict[str, int]


class GraphBuilder:
    """Collects nodes in preorder and makes the graph.

    A module's tensors have to be added before its child modules, and a subtree before the next
    sibling: then ids are preorder numbers, which folded files rely on.
    """

    def __init__(self) -> None:
        self._drafts: list[_Draft] = []
        self._links: list[tuple[int, str, int]] = []
        self._specs: dict[object, ModuleSpec | TensorSpec] = {}

    def module(self, parent: int, name: str, spec: ModuleSpec) -> int:
        """Add a module below ``parent`` (-1 for the root) and return its id."""
        return self._add(None, parent, name, spec)

    def tensor(self, kind: TensorKind, parent: int, name: str, spec: TensorSpec) -> int:
        """Add a parameter, buffer or plain tensor attribute and return its id."""
        return self._add(kind, parent, name, spec)

    def link(self, parent: int, name: str, node_id: int, place: int | None = None) -> None:
        """Give an existing node one more name: a shared module or a tied parameter.

        Args:
            parent: The module that holds the further name.
            name: The registered name there.
            node_id: The node.
            place: Where the name stands among the module's children; last if not given.
        """
        children = self._drafts[parent].children
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
            node_id = self._drafts[node_id].parent

    def path(self, node_id: int) -> str:
        """The registered dotted name of a node, for messages while the graph is being built."""
        names = [self._drafts[above].name for above in self.above(node_id)]
        return ".".join(reversed(names[:-1]))

    def _add(
        self, kind: TensorKind | None, parent: int, name: str, spec: ModuleSpec | TensorSpec
    ) -> int:
        node_id = len(self._drafts)
        if parent >= 0:
            siblings = self._drafts[parent].children
            if name in siblings:
                raise InputError(f"the name '{name}' occurs twice in one module")
            siblings[name] = node_id
        # A leaf shares one empty dictionary: it never gets children.
        children = {} if kind is None else _NO_CHILDREN
        spec = self._specs.setdefault(spec, spec)
        self._drafts.append(_Draft(kind, parent, name, spec, children))
        return node_id

    def finish(
        self,
        *,
        source: str = "",
        hints: Mapping[str, object] | None = None,
        has_structure: bool = True,
    ) -> ModuleGraph:
        """The graph of everything that was added."""
        more: dict[int, list[Edge]] = {}
        links = set()
        for parent, name, node_id in self._links:
            more.setdefault(node_id, []).append((parent, name))
            links.add((parent, name))
        numbers: dict[object, int] = {"link": _LINK}
        signatures = [0] * len(self._drafts)
        built: list[Node] = []
        # Children have larger ids than their parents, so the reverse order sees them first.
        for node_id in range(len(self._drafts) - 1, -1, -1):
            kind, parent, name, spec, children = self._drafts[node_id]
            edges = tuple(more[node_id]) if node_id in more else NO_EDGES
            if isinstance(spec, TensorSpec):
                assert kind is not None
                key: object = (kind, spec)
                signature = numbers.setdefault(key, len(numbers))
                built.append(TensorNode(node_id, kind, parent, name, edges, spec))
            else:
                key = (
                    spec,
                    tuple(children),
                    tuple(
                        [
                            _LINK if links and (node_id, child_name) in links else signatures[child]
                            for child_name, child in children.items()
                        ]
                    ),
                )
                signature = numbers.setdefault(key, len(numbers))
                built.append(
                    ModuleNode(node_id, parent, name, edges, spec, children, signature, NO_PROPS)
                )
            signatures[node_id] = signature
        built.reverse()
        return ModuleGraph(
            dict(enumerate(built)), source=source, hints=hints, has_structure=has_structure
        )


_NO_CHILDREN: dict[str, int] = {}
