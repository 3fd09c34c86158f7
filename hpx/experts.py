"""Find the expert containers of a model: by the plan, by name, or by structure.

A container is a module whose children are numbered modules (``0..7`` or ``expert_0..expert_7``).
By name: a whole segment such as ``experts`` names it or the module around it. By structure: beside
it stands a module *named* as a router, with one row for each child, that reads what they read. A
matrix of another name is no evidence: four layers beside a classifier of four classes are layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, cast

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, Node, TensorNode
from hpx.plan import Pattern, ShardingPlan
from hpx.projections import is_projection_name

__all__ = [
    "ExpertContainer",
    "all_below",
    "expert_containers",
    "expert_parameters",
    "has_attention",
    "has_matrix_beside",
    "is_expert_name",
    "is_stacked_expert",
    "overlooked_containers",
    "stacked_name",
    "stacks_of",
    "unmatched_expert_patterns",
]

_NAMES: Final = frozenset(
    ["experts", "routed_experts", "local_experts", "expert", "expert_list", "moe_experts"]
)
_ROUTERS: Final = frozenset(
    [
        *("gate", "router", "wg", "gating", "switch", "gate_linear", "routing", "router_linear"),
        *("gating_network", "gate_network", "expert_gate", "moe_gate", "moe_router", "routers"),
        *("w_gate", "gate_weight", "router_weight", "gate_w", "router_w"),
    ]
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
    paths = [name for found in _by_plan(graph, plan.experts) for name in graph.names(found.id)]
    return [
        pattern
        for pattern in plan.experts
        if not any(Pattern.parse(pattern).matches(path) for path in paths)
    ]


def overlooked_containers(graph: ModuleGraph, plan: ShardingPlan) -> list[ExpertContainer]:
    """Containers that look like experts and are not among those that the plan names.

    ``experts: []`` says that there is nothing to stack, so nothing is overlooked then.
    """
    if not plan.experts:
        return []
    named = {found.id for found in _by_plan(graph, plan.experts)}
    return [found for found in _by_looks(graph) if not found.stacked and found.id not in named]


def expert_parameters(graph: ModuleGraph, expert: int) -> dict[str, TensorNode]:
    """The parameters of one expert by canonical inner path, in order."""
    return dict(_inside(graph, expert, ""))


def _inside(graph: ModuleGraph, module_id: int, prefix: str) -> Iterator[tuple[str, TensorNode]]:
    module = graph.module(module_id)
    for name, child_id in module.children.items():
        child = graph.nodes[child_id]
        if isinstance(child, TensorNode):
            yield prefix + name, child
        elif name == module.spec.wrapper:
            yield from _inside(graph, child_id, prefix)
        else:
            yield from _inside(graph, child_id, f"{prefix}{name}.")


def stacks_of(graph: ModuleGraph, experts: list[int]) -> Iterator[tuple[str, list[int]]]:
    """For every parameter path inside equal experts: the ids of that parameter in all of them."""
    modules = cast(Mapping[int, ModuleNode], graph.nodes)  # a path leads through modules only
    for inner in expert_parameters(graph, experts[0]):
        column = experts
        for step in inner.split("."):
            column = [modules[node_id].children[step] for node_id in column]
        yield inner, column


def all_below(graph: ModuleGraph, modules: list[int]) -> list[int]:
    """The ids of modules and of everything below them, sorted."""
    found = list(modules)
    for node_id in found:  # grows while it is read
        node = graph.nodes[node_id]
        if isinstance(node, ModuleNode):
            found.extend(node.children.values())
    return sorted(found)


def stacked_name(inner: str) -> str:
    """The name of the stacked parameter for a path inside an expert.

    >>> stacked_name("gate_proj.weight"), stacked_name("gate_proj.bias"), stacked_name("weight")
    ('gate_proj', 'gate_proj_bias', 'weight')
    """
    return inner.removesuffix(".weight").replace(".", "_")


def is_stacked_expert(graph: ModuleGraph, node: TensorNode) -> bool:
    """Whether dim 0 of a parameter counts experts: it was stacked, or came so.

    What came stacked is a parameter of three dims or more, or stands beside one with as many rows.
    """
    if node.lineage is not None:
        return True
    owner = graph.module(node.parent)
    if not node.shape or "conv" in owner.spec.short_cls.lower():
        return False
    return node.shape[0] == _leading_size(graph, owner)


def _by_plan(graph: ModuleGraph, patterns: tuple[str, ...]) -> Iterator[ExpertContainer]:
    parsed = [Pattern.parse(pattern) for pattern in patterns]
    for node in graph.modules():
        numbered = _numbered(graph, node)
        if not numbered and _leading_size(graph, node) is None:
            continue
        names = graph.names(node.id)
        if any(pattern.matches(name) for pattern in parsed for name in names):
            yield ExpertContainer(node.id, numbered, not numbered, "plan")


def _by_looks(graph: ModuleGraph) -> Iterator[ExpertContainer]:
    todo = [graph.root]
    seen: set[int] = set()
    while todo:
        node = graph.module(todo.pop())
        if node.id in seen:  # a shared module, met under another name
            continue
        seen.add(node.id)
        found = _looks_like(graph, node)
        if found is not None:
            yield found
        if found is None or found.stacked:  # what stands inside an expert is not looked at
            below = [child.id for child in graph.children(node.id) if isinstance(child, ModuleNode)]
            todo.extend(reversed(below))


def _looks_like(graph: ModuleGraph, node: ModuleNode) -> ExpertContainer | None:
    numbered = _numbered(graph, node)
    named = is_expert_name(node.name) or (
        node.parent >= 0 and is_expert_name(graph.module(node.parent).name)
    )
    if numbered and named:
        return ExpertContainer(node.id, numbered, False, "name")
    routed = has_matrix_beside(graph, node, numbered, routers=True)
    if routed and not has_attention(graph, numbered[0][2]):
        return ExpertContainer(node.id, numbered, False, "structure")
    if is_expert_name(node.name) and _leading_size(graph, node) is not None:
        return ExpertContainer(node.id, (), True, "name")
    return None


def _numbered(graph: ModuleGraph, node: ModuleNode) -> tuple[tuple[int, str, int], ...]:
    """The numbered child modules, by number; empty unless there are some."""
    found: list[tuple[int, str, int]] = []
    for name, child in node.children.items():
        match = _NUMBERED.fullmatch(name)
        if match and isinstance(graph.nodes[child], ModuleNode):
            found.append((int(match[1]), name, child))
    return tuple(sorted(found))


def _leading_size(graph: ModuleGraph, node: ModuleNode) -> int | None:
    """The one leading size of the parameters of three dims or more that the module owns."""
    leading = {
        child.shape[0]
        for child in graph.children(node.id)
        if isinstance(child, TensorNode) and child.kind == "parameter" and len(child.shape) >= 3
    }
    return leading.pop() if len(leading) == 1 else None


def has_matrix_beside(
    graph: ModuleGraph,
    node: ModuleNode,
    numbered: tuple[tuple[int, str, int], ...],
    *,
    routers: bool,
) -> bool:
    """Whether a matrix ``[len(numbered), width]`` stands beside, and the children read that width.

    Args:
        graph: The graph.
        node: The module that holds the children.
        numbered: Its children, as `ExpertContainer.experts`.
        routers: Whether the module, or the matrix itself, has to be named as a router.
    """
    if node.parent < 0 or len(numbered) < 2:
        return False
    children = graph.children(numbered[0][2])
    widths = {
        size
        for child in [*children, *(inner for c in children for inner in graph.children(c.id))]
        if isinstance(child, TensorNode) and child.kind == "parameter"
        for size in child.shape
    }
    return any(
        tensor.shape[0] == len(numbered) and tensor.shape[1] in widths
        for sibling in graph.children(node.parent)
        if sibling.id != node.id and (not routers or sibling.name in _ROUTERS)
        for tensor in _matrices_near(graph, sibling, 3 if routers else 2)
    )


def _matrices_near(graph: ModuleGraph, node: Node, depth: int) -> Iterator[TensorNode]:
    """The matrices of a module and of what stands in it, down to a depth; no tables."""
    if isinstance(node, TensorNode):
        if node.kind == "parameter" and len(node.shape) == 2:
            yield node
    elif depth and "Embedding" not in node.spec.cls:
        for child in graph.children(node.id):
            yield from _matrices_near(graph, child, depth - 1)


def has_attention(graph: ModuleGraph, module_id: int) -> bool:
    """Whether a module holds q, k or v projections: a decoder layer does, an expert does not."""
    return any(is_projection_name(node.name) for node in graph.walk(module_id))
