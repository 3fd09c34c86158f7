"""What a check is about, worked out before any process starts: what is refused is refused here."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpx._given import as_mesh, as_plan
from hpx.check.accept import refuse_errors
from hpx.errors import TooLargeError, UsageError
from hpx.mesh import MeshSpec
from hpx.numeric.pool import module_reference, reference
from hpx.pipeline.textform import as_passes
from hpx.plan import ShardingPlan
from hpx.run import Run, run

if TYPE_CHECKING:
    from torch import nn

    from hpx.numeric.building import Source
    from hpx.numeric.ranks import Case
    from hpx.numeric.worker import Reference
    from hpx.pipeline.info import Pass

__all__ = ["MOST_RANKS", "Subject", "in_place", "prepare"]

MOST_RANKS: Final = 16
"""Processes on one machine."""

_COPIES: Final = 8  # both models, gradients, two moments of AdamW for each, what is gathered
_DOUBLE: Final = 8
_SHARE: Final = 0.8


@dataclass(frozen=True)
class Subject:
    """What a check is about, worked out before any process starts.

    Attributes:
        run: The run that is to be carried out.
        case: What travels to the ranks.
        classes: Classes of the modules by path, for messages.
    """

    run: Run
    case: Case
    classes: dict[str, str]


def in_place(spec: MeshSpec) -> bool:
    """Whether this process is one of the ranks already."""
    import torch.distributed as dist

    return (
        dist.is_available() and dist.is_initialized() and dist.get_world_size() == spec.world_size
    )


def prepare(
    model: str | Path | Callable[[], object] | nn.Module,
    plan: ShardingPlan | str | Path | None = None,
    mesh: MeshSpec | str | None = None,
    pipeline: str | Sequence[str | Pass | type[Pass]] = "@run",
    *,
    inputs: object = None,
    loss: Callable[[Any], object] | None = None,
    shrink: bool | None = None,
    attention: str | None = None,
    steps: int = 1,
    wrap: Callable[..., object] | None = None,
    exact: bool = True,
) -> Subject:
    """Read the model, derive or read the plan and run it: what is refused is refused here.

    Args:
        model: See `check`, as for the others.
        plan: The plan.
        mesh: The mesh.
        pipeline: The pipeline.
        inputs: Example inputs.
        loss: The loss.
        shrink: Whether a configuration is made small.
        attention: An implementation of attention.
        steps: How many steps.
        wrap: Puts something around the sharded model; for tests.
        exact: Whether casts to lower dtypes inside the model are left out.

    Raises:
        HpxError: Whatever stands in the way.
    """
    from hpx.derive.proved import proved_plan
    from hpx.numeric.ranks import Case
    from hpx.numeric.sources import source_of

    if steps < 1:
        raise UsageError(f"a check takes one step at least, not {steps}")
    given = None if plan is None else as_plan(plan)
    spec = _mesh_of(mesh, given)
    if given is not None:
        given.check_mesh(spec)
    passes = as_passes(pipeline)
    here = in_place(spec)
    named = source_of(model, spec, given, shrink, attention, in_place=here)
    source, graph, sharding = named.source, named.graph, named.plan
    if sharding is None:  # as hpx plan writes it
        sharding = proved_plan(graph, spec, named.model, named.inputs if inputs is None else inputs)
    done = run(graph, sharding, spec, passes)
    refuse_errors(done)
    _check_size(done)
    references = [] if here else list(_modules_of(passes, source, model))
    case = Case(
        source=source,
        mesh=str(spec),
        plan=sharding.to_json(),
        pipeline=_pickled(passes),
        modules=tuple(references),
        attention=attention,
        steps=steps,
        inputs=inputs,
        loss=None if loss is None else _reference(loss, "the loss"),
        wrap=None if wrap is None else reference(wrap),
        exact=exact,
    )
    classes = {graph.path(node.id): node.spec.short_cls for node in graph.modules()}
    return Subject(done, case, classes)


def _mesh_of(mesh: MeshSpec | str | None, plan: ShardingPlan | None) -> MeshSpec:
    if mesh is None and plan is None:
        raise UsageError("there is no mesh", fix="give one, such as dp=2,tp=2")
    if mesh is None:
        assert plan is not None
        spec = plan.own_mesh()
    else:
        spec = as_mesh(mesh)
    for axis in ("cp", "pp"):
        if spec.size(axis, 1) > 1:
            raise UsageError(
                f"a check does not run {axis}",
                why=f"the mesh is {spec}",
                fix=f"leave {axis} out: it shards no weight, so the plan stays the same",
            )
    if spec.world_size > MOST_RANKS and not in_place(spec):
        raise TooLargeError(
            f"the mesh {spec} has {spec.world_size} ranks",
            why=f"they are processes of this machine, {MOST_RANKS} at most",
            fix="check on a smaller mesh, such as dp=2,tp=2",
        )
    return spec


def _check_size(done: Run) -> None:
    """Refuse what the memory of this machine cannot hold."""
    needed = int(done.model["num_elements"]) * _DOUBLE * _COPIES * done.mesh.world_size
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > _SHARE * there:
        raise TooLargeError(
            f"the model is too large to check on {done.mesh.world_size} local ranks",
            why=f"both models in float64 take about {needed / 2**30:,.0f} GiB,"
            f" and this machine has {there / 2**30:,.0f} GiB",
            fix="shrink it (--shrink, shrink=True), or name a factory that builds a small one",
        )


def _pickled(passes: Sequence[Pass]) -> bytes:
    try:
        return pickle.dumps(tuple(passes))
    except Exception as error:  # noqa: BLE001 - whatever a pass has inside
        raise UsageError(
            "the passes cannot reach the other processes",
            why=f"{type(error).__name__}: {error}",
            fix="define them at the top level of a module",
        ) from None


def _modules_of(passes: Sequence[Pass], source: Source, model: object) -> Iterable[Reference]:
    """The modules of passes and classes that the ranks may not find by themselves."""
    import sys

    names = dict.fromkeys(type(pass_).__module__ for pass_ in passes)
    if hasattr(source, "data"):
        assert hasattr(model, "modules")
        names |= dict.fromkeys(type(module).__module__ for module in model.modules())
    for name in names:
        found = sys.modules.get(name)
        if found is not None and not name.startswith(("hpx.", "torch.")):
            yield module_reference(found)


def _reference(target: Callable[..., object], what: str) -> Reference:
    try:
        return reference(target)
    except ValueError as error:
        raise UsageError(
            f"{what} cannot reach the other processes",
            why=str(error),
            fix="define it at the top level of a module",
        ) from None
