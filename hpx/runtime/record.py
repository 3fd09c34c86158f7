"""What was done to a model: kept on its root module, so that it is found again."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

from hpx._given import as_plan
from hpx.errors import HpxError
from hpx.mesh import MeshSpec
from hpx.plan import ShardingPlan
from hpx.run import Run
from hpx.runtime.journal import Handle
from hpx.runtime.meshes import Meshes

if TYPE_CHECKING:
    from hpx.pipeline.info import Pass

__all__ = ["RECORD", "Applied", "applied_to", "refuse_wrapped", "remember"]

RECORD = "_hpx_applied"
"""Attribute of the root module that holds the `Applied`."""

_WRAPPED: Final = (FSDPModule, FullyShardedDataParallel, nn.parallel.DistributedDataParallel)
_ROOTS: Final[weakref.WeakSet[nn.Module]] = weakref.WeakSet()
"""Modules that something was applied to, so that their parts are known as well."""


@dataclass(eq=False)
class Applied:
    """A run carried out on a model.

    Attributes:
        model: The model, changed in place.
        run: What was carried out.
        meshes: The device meshes.
        old_to_new: The parameters that left the model, and what took their place: an optimizer
            made before holds the old ones, this map does not. All experts of a container map to
            one stacked parameter.
        attributes: What was set on original parameters that were stacked, by entry id.
        handles: Takes the hooks off.
        data_parallel: Whether `hpx.fully_shard` was called after it.
    """

    model: nn.Module
    run: Run
    meshes: Meshes
    old_to_new: Mapping[nn.Parameter, nn.Parameter] = field(default_factory=dict, repr=False)
    attributes: Mapping[int, Mapping[str, object]] = field(default_factory=dict, repr=False)
    handles: list[Handle] = field(default_factory=list, repr=False)
    data_parallel: bool = False

    def source_info(self) -> dict[str, dict[str, Any]]:
        """How each parameter is placed, by every name it has: what ``build-source-info`` recorded.

        JSON-able. With the local tensors of all ranks it is enough to rebuild the whole ones.
        """
        graph = self.run.graph
        found: dict[str, dict[str, Any]] = {}
        for node in graph.parameters():
            recorded = node.props.get("source")
            if isinstance(recorded, Mapping):
                entry = {
                    **recorded,
                    "reduce": list(cast(Sequence[str], node.props.get("reduce", ()))),
                    "shape": list(node.shape),
                    "dtype": node.spec.dtype,
                    "localized": node.props.get("localized"),
                    "order": None if node.order is None else node.order.to_json(),
                }
                found.update(dict.fromkeys(graph.paths(node.id), entry))
        return found

    @property
    def permanent(self) -> bool:
        """Whether parameters are local for good."""
        return any(
            node.props.get("localized") == "permanent" for node in self.run.graph.parameters()
        )

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
        twin = Applied(
            self.model, self.run, self.meshes, deepcopy(self.old_to_new), self.attributes
        )
        memo[id(self)] = twin
        twin.model = deepcopy(self.model, memo)
        twin.data_parallel = self.data_parallel
        # Hooks were copied with their modules; a copied handle finds the copied table of its own.
        twin.handles = deepcopy(self.handles, memo)
        _ROOTS.add(twin.model)
        return twin

    def __repr__(self) -> str:
        return f"Applied({self.run!r})"


def _plan_of(plan: ShardingPlan | str | Path | None) -> ShardingPlan | None:
    return None if plan is None else as_plan(plan)


def _same(a: ShardingPlan, b: ShardingPlan) -> bool:
    return a.content_key() == b.content_key()


def applied_to(model: nn.Module) -> Applied | None:
    """What was applied to a model, if anything was."""
    found = getattr(model, "__dict__", {}).get(RECORD)  # a text has none
    return found if isinstance(found, Applied) else None


def remember(model: nn.Module) -> None:
    """Know a model that something was applied to, when a part of it is asked about."""
    _ROOTS.add(model)


def refuse_wrapped(model: nn.Module) -> None:
    """Refuse a model of which all or a part is sharded, or wrapped by data parallelism, already.

    Raises:
        HpxError: It is; says the order to use.
    """
    modules = _all_below(model)
    if any(issubclass(kind, _WRAPPED) for kind in {type(module) for module in modules}):
        raise _wrapped(model)
    for root in _ROOTS:
        if applied_to(root) is None:
            continue
        which = "is a part of" if root in modules else None
        if any(module is model for module in root.modules()):
            which = "contains"
        if which is not None:
            raise HpxError(
                f"a {type(root).__name__} that {which} this {type(model).__name__} is sharded"
                " already",
                fix="call hpx.restore on that one first, or apply to the whole model once",
            )


def _all_below(model: nn.Module) -> set[nn.Module]:
    """Every module; faster than ``modules()`` on 60,000 of them."""
    found: set[nn.Module] = set()
    todo: list[nn.Module | None] = [model]
    while todo:
        module = todo.pop()
        if module is not None and module not in found:
            found.add(module)
            todo += module._modules.values()
    return found


def _wrapped(model: nn.Module) -> HpxError:
    name, module = next((n, m) for n, m in model.named_modules() if isinstance(m, _WRAPPED))
    kind = "fully_shard" if isinstance(module, FSDPModule) else type(module).__name__
    return HpxError(
        f"{kind} was applied to '{name or 'the model'}' already",
        why="its parameters are no longer the whole ones that a plan speaks of",
        fix="hpx.apply first, then hpx.fully_shard(applied)",
    )
