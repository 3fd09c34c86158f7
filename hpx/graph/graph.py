"""The model's module tree with names, shapes and decisions, but no data.

A `ModuleGraph` is a dictionary of immutable nodes. Reading is free for everyone; writing goes
through `hpx.graph.edit`, which only the events of a log call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from hpx.errors import UsageError, nearest
from hpx.graph.nodes import ModuleNode, Node, TensorNode

if TYPE_CHECKING:
    import networkx as nx
    import torch
    from torch.export import ExportedProgram

    from hpx.flow.feeds import Feeds
    from hpx.graph.fold import FoldedGraph

__all__ = ["ModuleGraph"]


class ModuleGraph:
    """A module tree. Ids are given at import, in preorder, and never used twice.

    Attributes:
        nodes: Every node by id.
        root: Id of the root module.
        source: What the graph was read from, for people.
        hints: What the model itself declares, JSON-able: ``tied`` pairs, ``config`` values.
        flow: What a traced model does, in the order in which it runs: points of (module id, numbers
            of the points before it that it takes something from); -1 for a module that is not
            there. Empty where nothing was traced (see `hpx.flow`).
        has_structure: False for a tree made from names alone (a state dict): classes, attributes
            and buffers are unknown there.
    """

    __slots__ = (
        "_next_id",
        "_order",
        "_parameters",
        "flow",
        "has_structure",
        "hints",
        "nodes",
        "root",
        "source",
    )

    def __init__(
        self,
        nodes: dict[int, Node],
        *,
        source: str = "",
        hints: Mapping[str, object] | None = None,
        has_structure: bool = True,
        next_id: int | None = None,
        order: Sequence[int] | None = None,
        flow: Sequence[tuple[int, tuple[int, ...]]] = (),
    ) -> None:
        self.nodes = nodes
        self.root = 0
        self.source = source
        self.hints: dict[str, object] = dict(hints or {})
        self.has_structure = has_structure
        self.flow: tuple[tuple[int, tuple[int, ...]], ...] = tuple(flow)
        self._next_id = len(nodes) if next_id is None else next_id
        self._order = order
        self._parameters: Sequence[int] | None = None

    # -- importers ---------------------------------------------------------------------------

    @classmethod
    def from_module(
        cls, model: torch.nn.Module | ExportedProgram, *, source: str = ""
    ) -> ModuleGraph:
        """Import a module: real, meta or fake tensors, or DTensors; data is never read.

        Args:
            model: The module, a ``torch.fx`` graph module, or an exported program.
            source: What it was read from, for people.

        Raises:
            UsageError: It is neither.
            InputError: A parameter is lazy, or overlaps a part of another's storage.
        """
        from hpx.graph.from_module import graph_from_module

        return graph_from_module(model, source=source)

    @classmethod
    def from_file(cls, path: str | Path) -> ModuleGraph:
        """Import a checkpoint, a folder of one, or a Hugging Face ``config.json``."""
        from hpx.graph.sources import open_model

        return open_model(str(path))

    # -- names -------------------------------------------------------------------------------

    def module(self, node_id: int) -> ModuleNode:
        """The module with this id."""
        node = self.nodes[node_id]
        assert isinstance(node, ModuleNode)
        return node

    def tensor(self, node_id: int) -> TensorNode:
        """The parameter, buffer or tensor attribute with this id."""
        node = self.nodes[node_id]
        assert isinstance(node, TensorNode)
        return node

    def _join(self, parent: int, name: str, *, registered: bool) -> str:
        parts = [] if not name else [name]
        nodes = self.nodes
        # The name of a wrapper's child is a detail of the wrapper, not of the model.
        owner = nodes.get(parent)
        if not registered and isinstance(owner, ModuleNode) and owner.spec.wrapper == name:
            parts = []
        while parent >= 0:
            node = nodes[parent]
            above = nodes.get(node.parent)
            hidden = isinstance(above, ModuleNode) and above.spec.wrapper == node.name
            if node.name and (registered or not hidden):
                parts.append(node.name)
            parent = node.parent
        parts.reverse()
        return ".".join(parts)

    def path(self, node_id: int) -> str:
        """The canonical name: dotted, without wrapper parts; empty for the root."""
        node = self.nodes[node_id]
        return self._join(node.parent, node.name, registered=False)

    def registered_path(self, node_id: int) -> str:
        """The name as ``get_submodule`` takes it, wrapper parts included."""
        node = self.nodes[node_id]
        return self._join(node.parent, node.name, registered=True)

    def edge_path(self, parent: int, name: str) -> str:
        """The canonical name of a place in the tree."""
        return self._join(parent, name, registered=False)

    def paths(self, node_id: int) -> list[str]:
        """Every name of the node: its own edges under every name of the modules above."""
        node = self.nodes[node_id]
        found: list[str] = []
        for parent, name in ((node.parent, node.name), *node.more):
            shared, below = self._climb(parent, name)
            prefixes = [""] if shared is None else self.paths(shared)
            found.extend([".".join(filter(None, (prefix, below))) for prefix in prefixes])
        return list(dict.fromkeys(found))

    def names(self, node_id: int) -> list[str]:
        """Every name that a rule may use: `paths`, and the registered one with wrapper parts."""
        return list(dict.fromkeys([*self.paths(node_id), self.registered_path(node_id)]))

    def _climb(self, parent: int, name: str) -> tuple[int | None, str]:
        """The nearest module above a place that has several names, and the canonical way down."""
        parts: list[str] = []
        while parent >= 0:
            owner = self.module(parent)
            if owner.spec.wrapper != name:
                parts.append(name)
            if owner.more:
                break
            parent, name = owner.parent, owner.name
        parts.reverse()
        return (parent if parent >= 0 else None), ".".join(parts)

    def find(self, path: str) -> int | None:
        """The node with this name, by registered names; wrapper parts may be left out or given.

        The empty name, like every other, leads to what a wrapper wraps.
        """
        current = self.root
        for part in path.split(".") if path else []:
            found = self._child(current, part)
            if found is None:
                return None
            current = found
        return self._unwrap(current)

    def _child(self, node_id: int, part: str) -> int | None:
        node = self.nodes[node_id]
        while isinstance(node, ModuleNode):
            if part in node.children:
                return node.children[part]
            if node.spec.wrapper is None:
                return None
            node = self.nodes[node.children[node.spec.wrapper]]
        return None

    def _unwrap(self, node_id: int) -> int:
        node = self.nodes[node_id]
        while isinstance(node, ModuleNode) and node.spec.wrapper is not None:
            node = self.nodes[node.children[node.spec.wrapper]]
        return node.id

    def get(self, path: str) -> Node:
        """The node with this name.

        Raises:
            UsageError: No such name; the message has the nearest ones.
        """
        found = self.find(path)
        if found is None:
            near = ", ".join(self.names_near(path))
            raise UsageError(
                f"there is no '{path}' in {self.source or 'the model'}",
                fix=f"did you mean {near}?" if near else None,
            )
        return self.nodes[found]

    def names_near(self, path: str) -> list[str]:
        """The existing names that look most like ``path``, from below its deepest known part."""
        current, known = self.root, ""
        for part in path.split("."):
            found = self._child(current, part)
            if found is None or isinstance(self.nodes[found], TensorNode):
                break
            current = found
            known = f"{known}.{part}" if known else part
        rest = path.removeprefix(known).lstrip(".").split(".")[1:]
        names: list[str] = []
        for child in self.children(self._unwrap(current)):
            near = ".".join([self.path(child.id), *rest])
            names.append(near if self.find(near) is not None else self.path(child.id))
        return nearest(path, names)

    # -- walks -------------------------------------------------------------------------------

    def walk(self, start: int | None = None) -> Iterator[Node]:
        """Nodes in preorder, each once, without recursion."""
        if start is not None:
            return self._subtree(start)
        if self._order is None:
            self._order = [node.id for node in self._subtree(self.root)]
        return map(self.nodes.__getitem__, self._order)

    def _subtree(self, start: int) -> Iterator[Node]:
        nodes = self.nodes
        todo = [start]
        while todo:
            node = nodes[todo.pop()]
            yield node
            if isinstance(node, ModuleNode):
                here = node.id
                owned = [
                    child
                    for name, child in node.children.items()
                    if nodes[child].parent == here and nodes[child].name == name
                ]
                owned.reverse()
                todo.extend(owned)

    def modules(self, start: int | None = None) -> Iterator[ModuleNode]:
        """The modules of a walk."""
        return (node for node in self.walk(start) if isinstance(node, ModuleNode))

    def parameters(self, start: int | None = None) -> Iterator[TensorNode]:
        """The parameters of a walk, each tied group once."""
        if start is None:
            return cast("Iterator[TensorNode]", map(self.nodes.__getitem__, self._parameter_ids()))
        return (
            node
            for node in self.walk(start)
            if isinstance(node, TensorNode) and node.kind == "parameter"
        )

    def _parameter_ids(self) -> Sequence[int]:
        # Facts and checks ask again and again, and 60,000 modules stand between.
        if self._parameters is None:
            self._parameters = [
                node.id
                for node in self.walk()
                if isinstance(node, TensorNode) and node.kind == "parameter"
            ]
        return self._parameters

    def buffers(self, start: int | None = None) -> Iterator[TensorNode]:
        """The buffers of a walk."""
        return (
            node
            for node in self.walk(start)
            if isinstance(node, TensorNode) and node.kind == "buffer"
        )

    def children(self, node_id: int) -> list[Node]:
        """The children of a module, second edges included, in order."""
        node = self.nodes[node_id]
        if isinstance(node, TensorNode):
            return []
        return [self.nodes[child] for child in node.children.values()]

    def copy(self) -> ModuleGraph:
        """An independent graph; nodes are values, so this copies one dictionary."""
        twin = ModuleGraph(
            dict(self.nodes),
            source=self.source,
            hints=self.hints,
            has_structure=self.has_structure,
            next_id=self._next_id,
            order=self._order,
            flow=self.flow,
        )
        twin._parameters = self._parameters
        return twin

    def forget_order(self) -> None:
        """The tree changed: the next walk finds its order anew."""
        self._order = None
        self._parameters = None

    def take_id(self) -> int:
        """A fresh id for a derived node."""
        self._next_id += 1
        return self._next_id - 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModuleGraph) and self.nodes == other.nodes

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ModuleGraph({self.source or 'model'}, {len(self.nodes)} nodes)"

    @property
    def feeds(self) -> tuple[tuple[int, int], ...]:
        """Dataflow edges: (from, to) ids of modules in the order in which they run, each once."""
        flow = self.flow
        pairs = ((flow[origin][0], here) for here, origins in flow for origin in origins)
        there = self.nodes.keys()
        return tuple(
            dict.fromkeys(pair for pair in pairs if pair[0] != pair[1] and there >= set(pair))
        )

    def trace(self, model: torch.nn.Module, inputs: object = None) -> Feeds:
        """Trace the model that this graph came from, and keep what flows in it in ``flow``.

        Args:
            model: The model; stays as it is, and no data is read.
            inputs: Example inputs: a tuple, a mapping by name or one tensor; None for what the
                forward seems to take.

        Returns:
            The edges, or why there are none.
        """
        from hpx.flow.feeds import add_feeds
        from hpx.flow.trace import trace_feeds

        found = trace_feeds(model, self, inputs)
        add_feeds(self, found)
        return found

    # -- views -------------------------------------------------------------------------------

    def to_networkx(self) -> nx.MultiDiGraph[int]:
        """The graph for networkx: nodes by id, edges ``contains`` and ``alias``."""
        from hpx.graph.network import to_networkx

        return to_networkx(self)

    def fold(self, by: Literal["structure", "layout"] = "structure") -> FoldedGraph:
        """Equal siblings with numeric names as one group each; see `hpx.graph.fold`."""
        from hpx.graph.fold import fold_graph

        return fold_graph(self, by)

    def to_dot(self, **options: Any) -> str:
        """The picture of the graph as DOT text; see `hpx.render.Options`."""
        from hpx.render import graph_to_dot

        return graph_to_dot(self, **options)

    def _repr_html_(self) -> str:
        """The folded picture, for notebooks."""
        from hpx.render.notebook import html_of_graph

        return html_of_graph(self)
