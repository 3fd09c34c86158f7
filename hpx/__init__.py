"""Prepare a PyTorch model for parallel training through small passes, and explain every layout.

    import hpx

    plan = hpx.ShardingPlan.from_file("plan.yaml")
    mesh = hpx.MeshSpec.parse("dp=4,tp=8,ep=16")
    run = hpx.run(model, plan, mesh)
    print(run.explain("model.layers.0.mlp.experts.gate_proj"))

The names below are fetched when they are first used: ``import hpx`` loads neither torch nor any
module of the package, so that the command lines answer at once.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hpx.derive.derive import plan
    from hpx.errors import (
        ContractError,
        DifferenceError,
        HpxError,
        InputError,
        LayoutError,
        ManyErrors,
        MeshError,
        NotRunnableError,
        PassError,
        PipelineError,
        PlacementMismatchError,
        PlanError,
        RenderError,
        TooLargeError,
        UnsafeInputError,
        UsageError,
    )
    from hpx.graph.graph import ModuleGraph
    from hpx.layout import Layout
    from hpx.mesh import MeshSpec
    from hpx.numeric.checking import check
    from hpx.plan.plan import ShardingPlan
    from hpx.run import Run, run
    from hpx.runtime.apply import apply
    from hpx.runtime.data_parallel import clip_grad_norm_, fully_shard
    from hpx.runtime.load import load_state_dict
    from hpx.runtime.packed import in_rank_order
    from hpx.runtime.record import Applied
    from hpx.runtime.restore import restore, state_dict
    from hpx.runtime.ties import to_empty

__version__ = "0.1.0"

__all__ = [
    "Applied",
    "ContractError",
    "DifferenceError",
    "HpxError",
    "InputError",
    "Layout",
    "LayoutError",
    "ManyErrors",
    "MeshError",
    "MeshSpec",
    "ModuleGraph",
    "NotRunnableError",
    "PassError",
    "PipelineError",
    "PlacementMismatchError",
    "PlanError",
    "RenderError",
    "Run",
    "ShardingPlan",
    "TooLargeError",
    "UnsafeInputError",
    "UsageError",
    "__version__",
    "apply",
    "check",
    "clip_grad_norm_",
    "fully_shard",
    "in_rank_order",
    "load_state_dict",
    "plan",
    "restore",
    "run",
    "state_dict",
    "to_empty",
]

_HOME: Final = {
    "Applied": "hpx.runtime.record",
    "apply": "hpx.runtime.apply",
    "check": "hpx.numeric.checking",
    "clip_grad_norm_": "hpx.runtime.data_parallel",
    "fully_shard": "hpx.runtime.data_parallel",
    "in_rank_order": "hpx.runtime.packed",
    "load_state_dict": "hpx.runtime.load",
    "restore": "hpx.runtime.restore",
    "state_dict": "hpx.runtime.restore",
    "to_empty": "hpx.runtime.ties",
    "Layout": "hpx.layout",
    "MeshSpec": "hpx.mesh",
    "ModuleGraph": "hpx.graph.graph",
    "Run": "hpx.run",
    "ShardingPlan": "hpx.plan.plan",
    "plan": "hpx.derive.derive",
    "run": "hpx.run",
}  # every other public name is an error, at home in hpx.errors


if not TYPE_CHECKING:  # checkers see the imports above, and report a name that is not there

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'hpx' has no attribute '{name}'")
        value: object = getattr(importlib.import_module(_HOME.get(name, "hpx.errors")), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps ``hpx.run``, ``plan`` and ``check`` functions, though submodules have these names."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
