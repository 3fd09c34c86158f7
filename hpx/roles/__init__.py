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

from hpx.graph.graph import ModuleGraph
from hpx.mesh import MeshSpec
from hpx.plan import ShardingPlan
from hpx.roles.derive import Deriver
from hpx.roles.types import Role, Roles

__all__ = ["Role", "Roles", "roles"]


def roles(graph: ModuleGraph, mesh: MeshSpec, plan: ShardingPlan) -> Roles:
    """The boundaries of a graph with layouts; none where tp is not active."""
    if mesh.size("tp", 1) == 1:
        return Roles()
    return Deriver(graph, plan).roles()
