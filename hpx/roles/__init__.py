"""Which modules are boundaries, and of what kind: read off structure and layouts, or declared.

- A **region** (attention, mlp: see `hpx.regions`) takes whole inputs and works on a part of the
  heads or channels. A colwise layer outside any region is one by itself.
- A **rowwise** layer gives a part of a sum on every rank; it is summed right there, so that what
  follows it (bias, dropout, residual) is done once, on the whole.
- An **embedding** cut on its rows, and a **head** (colwise, one row for each token of the
  vocabulary) whose logits are gathered.
- A norm is whole, and no boundary.

Where a layer is cut and nobody puts the parts together, that is a finding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from hpx.check.findings import Finding
from hpx.graph.graph import ModuleGraph
from hpx.mesh import MeshSpec
from hpx.plan import ShardingPlan
from hpx.roles.derive import Deriver
from hpx.roles.sequence import in_parts
from hpx.roles.traced import check_flow
from hpx.roles.types import Role, Roles

__all__ = ["Role", "Roles", "roles"]


def roles(
    graph: ModuleGraph,
    mesh: MeshSpec,
    plan: ShardingPlan,
    *,
    sp: bool = False,
    loss: Literal["gather", "parallel"] = "gather",
) -> Roles:
    """The boundaries of a graph with layouts; none where tp is not active.

    Args:
        graph: The graph.
        mesh: The mesh.
        plan: What is declared under ``boundaries:`` and ``packed:``.
        sp: Whether the stream between layers is cut on the sequence.
        loss: ``parallel`` leaves the columns of logits where they are.
    """
    if mesh.size("tp", 1) == 1:
        return Roles()
    found = Deriver(graph, plan).roles()
    if loss == "parallel":
        found = _with_columns(graph, found)
    if sp:
        found = in_parts(graph, found)
    if graph.flow:
        flowing = check_flow(graph, found, mesh.size("tp"))
        found = replace(found, findings=[*found.findings, *flowing])
    return found


def _with_columns(graph: ModuleGraph, found: Roles) -> Roles:
    """Heads that leave their logits in columns."""
    boundaries: list[Role] = [
        replace(role, output="columns") if role.kind == "head" else role
        for role in found.boundaries
    ]
    if any(role.kind == "head" for role in found.boundaries):
        return replace(found, boundaries=boundaries)
    finding = Finding(
        graph.root,
        "the loss is to be computed in parts, and no head is cut on its vocabulary",
        "loss=parallel leaves the logits of a head as they are, one part on every rank",
        "cut the head on its outputs, or use insert-collectives{loss=gather}",
    )
    return replace(found, findings=[*found.findings, finding])
