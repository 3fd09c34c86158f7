"""The module-tree graph: nodes, walks, importers and the one place that edits it."""

from hpx.graph.builder import GraphBuilder
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, ModuleSpec, Node, TensorNode, TensorSpec

__all__ = [
    "GraphBuilder",
    "ModuleGraph",
    "ModuleNode",
    "ModuleSpec",
    "Node",
    "TensorNode",
    "TensorSpec",
]
