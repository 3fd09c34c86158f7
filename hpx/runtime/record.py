"""What was done to a model: kept on its root module, so that it is found again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.fsdp import FSDPModule

from hpx.errors import HpxError
from hpx.mesh import MeshSpec
from hpx.plan import ShardingPlan
from hpx.run import Run
from hpx.runtime.journal import Handle
from hpx.runtime.meshes import Meshes

if TYPE_CHECKING:
    from hpx.pipeline.info import Pass

__all__ = ["RECORD", "Applied", "applied_to", "refuse_wrapped"]

RECORD = "_hpx_applied"
"""Attribute of the root module that holds the `Applied`."""


@dataclass(eq=False)
class Applied:
    """A run carried out on a model.

    Attributes:
        model: The model, changed in place.
        run: What was carried out.
        meshes: The device meshes.
        old_to_new: The parameters that left the model, and what took their place: an optimizer
            made before holds the old ones. All experts of a container map to one stacked parameter.
        handles: Takes the hooks off.
        data_parallel: Whether `hpx.fully_shard` was called after it.
    """

    model: nn.Module
    run: Run
    meshes: Meshes
    old_to_new: Mapping[nn.Parameter, nn.Parameter]
    handles: list[Handle] = field(default_factory=list, repr=False)
    data_parallel: bool = False

    def same_request(
        self,
        plan: ShardingPlan | str | Path | None,
        mesh: MeshSpec,
        pipeline: str | Sequence[str | Pass | type[Pass]],
        run: Run | None,
    ) -> Run:
        """The run of this application, if the request is the same.

        Raises:
            HpxError: It is another one.
        """
        from hpx.pipeline.textform import as_passes, format_pipeline

        if run is not None:
            differs = [] if run.request_fingerprint == self.run.request_fingerprint else ["run"]
        else:
            text = format_pipeline(as_passes(pipeline))
            plan = _plan_of(plan)
            differs = [] if plan is None or _same(plan, self.run.plan) else ["plan"]
            differs += [] if str(mesh) == str(self.run.mesh) else ["mesh"]
            differs += [] if text == self.run.pipeline else ["pipeline"]
        if differs:
            raise HpxError(
                "the model is sharded already, and this is another request",
                why=f"another {', '.join(differs)}; it was sharded on {self.run.mesh}",
                fix="call hpx.restore(model) first",
            )
        return self.run

    def __deepcopy__(self, memo: dict[int, Any]) -> Applied:
        # The copy of a model is sharded in the same way, and lives on the same meshes.
        twin = Applied(self.model, self.run, self.meshes, self.old_to_new)
        memo[id(self)] = twin
        from copy import deepcopy

        twin.model = deepcopy(self.model, memo)
        return twin

    def __repr__(self) -> str:
        return f"Applied({self.run!r})"


def _plan_of(plan: ShardingPlan | str | Path | None) -> ShardingPlan | None:
    if plan is None or isinstance(plan, ShardingPlan):
        return plan
    return ShardingPlan.from_file(Path(plan))


def _same(a: ShardingPlan, b: ShardingPlan) -> bool:
    return a.content_key() == b.content_key()


def applied_to(model: nn.Module) -> Applied | None:
    """What was applied to a model, if anything was."""
    found = model.__dict__.get(RECORD)
    return found if isinstance(found, Applied) else None


def refuse_wrapped(model: nn.Module) -> None:
    """Refuse a model that data parallelism has wrapped or sharded already.

    Raises:
        HpxError: It has; says the order to use.
    """
    todo = [("", model)]
    seen: set[int] = set()
    while todo:
        name, module = todo.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        if isinstance(module, (FSDPModule, nn.parallel.DistributedDataParallel)):
            kind = "fully_shard" if isinstance(module, FSDPModule) else "DistributedDataParallel"
            raise HpxError(
                f"{kind} was applied to '{name or 'the model'}' already",
                why="its parameters are no longer the whole ones that a plan speaks of",
                fix="hpx.apply first, then hpx.fully_shard(applied)",
            )
        if module._modules:
            prefix = f"{name}." if name else ""
            todo += [(prefix + n, m) for n, m in module._modules.items() if m is not None]
