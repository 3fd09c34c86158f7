"""What a run is asked for: the plan and the mesh."""

from __future__ import annotations

from dataclasses import dataclass

from hpx.mesh import MeshSpec
from hpx.plan import ShardingPlan

__all__ = ["Request"]


@dataclass(frozen=True)
class Request:
    """A plan on a mesh; what facts are checked against and what passes read."""

    plan: ShardingPlan
    mesh: MeshSpec
