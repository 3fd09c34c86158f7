"""What is cut inside a block and never put together, and what is summed twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from hpx.check.findings import Finding
from hpx.check.subject import Level, Subject, Told
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import TensorNode
from hpx.roles import Role, roles
from hpx.roles.places import of_all_layers

__all__ = ["summed_twice", "unpaired"]

_TOLD_BY_SHARD_PARAMS: Final = (
    "the bias of a rowwise layer is cut",
    "the bias of a colwise layer is whole",
)
_UNDECIDED: Final = "it is whole, inside a region, and as wide as the region's output"
_LORA: Final = re.compile(r"(^|\.)lora_", re.IGNORECASE)
_STREAM: Final = re.compile(r"(embed|wte|wpe|emb$|vocab|lm_head|score$|classifier)", re.IGNORECASE)


def unpaired(subject: Subject) -> Iterator[Told]:
    """A colwise matrix needs a rowwise one that takes its outputs, and the other way round.

    Without the first every rank has a part of the outputs that nobody puts together; without the
    second a rank takes a part of inputs that are whole (edge state R), and the sum is wrong. Where
    the pipeline inserts collectives, the same is an error of ``insert-collectives``.
    """
    if subject.tp == 1:
        return
    for finding in roles(subject.graph, subject.mesh, subject.plan).findings:
        level = _level(subject.graph, finding)
        if level is not None:
            why = f": {finding.why}" if finding.why else ""
            state = " (edge state: R)" if finding.what.startswith("a rowwise matrix takes") else ""
            yield Told(level, finding.node, f"{finding.what}{why}{state}", finding.fix or "")


def _level(graph: ModuleGraph, finding: Finding) -> Level | None:
    """How grave a finding about boundaries is for a plan; None if it is told elsewhere."""
    node = graph.nodes[finding.node]
    if finding.what in _TOLD_BY_SHARD_PARAMS or _LORA.search(graph.path(finding.node)):
        return None
    if finding.what == _UNDECIDED:
        return "info"
    if not isinstance(node, TensorNode):
        return "warning"
    # Which layers of stacked experts take whose outputs is settled where experts are dispatched.
    if len(node.shape) > 2 or (not graph.has_structure and _reads_ids(graph, node)):
        return None
    return "warning"


def _reads_ids(graph: ModuleGraph, node: TensorNode) -> bool:
    """Whether a matrix of which only the name is known may be an embedding or a head."""
    return _STREAM.search(graph.module(node.parent).name) is not None


def summed_twice(subject: Subject) -> Iterator[Told]:
    """What a rowwise layer gives is summed where it stands (edge state R), and only there.

    Told of a boundary that the plan declares with ``output: R`` around such a layer, and of a
    rowwise layer with forward hooks of its own, one of which may sum already.
    """
    if subject.tp == 1:
        return
    graph = subject.graph
    boundaries = roles(graph, subject.mesh, subject.plan).boundaries
    rowwise = [role for role in boundaries if role.kind == "rowwise"]
    for role in rowwise:
        hooks = [kind for kind in graph.module(role.module).spec.hooks if "pre" not in kind]
        if hooks:
            yield Told(
                "warning",
                role.module,
                f"its output is summed over tp here, and it has hooks of its own"
                f" ({', '.join(hooks)}): if one of them sums too, the output is summed twice",
                "remove the hook, or leave the layer whole",
            )
    for role in boundaries:
        declared = role.declared
        if declared is None or declared.output != "R" or role.output is not None:
            continue  # looking into all of 15,000 experts takes minutes
        inside = [
            of_all_layers(graph.path(row.module))
            for row in rowwise
            if _is_in(graph, row, role.module)
        ]
        if inside:
            yield Told(
                "info",
                role.module,
                f"{declared.where} declares its output R, and that it is already (edge state: R):"
                f" {', '.join(inside)} is summed where it stands; nothing is summed again",
                "leave output out of the entry",
            )


def _is_in(graph: ModuleGraph, row: Role, module: int) -> bool:
    node_id = row.module
    while node_id >= 0 and node_id != module:
        node_id = graph.nodes[node_id].parent
    return node_id == module
