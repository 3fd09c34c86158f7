"""The facts that the built-in passes require and provide, each with its checker.

A checker reads the graph and the request and returns what speaks against the fact, so what holds
at entry is detected, never assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from hpx.experts import expert_containers
from hpx.pipeline.info import Fact
from hpx.plan import Pattern

if TYPE_CHECKING:
    from hpx.graph.graph import ModuleGraph
    from hpx.pipeline.request import Request

__all__ = [
    "COLLECTIVES",
    "EXPERTS_STACKED",
    "HEADS_LOCAL",
    "LOCALIZED",
    "PACKED",
    "SHARDED",
    "SOURCE_INFO",
    "TIED",
]


def _tied(graph: ModuleGraph, request: Request) -> Iterator[str]:
    from hpx.ties import declared_pairs

    for pair in declared_pairs(graph, request.plan):
        ends = [graph.find(name) for name in pair.names]
        if ends[0] != ends[1]:
            yield f"{pair.names[0]} and {pair.names[1]} are two parameters"


def _experts_stacked(graph: ModuleGraph, request: Request) -> Iterator[str]:
    return (
        f"{graph.path(container.id)} holds {len(container.experts)} separate experts"
        for container in expert_containers(graph, request.plan)
        if not container.stacked
    )


def _packed(graph: ModuleGraph, request: Request) -> Iterator[str]:
    from hpx.packing import packings

    for packing in packings(graph, request.plan, request.mesh):
        if packing.order is not None and packing.node.order != packing.order:
            yield (
                f"{graph.path(packing.node.id)} has its parts one after the other, and will be cut"
                f" in {packing.pieces}"
            )


def _sharded(graph: ModuleGraph, request: Request) -> Iterator[str]:
    mesh = request.mesh
    wanted = [rule for rule in request.plan.params if rule.layout.dim("ep") is not None]
    if mesh.size("tp", 1) > 1:
        # With ep=1 what those rules cut is left as it is.
        whole = [Pattern.parse(rule.pattern) for rule in wanted] if mesh.size("ep", 1) == 1 else []
        for node in graph.parameters():
            if node.layout is None and not _named(graph, node.id, whole):
                yield f"{graph.path(node.id)} has no layout"
    # An expert's layout is what puts it on the expert mesh: that one has some tells it is done.
    if mesh.size("ep", 1) > 1 and wanted:
        layouts = (node.layout for node in graph.parameters())
        if not any(layout is not None and layout.dim("ep") is not None for layout in layouts):
            yield "the plan has rules for ep, and no parameter is on the expert mesh"


def _named(graph: ModuleGraph, node_id: int, patterns: list[Pattern]) -> bool:
    return any(p.matches(name) for p in patterns for name in graph.names(node_id))


def _heads_local(graph: ModuleGraph, request: Request) -> Iterator[str]:
    from hpx.heads import attentions

    found = attentions(graph, request.mesh)
    for attention in found:
        for node, name, value, _ in attention.automatic:
            if f"attributes.{name}" not in graph.nodes[node].props:
                yield f"{graph.path(node)}.{name} is {value}, as before sharding"
    if not found:
        return
    for entry in request.plan.heads:
        pattern = Pattern.parse(entry.pattern)
        for module in graph.modules():
            for name in entry.names:
                if (
                    name in dict(module.spec.attributes)
                    and f"attributes.{name}" not in module.props
                    and any(pattern.matches(path) for path in graph.names(module.id))
                ):
                    yield f"{graph.path(module.id)}.{name} is declared under heads:, and undivided"


def _source_info(graph: ModuleGraph, _request: Request) -> Iterator[str]:
    return (
        f"{graph.path(node.id)} has no source-layout record"
        for node in graph.parameters()
        if node.layout is not None and "source" not in node.props
    )


def _localized(graph: ModuleGraph, _request: Request) -> Iterator[str]:
    return (
        f"{graph.path(node.id)} is not localized"
        for node in graph.parameters()
        if node.layout is not None and "localized" not in node.props
    )


def _collectives(graph: ModuleGraph, request: Request) -> Iterator[str]:
    from hpx.roles import roles

    found = roles(graph, request.mesh, request.plan)
    for finding in found.findings:
        yield f"{graph.path(finding.node)}: {finding.what}"
    for role in found.boundaries:
        if "boundary" not in graph.module(role.module).props:
            yield f"{graph.path(role.module) or 'the model'} ({role.role}) has no collective"


TIED: Final = Fact("tied", _tied)
"""No declared pair of names is two parameters."""
EXPERTS_STACKED: Final = Fact("experts-stacked", _experts_stacked)
"""No container that is to be stacked holds separate experts."""
PACKED: Final = Fact("packed", _packed)
"""A contiguous cut of a packed dim gives every rank its share of each part."""
SHARDED: Final = Fact("sharded", _sharded)
"""If a weight axis is active, every parameter of its mesh has a layout."""
HEADS_LOCAL: Final = Fact("heads-local", _heads_local)
"""Head counts of modules whose q, k or v is cut on heads are those of one rank."""
SOURCE_INFO: Final = Fact("source-info", _source_info)
"""Every parameter with a layout has its source-layout record."""
LOCALIZED: Final = Fact("localized", _localized)
"""For every parameter with a layout it is decided what its region sees."""
COLLECTIVES: Final = Fact("collectives", _collectives)
"""Every module that is a boundary because its weights are cut on tp has its collectives."""
