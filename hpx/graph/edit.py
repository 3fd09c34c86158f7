"""Apply one event to a graph: the only writer, so the log cannot differ from the graph.

Each kind of event has one small function. All of them replace nodes by new values; none changes a
node in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from hpx.errors import ContractError
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import NO_EDGES, ModuleNode, Node, TensorNode, TensorSpec, row_major
from hpx.lineage import Lineage, shape_of, sources

__all__ = ["alias_node", "derive_node", "derived_spec", "remove_nodes", "rename_node", "set_key"]


def set_key(graph: ModuleGraph, node_ids: Iterable[int], key: str, value: object) -> None:
    """Set one key of some nodes; None removes it."""
    nodes = graph.nodes
    # A pass sets one value on thousands of nodes whose props are equal: they share the new one.
    made: dict[int, tuple[Mapping[str, object], Mapping[str, object]]] = {}
    for node_id in node_ids:
        node = nodes[node_id]
        seen = made.get(id(node.props))
        if seen is None or seen[0] is not node.props:
            props = {k: v for k, v in node.props.items() if k != key}
            if value is not None:
                props[key] = value
            seen = made[id(node.props)] = (node.props, props)
        if isinstance(node, TensorNode):
            nodes[node_id] = node._replace(props=seen[1])
        else:
            nodes[node_id] = node._replace(props=seen[1])


def derived_spec(lineage: Lineage, lookup: Mapping[int, Node]) -> TensorSpec:
    """The specification of a derived parameter: that of its first source, with the new shape."""
    first = lookup[next(sources(lineage))]
    assert isinstance(first, TensorNode)
    shape = shape_of(lineage, lambda node_id: cast(TensorNode, lookup[node_id]).spec.shape)
    return first.spec._replace(shape=shape, strides=row_major(shape))


def derive_node(
    graph: ModuleGraph, node_id: int, parent: int, name: str, lineage: Lineage, spec: TensorSpec
) -> None:
    """Add a parameter that is computed from others below ``parent``."""
    owner = graph.module(parent)
    if name in owner.children:
        raise ContractError(f"'{graph.edge_path(parent, name)}' exists already")
    node = TensorNode(node_id, "parameter", parent, name, NO_EDGES, spec, lineage=lineage)
    graph.nodes[node_id] = node
    _set_children(graph, owner, {**owner.children, name: node_id})


def remove_nodes(graph: ModuleGraph, node_ids: Iterable[int]) -> None:
    """Remove nodes; a module goes with everything below it, so name each node of the subtree."""
    gone = set(node_ids)
    nodes = graph.nodes
    owners: dict[int, set[str]] = {}
    for node_id in gone:
        node = nodes[node_id]
        for parent, name in ((node.parent, node.name), *node.more):
            if parent not in gone:
                owners.setdefault(parent, set()).add(name)
    for node_id in gone:
        del nodes[node_id]
    for parent, names in owners.items():
        owner = graph.module(parent)
        left = {name: child for name, child in owner.children.items() if name not in names}
        _set_children(graph, owner, left)


def rename_node(graph: ModuleGraph, node_id: int, parent: int, name: str) -> None:
    """Move a node to another place in the tree."""
    node = graph.nodes[node_id]
    target = graph.module(parent)
    if name in target.children:
        raise ContractError(f"'{graph.edge_path(parent, name)}' exists already")
    old = graph.module(node.parent)
    if old.id == parent:  # keep the place among the siblings
        children = {name if n == node.name else n: child for n, child in old.children.items()}
        _set_children(graph, old, children)
    else:
        _set_children(graph, old, {n: c for n, c in old.children.items() if n != node.name})
        target = graph.module(parent)
        _set_children(graph, target, {**target.children, name: node_id})
    moved = graph.nodes[node_id]
    if isinstance(moved, TensorNode):
        graph.nodes[node_id] = moved._replace(parent=parent, name=name)
    else:
        graph.nodes[node_id] = moved._replace(parent=parent, name=name)


def alias_node(graph: ModuleGraph, keep: int, drop: int) -> None:
    """Make one node of two: ``keep`` gets every name of ``drop``."""
    kept, dropped = graph.tensor(keep), graph.tensor(drop)
    edges = ((dropped.parent, dropped.name), *dropped.more)
    for parent, name in edges:
        owner = graph.module(parent)
        _set_children(graph, owner, {**owner.children, name: keep})
    del graph.nodes[drop]
    graph.nodes[keep] = kept._replace(more=(*kept.more, *edges))


def _set_children(graph: ModuleGraph, owner: ModuleNode, children: dict[str, int]) -> None:
    """Put new children on a module and forget the signatures that they were part of."""
    graph.forget_order()
    graph.nodes[owner.id] = owner._replace(children=children, signature=0)
    above = owner.parent
    while above >= 0:
        node = graph.module(above)
        if node.signature == 0:
            break
        graph.nodes[above] = node._replace(signature=0)
        above = node.parent
