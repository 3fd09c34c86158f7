"""Packed dims: which parameters the plan declares, how they will be cut, and the order they need.

With ``repeat: 1`` the parts stand one after the other, and a plain cut goes across them: the dim
has to be reordered first. Where the sequence of parts repeats (head by head, group by group), whole
repeats stay together and the model's own order is the right one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from hpx.errors import LayoutError
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.layout import Layout
from hpx.mesh import MeshSpec
from hpx.order import Order
from hpx.plan import Packed, Pattern, Rule, ShardingPlan
from hpx.sharding import bias_layout, weight_of

__all__ = [
    "Declared",
    "Packing",
    "declared_packed",
    "order_for",
    "packing_of",
    "packings",
    "patterns_of",
]

Declared: TypeAlias = Sequence[tuple[Pattern, Packed]]
"""The entries under ``packed:``, each with its parsed pattern."""


class Packing(NamedTuple):
    """A parameter that is declared packed and will be cut on its packed dim.

    Attributes:
        node: The parameter.
        packed: Its declaration, or the one that a bias has from its weight.
        order: The order that it needs; None if its own is right, or nothing can make it right.
        pieces: In how many pieces the dim will be cut.
        rule: The rule that cuts it.
    """

    node: TensorNode
    packed: Packed
    order: Order | None
    pieces: int
    rule: Rule | None


def patterns_of(plan: ShardingPlan) -> list[tuple[Pattern, Packed]]:
    """The declarations of a plan."""
    return [(Pattern.parse(entry.pattern), entry) for entry in plan.packed]


def declared_packed(graph: ModuleGraph, node: TensorNode, packed: Declared) -> Packed | None:
    """The declaration of a parameter; biases and adapters may have that of their weight."""
    names = graph.names(node.id) if packed else []
    found = next((e for pattern, e in packed for name in names if pattern.matches(name)), None)
    if found is not None or not packed:
        return found
    weight = weight_of(graph, node)
    if weight is not None:
        # [out] of [out, in], and of stacked experts [E, out] of [E, out, in].
        dims = [len(node.shape) - 1] if len(node.shape) == len(weight.shape) - 1 else []
    else:
        weight = _base_of(graph, node)
        dims = list(range(len(node.shape)))
    inherited = None if weight is None else declared_packed(graph, weight, packed)
    if weight is None or inherited is None or not -len(weight.shape) <= inherited.dim:
        return None
    size = weight.shape[inherited.dim % len(weight.shape)]
    dim = next((dim for dim in dims if node.shape[dim] == size), None)
    return None if dim is None else replace(inherited, dim=dim)


def _base_of(graph: ModuleGraph, node: TensorNode) -> TensorNode | None:
    """The weight that an adapter (LoRA's B, ``[out, r]``) belongs to."""
    above = node.parent
    while above >= 0:
        owner = graph.module(above)
        base = owner.children.get("base_layer")
        if base is not None:
            inner = graph.nodes[base]
            weight = inner.children.get("weight") if isinstance(inner, ModuleNode) else None
            found = None if weight is None else graph.tensor(weight)
            return None if found is None or found.id == node.id else found
        above = owner.parent if "lora" in owner.name or node.parent == above else -1
    return None


def order_for(packed: Packed, shape: Sequence[int], cuts: Mapping[int, int]) -> Order | None:
    """The order that a packed dim needs before it is cut; None if none is needed or possible.

    Args:
        packed: The declaration.
        shape: Global shape of the parameter.
        cuts: Number of pieces by dim.
    """
    if packed.repeat != 1 or len(packed.parts) < 2:
        return None
    dim = packed.dim % len(shape) if -len(shape) <= packed.dim < len(shape) else -1
    pieces = cuts.get(dim, 1)
    if pieces == 1:
        return None
    order = Order(dim, packed.parts, pieces)
    try:
        order.check(shape)
    except LayoutError:
        return None  # shard-params says why
    return order


def packings(graph: ModuleGraph, plan: ShardingPlan, mesh: MeshSpec) -> Iterator[Packing]:
    """The parameters that the plan declares packed and cuts there, in the order of the tree."""
    packed = patterns_of(plan)
    rules = [(rule.parsed, rule) for rule in plan.params] if packed else []
    for node in graph.parameters() if packed else ():
        if declared_packed(graph, node, packed) is None:
            continue
        layout, rule = _layout(graph, node, rules, mesh)
        packing = packing_of(graph, node, packed, layout, mesh)
        if packing is not None:
            yield packing._replace(rule=rule)


def packing_of(
    graph: ModuleGraph, node: TensorNode, packed: Declared, layout: Layout, mesh: MeshSpec
) -> Packing | None:
    """What a parameter with a resolved layout needs; None if it is not cut on a packed dim."""
    declared = declared_packed(graph, node, packed)
    if declared is None or not node.shape:
        return None
    cuts = _pieces(layout, mesh)
    pieces = cuts.get(declared.dim % len(node.shape), 1)
    if pieces == 1:
        return None
    return Packing(node, declared, order_for(declared, node.shape, cuts), pieces, None)


def _layout(
    graph: ModuleGraph, node: TensorNode, rules: list[tuple[Pattern, Rule]], mesh: MeshSpec
) -> tuple[Layout, Rule | None]:
    """The layout that ``shard-params`` will give, and the rule behind it."""
    rule = _rule(graph, node, rules)
    if rule is not None:
        return _resolved(rule, mesh, len(node.shape)), rule
    weight = weight_of(graph, node)
    followed = None if weight is None else _rule(graph, weight, rules)
    if weight is None or followed is None:
        return Layout(), None
    layout = bias_layout(graph, weight, _resolved(followed, mesh, len(weight.shape)))
    return layout or Layout(), followed


def _rule(graph: ModuleGraph, node: TensorNode, rules: list[tuple[Pattern, Rule]]) -> Rule | None:
    names = graph.names(node.id)
    return next((rule for pattern, rule in rules if any(map(pattern.matches, names))), None)


def _resolved(rule: Rule, mesh: MeshSpec, ndim: int) -> Layout:
    try:
        return rule.layout.resolve(mesh, ndim)
    except LayoutError:
        return Layout()  # shard-params says why


def _pieces(layout: Layout, mesh: MeshSpec) -> dict[int, int]:
    sizes = mesh.view_of(layout).sizes
    return {dim: math.prod(sizes[axis] for axis in layout.axes_on(dim)) for _, dim in layout.shards}
