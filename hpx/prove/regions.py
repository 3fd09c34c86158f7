"""The regions of a run, those that are alike once, and what one rank makes of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.layout import REPLICATED, local_shape
from hpx.roles import Role, roles
from hpx.run import Run

__all__ = ["Region", "regions_of"]

_PLACE: Final = re.compile(r"(layer|block|depth)_?(idx|index|id|number|i)|idx|index|layer_id")


@dataclass(frozen=True)
class Region:
    """A region, for all that are like it.

    Attributes:
        nodes: Ids of all of them in the run's graph.
        path: Registered name of the first one.
        kind: ``attention``, ``mlp``, ``colwise`` or ``declared``.
        ranks: Ranks of tp that hold pieces of other shapes, the first of each: the rank, and what
            it holds of each parameter, by name inside the region. Rank 0 is the first.
        integers: What the run made of integer attributes, by (module, attribute) inside it.
        summed: Whether its output is whole again.
        rowwise: Names of the rowwise layers in it, whose outputs are summed.
        inputs: Names of the inputs whose gradient is summed; None for the first one.
        reduced: Names of its whole parameters whose gradient is summed.
        packed: Whether fused weights stand in it, whose parts lie one after the other.
        stacked: Names of parameters in it that are derived: the module has them in another form.
    """

    nodes: tuple[int, ...]
    path: str
    kind: str
    ranks: tuple[tuple[int, Mapping[str, tuple[int, ...]]], ...]
    integers: Mapping[tuple[str, str], int]
    summed: bool
    rowwise: tuple[str, ...]
    inputs: tuple[str, ...] | None
    reduced: tuple[str, ...]
    packed: bool
    stacked: tuple[str, ...]


def regions_of(run: Run) -> list[Region]:
    """The distinct regions of a run, in the order of the tree."""
    graph = run.graph
    found = roles(graph, run.mesh, run.plan)
    narrowed = {(module, name): value for module, name, value in found.widths}
    groups: dict[object, list[Role]] = {}
    for role in found.boundaries:
        if role.kind == "region":
            groups.setdefault(_signature(graph, role), []).append(role)
    tp = run.mesh.size("tp", 1)
    return [_region(run, group, narrowed, tp) for group in groups.values()]


def _signature(graph: ModuleGraph, role: Role) -> object:
    """Equal for regions of one structure; numbers that say where a layer stands do not count."""
    outer = graph.registered_path(role.module)
    parts: list[object] = [role.role, role.output, role.rowwise]
    for node in graph.walk(role.module):
        name = graph.registered_path(node.id).removeprefix(outer)
        if isinstance(node, ModuleNode):
            kept = tuple((k, v) for k, v in node.spec.attributes if not _PLACE.fullmatch(k))
            edited = tuple((k, v) for k, v in node.props.items() if k.startswith("attributes."))
            parts.append((name, node.spec.cls, kept, edited))
        else:
            parts.append((name, node.kind, node.shape, node.spec.dtype, node.layout))
    return tuple(parts)


def _region(
    run: Run, group: list[Role], narrowed: Mapping[tuple[int, str], int], tp: int
) -> Region:
    graph, first = run.graph, group[0]
    outer = graph.registered_path(first.module)
    held: list[tuple[TensorNode, tuple[str, ...]]] = []
    integers: dict[tuple[str, str], int] = {}
    stacked: list[str] = []
    for node, names in _inside(graph, first.module):
        if isinstance(node, TensorNode):
            if node.lineage is not None:
                stacked.append(graph.path(node.id))
            elif node.kind == "parameter":
                held.append((node, names))
            continue
        for key, value in node.props.items():
            if key.startswith("attributes."):
                integers[(names[0], key.removeprefix("attributes."))] = cast(int, value)
        for (module, name), value in narrowed.items():
            if module == node.id and f"attributes.{name}" not in node.props:
                integers[(names[0], name)] = value // tp
    summed = bool(first.rowwise) or first.output is not None
    nodes = tuple(role.module for role in group)
    ranks = tuple(_ranks(run, held, tp))
    packed = any(node.order is not None for node, _ in held)
    inputs = None
    if first.inputs is not None:
        inputs = tuple(name for name, edge in first.inputs.items() if edge == "R")
    reduced = tuple(names[0] for node, names in held if node.props.get("reduce"))
    return Region(
        *(nodes, outer, first.role, ranks, integers, summed, first.rowwise, inputs, reduced),
        *(packed, tuple(stacked)),
    )


def _ranks(
    run: Run, held: Sequence[tuple[TensorNode, tuple[str, ...]]], tp: int
) -> Iterator[tuple[int, dict[str, tuple[int, ...]]]]:
    """The ranks of tp whose shapes no rank before them has."""
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for rank in range(tp):
        shapes: dict[str, tuple[int, ...]] = {}
        for node, names in held:
            layout = node.layout or REPLICATED
            sizes = run.mesh.view_of(layout).sizes
            coordinate = {axis: rank if axis == "tp" else 0 for axis in sizes}
            local = local_shape(node.shape, layout, sizes, coordinate)
            shapes.update(dict.fromkeys(names, local))
        key = tuple(shapes.values())
        if key not in seen:
            seen.add(key)
            yield rank, shapes


def _inside(
    graph: ModuleGraph, module: int
) -> Iterator[tuple[ModuleNode | TensorNode, tuple[str, ...]]]:
    """Every node of a region with its registered names inside it; tied ones from elsewhere too."""
    todo = [(module, "")]
    seen: set[int] = set()
    while todo:
        node_id, name = todo.pop()
        node = graph.nodes[node_id]
        yield node, (name,)
        if isinstance(node, ModuleNode) and node_id not in seen:
            seen.add(node_id)
            below = f"{name}." if name else ""
            todo.extend((child, f"{below}{part}") for part, child in node.children.items())
