"""Derive a plan, run its regions on fake tensors, and leave whole what would compute otherwise.

Structure and names do not tell what a forward does between two matrices. Where there is code, the
shape proof runs it: a softmax over channels, heads in pairs, a width in the code.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hpx.derive.derive import derive_plan
from hpx.errors import HpxError
from hpx.graph.graph import ModuleGraph
from hpx.mesh import MeshSpec
from hpx.plan import ShardingPlan

if TYPE_CHECKING:
    from torch import nn

__all__ = ["proved_plan"]

_MOST_ROUNDS: Final = 4
_WHERE: Final = re.compile(r"(; \S+?:\d+), in .*", re.DOTALL)


def proved_plan(
    graph: ModuleGraph, mesh: MeshSpec, model: nn.Module | None, inputs: object = None
) -> ShardingPlan:
    """Derive a plan whose regions are proved, where the model runs on fake tensors.

    Args:
        graph: The graph of the model; it stays as it is.
        mesh: The mesh.
        model: The model, which is not changed, and none of whose values is read; None for a
            checkpoint, which has no code.
        inputs: Example inputs, for a model whose inputs are not known.
    """
    whole: dict[str, str] = {}
    plan = derive_plan(graph, mesh)
    for _ in range(_MOST_ROUNDS):
        if model is None or mesh.size("tp", 1) == 1:
            break
        failed = _failed(graph, plan, mesh, model, inputs)
        if failed.keys() <= whole.keys():
            break
        whole |= failed
        plan = derive_plan(graph, mesh, whole)
    return plan


def _failed(
    graph: ModuleGraph, plan: ShardingPlan, mesh: MeshSpec, model: nn.Module, inputs: object
) -> dict[str, str]:
    """The modules whose regions do not compute the same on one rank, and why."""
    from hpx.prove import prove
    from hpx.run import run

    try:
        done = run(graph, plan, mesh)
    except HpxError:
        return {}  # whoever runs the plan is told
    return {
        done.graph.path(node): _reason(problem.text)
        for problem in prove(done, model, inputs, readers=False).problems
        for node in problem.nodes
    }


def _reason(text: str) -> str:
    """What the proof says, with the line of the code but not the code itself."""
    what = _WHERE.sub(r"\1", text.partition(": ")[2])
    return f"cut on tp, it would not compute the same: {what}"
