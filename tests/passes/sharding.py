"""What `shard-params` makes of small graphs under a plan, and what it says when it refuses."""

from __future__ import annotations

import pytest

from hpx.errors import HpxError
from hpx.graph import ModuleGraph
from hpx.passes.shard_params import ShardParams
from hpx.testing import Outcome, PlanLike, run_pass

__all__ = ["COL", "CONV1D", "MLP", "ROW", "WHOLE", "layouts", "refused", "shard"]

CONV1D = "transformers.pytorch_utils.Conv1D"
MLP = {"up.weight": (8, 4), "up.bias": (8,), "down.weight": (4, 8), "down.bias": (4,)}
COL, ROW, WHOLE = {"tp": "S(0)"}, {"tp": "S(1)"}, "replicate"


def shard(
    before: ModuleGraph, params: PlanLike, mesh: str = "tp=2", pass_: ShardParams | None = None
) -> Outcome:
    return run_pass(pass_ or ShardParams(), before, plan=params, mesh=mesh)


def refused(
    before: ModuleGraph, params: PlanLike, mesh: str = "tp=2", pass_: ShardParams | None = None
) -> str:
    nodes = dict(before.nodes)
    with pytest.raises(HpxError) as caught:
        shard(before, params, mesh, pass_)
    assert before.nodes == nodes
    return str(caught.value)


def layouts(outcome: Outcome) -> dict[str, str]:
    graph = outcome.graph
    return {graph.path(node.id): str(node.layout) for node in graph.parameters()}
