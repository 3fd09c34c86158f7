"""Nodes of a graph by their path, for tests."""

from __future__ import annotations

from hpx.graph import ModuleGraph, ModuleNode, TensorNode

__all__ = ["module", "parameter_names", "tensor"]


def tensor(graph: ModuleGraph, path: str) -> TensorNode:
    node = graph.get(path)
    assert isinstance(node, TensorNode)
    return node


def module(graph: ModuleGraph, path: str) -> ModuleNode:
    node = graph.get(path)
    assert isinstance(node, ModuleNode)
    return node


def parameter_names(graph: ModuleGraph) -> list[list[str]]:
    return [graph.paths(node.id) for node in graph.parameters()]
