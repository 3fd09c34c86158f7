"""The networkx view of a module graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["to_networkx"]


def to_networkx(graph: ModuleGraph) -> nx.MultiDiGraph[int]:
    """Nodes by id with path, kind and specification; edges keyed ``contains`` and ``alias``.

    The first name of a node gives the ``contains`` edge; further names of shared modules and tied
    tensors give ``alias`` edges, so the ``contains`` edges alone are a tree.
    """
    import networkx as nx

    out: nx.MultiDiGraph[int] = nx.MultiDiGraph(source=graph.source)
    for node in graph.walk():
        path = graph.path(node.id)
        out.add_node(node.id, path=path, kind=node.kind, spec=node.spec, **dict(node.props))
    for node in graph.walk():
        if isinstance(node, ModuleNode):
            for name, child in node.children.items():
                first = graph.nodes[child]
                owned = (first.parent, first.name) == (node.id, name)
                out.add_edge(node.id, child, key="contains" if owned else "alias", name=name)
    return out
