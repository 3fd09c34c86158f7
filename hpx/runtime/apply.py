"""Carry a run out on a real model, as one transaction: all of it on every rank, or none of it.

The order is: work the run out and verify it; compare it over the ranks; build every new parameter;
vote; change the model through a journal; verify; vote; commit. Until the last vote any error on any
rank gives all of them their model back, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeVar, get_args

from torch import nn

from hpx._given import as_mesh, as_plan, check_is_model
from hpx.check.accept import refuse_errors
from hpx.errors import HpxError, did_you_mean
from hpx.mesh import MeshSpec
from hpx.pipeline.textform import as_passes, format_pipeline
from hpx.plan import ShardingPlan
from hpx.run import Run
from hpx.run import run as work_out
from hpx.runtime.install import install
from hpx.runtime.journal import Fault, Journal
from hpx.runtime.materialize import Built, Sources, build, check_sources
from hpx.runtime.meshes import Meshes
from hpx.runtime.part import fit
from hpx.runtime.proof import verify_elements
from hpx.runtime.record import Applied, applied_to, refuse_wrapped, remember
from hpx.runtime.ties import tell_of_differing_ends
from hpx.runtime.verify import verify_model
from hpx.runtime.vote import agree, agree_on_mesh, vote

if TYPE_CHECKING:
    from pathlib import Path

    from hpx.pipeline.info import Pass

__all__ = ["Verify", "apply"]

Verify = Literal["fast", "full", "off"]
_DEFAULT: Final = "@default"
T = TypeVar("T")


def apply(
    model: nn.Module,
    plan: ShardingPlan | str | Path | None = None,
    mesh: MeshSpec | str | None = None,
    pipeline: str | Sequence[str | Pass | type[Pass]] = _DEFAULT,
    *,
    run: Run | None = None,
    prefix: str = "",
    verify: Verify = "fast",
    donate: bool = False,
    device_type: str | None = None,
    fault: Fault | None = None,
) -> Applied:
    """Shard a model in place, as a plan says, on this rank of a process group.

    Args:
        model: Real, meta or fake parameters; every rank holds the same whole model. Gradients that
            it has already are dropped.
        plan: A plan, or the path of a plan file. Not with ``run``.
        mesh: A mesh or its text; `MeshSpec.from_mesh` for device meshes that exist already; the
            run's or the plan's own if not given.
        pipeline: Text form or passes; ``@run`` also inserts the collectives that a forward needs.
            With ``run`` it is the run's own.
        run: A run worked out before, on this model, on its twin on the meta device, or on the
            whole of which it is a part (a pipeline stage). Parts are matched by name.
        prefix: The name that the model has in the whole that ``run`` was made for.
        verify: ``fast`` checks shapes, ties and flags of what was built; ``full`` also proves that
            every element is where the run says; ``off`` checks nothing.
        donate: Free each original as soon as its shard is built and every rank has built all of
            its own. A failure later than that cannot be undone.
        device_type: Where the meshes live, such as ``cpu`` or ``cuda``.
        fault: Called before each change of the model, for tests of the transaction.

    Returns:
        What was done, with the map from old to new parameters. Applied again with the same request
        it is the same object and nothing changes.

    Raises:
        HpxError: Whatever stands in the way. The model is as it was before, on every rank.
    """
    check_is_model(model)
    if verify not in get_args(Verify):
        near = did_you_mean(verify, get_args(Verify))
        raise HpxError(f"verify is {verify!r}", fix=near or "fast, full or off")
    if verify == "full" and donate:
        raise HpxError(
            "verify='full' needs the originals, and donate=True frees them",
            fix="use one of the two",
        )
    spec, error = _attempt(lambda: _mesh_of(mesh, run, plan, pipeline))
    agree_on_mesh(spec, error)
    assert spec is not None
    meshes = spec.build(device_type)
    earlier = applied_to(model)
    made, error = _attempt(
        lambda: _work_out(model, plan, meshes.spec, pipeline, run, prefix, earlier)
    )
    vote(error, meshes)
    assert made is not None
    agree(made, meshes, state="" if earlier is None else "sharded already")
    if earlier is not None:
        return earlier
    sources = Sources(model, made.entry)
    if donate:
        # What is freed cannot be given back: every rank first makes sure that it can build.
        _, error = _attempt(lambda: check_sources(made, sources))
        vote(error, meshes)
    built, error = _attempt(lambda: _build(made, sources, meshes, donate=donate))
    journal = Journal(fault)
    try:
        vote(error, meshes)
        assert built is not None
        applied, error = _attempt(
            lambda: _change(model, made, meshes, sources, built, journal, verify=verify)
        )
        vote(error, meshes)
    except BaseException as failure:
        journal.rollback()
        if donate:
            raise _not_undoable(failure) from failure
        raise
    assert applied is not None
    journal.commit()
    remember(model)
    return applied


def _build(run: Run, sources: Sources, meshes: Meshes, *, donate: bool) -> Built:
    tell_of_differing_ends(run, sources)
    return build(run, sources, meshes, donate=donate)


def _attempt(step: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """The result of a step, or what it raised: the other ranks have to hear of it first."""
    try:
        return step(), None
    except BaseException as error:  # noqa: BLE001  an interrupt too has to reach the vote
        return None, error


def _mesh_of(
    mesh: MeshSpec | str | None,
    run: Run | None,
    plan: ShardingPlan | str | Path | None,
    pipeline: str | Sequence[str | Pass | type[Pass]],
) -> MeshSpec:
    if run is not None:
        _refuse_both(run, plan, pipeline)
    if mesh is None and run is not None:
        return run.mesh
    if mesh is None:
        if plan is None:
            raise HpxError("apply needs a plan", fix="give plan=..., or a run worked out before")
        return as_plan(plan).own_mesh()
    mesh = as_mesh(mesh)
    if run is not None and run.mesh != mesh:
        raise HpxError(f"the run is for mesh {run.mesh}", why=f"apply was given {mesh}")
    return mesh


def _refuse_both(
    run: Run,
    plan: ShardingPlan | str | Path | None,
    pipeline: str | Sequence[str | Pass | type[Pass]],
) -> None:
    """Refuse a plan or a pipeline beside a run, which has its own."""
    if plan is not None:
        raise HpxError(
            "apply was given a run and a plan", fix="give one of them: a run has its own"
        )
    if pipeline != _DEFAULT and format_pipeline(as_passes(pipeline)) != run.pipeline:
        raise HpxError(
            "apply was given a run, and another pipeline than its own",
            why=f"the run is of '{run.pipeline}'",
            fix="leave pipeline= out, or make a run of that pipeline",
        )


def _work_out(
    model: nn.Module,
    plan: ShardingPlan | str | Path | None,
    mesh: MeshSpec,
    pipeline: str | Sequence[str | Pass | type[Pass]],
    run: Run | None,
    prefix: str,
    earlier: Applied | None,
) -> Run:
    """The run to carry out; that of the earlier application if it is the same request.

    Raises:
        HpxError: The model was sharded before, differently; or the run has errors.
    """
    if earlier is not None:
        return earlier.same_request(plan, mesh, pipeline, run)
    refuse_wrapped(model)
    if run is not None:
        refuse_errors(run)
        return fit(run, model, prefix)
    if prefix:
        raise HpxError("prefix= says where a part stands in a run, so it needs run=")
    if plan is None:
        raise HpxError("apply needs a plan", fix="give plan=..., or a run worked out before")
    made = work_out(model, plan, mesh, pipeline)
    refuse_errors(made)
    return made


def _change(
    model: nn.Module,
    run: Run,
    meshes: Meshes,
    sources: Sources,
    built: Built,
    journal: Journal,
    *,
    verify: Verify,
) -> Applied:
    applied = install(model, run, meshes, sources, built, journal)
    if verify != "off":
        verify_model(model, applied)
    if verify == "full":
        verify_elements(applied, built.by_source)
    return applied


def _not_undoable(failure: BaseException) -> HpxError:
    return HpxError(
        f"the model cannot be given back: {failure}",
        why="donate=True had freed its originals already",
        fix="load the model again; find the cause without donate=True",
    )
