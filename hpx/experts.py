"""Find the expert containers of a model: by the plan, by name, or by structure.

A container is a module whose children are numbered modules (``0..7`` or ``expert_0..expert_7``).
By name: a whole segment such as ``experts`` names it or the module around it. By structure: beside
it stands a router, a matrix with one row for each child that reads what the experts read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.plan import Pattern, ShardingPlan

__all__ = ["ExpertContainer", "expert_containers", "is_expert_name", "unmatched_expert_patterns"]

_NAMES: Final = frozenset(
    ["experts", "routed_experts", "local_experts", "expert", "expert_list", "moe_experts"]
)
_NUMBERED: Final = re.compile(r"(?:expert_?)?([0-9]+)")


@dataclass(frozen=True)
class ExpertContainer:
    """A module that holds experts side by side.

    Attributes:
        id: The container.
        experts: ``(index, child name, child id)`` in numeric order.
        stacked: Whether it holds stacked parameters instead of numbered children.
        found_by: ``plan``, ``name`` or ``structure``.
    """

    id: int
    experts: tuple[tuple[int, str, int], ...]
    stacked: bool
    found_by: str


def is_expert_name(part: str) -> bool:
    """Whether a segment of a name is a usual name of an expert container."""
    return part in _NAMES


def expert_containers(graph: ModuleGraph, plan: ShardingPlan) -> list[ExpertContainer]:
    """The containers that are to be stacked or are so already, in the order of the tree."""
    if plan.experts is not None:
        return list(_by_plan(graph, plan.experts))
    return list(_by_looks(graph))


def unmatched_expert_patterns(graph: ModuleGraph, plan: ShardingPlan) -> list[str]:
    """Patterns under ``experts:`` that name no module with experts in it."""
    if not plan.experts:
        return []
    paths = [graph.path(found.id) for found in _by_plan(graph, plan.experts)]
    return [
        pattern
        for pattern in plan.experts
        if not any(Pattern.parse(pattern).matches(path) for path in paths)
    ]


def _by_plan(graph: ModuleGraph, patterns: tuple[str, ...]) -> Iterator[ExpertContainer]:
    parsed = [Pattern.parse(pattern) for pattern in patterns]
    for node in graph.modules():
        numbered = _numbered(graph, node)
        if not numbered and not _has_stacked(graph, node):
            continue
        path = graph.path(node.id)
        if any(pattern.matches(path) for pattern in parsed):
            yield ExpertContainer(node.id, numbered, not numbered, "plan")


def _by_looks(graph: ModuleGraph) -> Iterator[ExpertContainer]:
    inside: set[int] = set()  # what stands inside a container found already
    for node in graph.modules():
        if node.parent in inside:
            inside.add(node.id)
            continue
        numbered = _numbered(graph, node)
        named = is_expert_name(node.name) or (
            node.parent >= 0 and is_expert_name(graph.module(node.parent).name)
        )
        if numbered and named:
            found_by = "name"
        elif len(numbered) > 1 and _has_router(graph, node, numbered):
            found_by = "structure"
        elif named and is_expert_name(node.name) and _has_stacked(graph, node):
            yield ExpertContainer(node.id, (), True, "name")
            continue
        else:
            continue
        inside.add(node.id)
        yield ExpertContainer(node.id, numbered, False, found_by)


def _numbered(graph: ModuleGraph, node: ModuleNode) -> tuple[tuple[int, str, int], ...]:
    """The numbered child modules, by number; empty unless there are some."""
    found: list[tuple[int, str, int]] = []
    for name, child in node.children.items():
        match = _NUMBERED.fullmatch(name)
        if match and isinstance(graph.nodes[child], ModuleNode):
            found.append((int(match[1]), name, child))
    return tuple(sorted(found))


def _has_stacked(graph: ModuleGraph, node: ModuleNode) -> bool:
    """Whether the module owns parameters of three dims (or more) with one leading size."""
    leading = {
        child.shape[0]
        for child in graph.children(node.id)
        if isinstance(child, TensorNode) and child.kind == "parameter" and len(child.shape) >= 3
    }
    return len(leading) == 1


def _has_router(
    graph: ModuleGraph, node: ModuleNode, numbered: tuple[tuple[int, str, int], ...]
) -> bool:
    """A sibling has a matrix ``[len(numbered), width]`` and the children read that width."""
    if node.parent < 0:
        return False
    children = graph.children(numbered[0][2])
    widths = {
        size
        for child in [*children, *(inner for c in children for inner in graph.children(c.id))]
        if isinstance(child, TensorNode) and child.kind == "parameter"
        for size in child.shape
    }
    for sibling in graph.children(node.parent):
        if sibling.id == node.id:
            continue
        tensors = [sibling, *graph.children(sibling.id)]
        if isinstance(sibling, ModuleNode) and "Embedding" in sibling.spec.cls:
            continue
        for tensor in tensors:
            if (
                isinstance(tensor, TensorNode)
                and tensor.kind == "parameter"
                and len(tensor.shape) == 2
                and tensor.shape[0] == len(numbered)
                and tensor.shape[1] in widths
            ):
                return True
    return False
