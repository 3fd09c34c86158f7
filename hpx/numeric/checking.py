"""`hpx.check`: a model run unsharded and sharded on local processes, and compared."""

from __future__ import annotations

import math
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpx.errors import HpxError, InputError, TooLargeError, UsageError
from hpx.mesh import MeshSpec
from hpx.numeric.pool import LIMIT, PRELOAD, Pool, RanksFailedError
from hpx.numeric.preparing import Subject, in_place, prepare
from hpx.numeric.report import Blame, Report, blame, blame_module, figures_of
from hpx.numeric.worker import pickled
from hpx.plan import ShardingPlan

if TYPE_CHECKING:
    from torch import nn

    from hpx.numeric.ranks import Measured
    from hpx.pipeline.info import Pass

__all__ = ["TOLERANCE", "check", "check_in", "new_pool", "refuse_limits"]

TOLERANCE: Final = 1e-9
"""Of ``max|a-b| / max|b|``, for each tensor."""

_MIXED: Final = "got mixed torch.Tensor and DTensor"
_OUTSIDE: Final = (
    "; outside of the forward of its own module a parameter is a DTensor, as are scores that stay"
    " in columns for loss=parallel, and torch does not mix the two"
)


def check(
    model: str | Path | Callable[[], object] | nn.Module,
    plan: ShardingPlan | str | Path | None = None,
    mesh: MeshSpec | str | None = None,
    pipeline: str | Sequence[str | Pass | type[Pass]] = "@run",
    *,
    inputs: object = None,
    loss: Callable[[Any], object] | None = None,
    shrink: bool | None = None,
    attention: str | None = None,
    tolerance: float = TOLERANCE,
    steps: int = 1,
    timeout: float = LIMIT,
    pool: Pool | None = None,
) -> Report:
    """Run a model unsharded and sharded in float64 with the same inputs, and compare.

    Outputs, loss, every gradient and the parameters after a step of AdamW are compared by
    ``max|a-b| / max|b|``. On a difference the report names the first module that differs, forward
    or backward. Ranks are local processes on gloo; where ``torch.distributed`` runs already with
    as many ranks as the mesh has (under ``torchrun``), every rank calls this and they are used.

    Args:
        model: A ``config.json`` or ``package.module:factory``; a function at the top level of a
            module that returns ``model`` or ``(model, example inputs, loss function)``; or a model.
        plan: A plan or its file; derived from the model if not given.
        mesh: A mesh, or its text such as ``dp=2,tp=2``; the plan's own if not given.
        pipeline: Text form or passes.
        inputs: Example inputs: a tuple of arguments, a mapping by name, one tensor. Made up for a
            model whose config or first layer says what it takes.
        loss: A function of the output, from the top level of a module. Cross entropy for scores,
            and a weighted sum for anything else, if not given.
        shrink: Whether a configuration is made small, keeping its structure. Yes if not given.
        attention: ``eager`` or ``sdpa``, for models of transformers.
        tolerance: The limit.
        steps: How many steps of AdamW.
        timeout: Seconds that the ranks have.
        pool: Processes to use; such that were started for this call if not given.

    Returns:
        The report, with ``ok``, ``raise_if_different()`` and ``to_json()``; ``str()`` is for
        people.

    Raises:
        HpxError: The plan is refused, the model cannot be read or is not fit for a check, or time
            is over.
    """
    refuse_limits(tolerance, timeout)
    start = time.perf_counter()
    own = None
    subject = prepare(
        model,
        plan,
        mesh,
        pipeline,
        inputs=inputs,
        loss=loss,
        shrink=shrink,
        attention=attention,
        steps=steps,
    )
    if in_place(subject.run.mesh):
        return _report(subject, _on_this_group(subject), tolerance, start)
    if pool is None:
        pool = own = new_pool(subject.run.mesh.world_size)
    try:
        return check_in(pool, subject, tolerance, timeout, start)
    finally:
        if own is not None:
            own.close()


def refuse_limits(tolerance: float, timeout: float) -> None:
    """Refuse limits that are none.

    Args:
        tolerance: Of deviations.
        timeout: In seconds.

    Raises:
        UsageError: One of them is negative, infinite or no number; or there is no time.
    """
    if not 0 <= tolerance < math.inf:  # nor is it "nan", which compares to none
        raise UsageError(f"the tolerance is {tolerance:g}", fix="give a positive number, or 0")
    if not 0 < timeout < threading.TIMEOUT_MAX:
        raise UsageError(
            f"the time limit is {timeout:g} s", fix="give a positive number of seconds"
        )


def check_in(
    pool: Pool, subject: Subject, tolerance: float, timeout: float, start: float
) -> Report:
    """Check what was prepared on the processes of a pool.

    Args:
        pool: The pool.
        subject: What `prepare` gave.
        tolerance: The limit.
        timeout: Seconds that the ranks have.
        start: When the check began, of ``time.perf_counter``.

    Raises:
        UsageError: The mesh has more ranks than the pool.
        HpxError: A rank refused it, or time is over.
    """
    from hpx.numeric.failing import ModuleFailedError

    end = time.monotonic() + timeout
    size = subject.run.mesh.world_size
    if size > pool.size:
        raise UsageError(
            f"mesh {subject.run.mesh} has {size} ranks, and the pool {pool.size}",
            fix=f"give a Pool({size}), or a smaller mesh",
        )

    def call(function: Callable[..., Any], *args: object) -> list[Any]:
        left = max(1.0, end - time.monotonic())
        try:
            return pool.run(function, size, subject.case, *args, limit=left)
        except RanksFailedError as error:
            if error.late and len(error.late) == len(error.ranks):
                raise _timed_out(error, timeout) from None
            if isinstance(error.cause, (HpxError, ModuleFailedError)):
                raise error.cause from None
            raise InputError("a rank failed", why=str(error)) from None

    return _report(subject, call, tolerance, start)


def _timed_out(error: RanksFailedError, timeout: float) -> TooLargeError:
    return TooLargeError(
        f"the ranks were not done after {timeout:g} s",
        why=" ".join(str(error).split())[-600:],
        fix="give more time (--timeout, timeout=), or a smaller model",
    )


def new_pool(size: int, more: Iterable[str] = ()) -> Pool:
    """Processes for checks on up to ``size`` ranks; they start with the first one.

    Args:
        size: The number of ranks.
        more: Further modules that they have in common from the start.
    """
    return Pool(size, (*PRELOAD, "hpx.numeric.ranks", *more))


# -- on the ranks --------------------------------------------------------------------------------


def _on_this_group(subject: Subject) -> Callable[..., list[Any]]:
    """Call a function on every rank of the group that runs: on this one, that is."""
    import torch.distributed as dist

    def call(function: Callable[..., Any], *args: object) -> list[Any]:
        mine: object
        try:
            mine = pickle.dumps(function(subject.case, *args))
        except Exception as error:  # noqa: BLE001 - the other ranks have to hear of it
            mine = error if pickled(error) else _told(error)
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, mine)
        for one in every:
            if isinstance(one, BaseException):
                raise one
        return [pickle.loads(one) for one in every]

    return call


def _told(error: Exception) -> InputError:
    """What stands for an error that cannot travel."""
    return InputError("a rank failed", why=f"{type(error).__name__}: {error}")


def _report(
    subject: Subject,
    call: Callable[..., list[Any]],
    tolerance: float,
    start: float,
) -> Report:
    from hpx.numeric.failing import ModuleFailedError
    from hpx.numeric.ranks import find_on_rank, measure_on_rank, ranks_of

    results: list[Measured] = []
    found: Blame | None = None
    try:
        results = call(measure_on_rank)
    except ModuleFailedError as error:
        if error.side == "unsharded":
            raise InputError(
                f"{subject.case.source.name} cannot compute, unsharded",
                where=error.module or None,
                why=f"{error.text}{f' [{error.line}]' if error.line else ''}",
                fix="give example inputs and a loss that it takes",
            ) from None
        found = _blame_failed(subject, error)
    figures = figures_of([result.deviations for result in results], tolerance)
    if any(figure.wrong for figure in figures):
        wrong = sorted(
            {
                deviation.key.name
                for result in results
                for deviation in result.deviations
                if deviation.key.kind == "gradient" and not deviation.by <= tolerance
            }
        )
        located = next(
            (one for one in call(find_on_rank, wrong, tolerance) if one is not None), None
        )
        found = blame(subject.run, located, subject.classes)
    return Report(
        model=subject.case.source.name,
        run=subject.run,
        tolerance=tolerance,
        steps=subject.case.steps,
        figures=figures,
        blame=found,
        held=max((result.held for result in results), default=0.0),
        ranks=tuple(ranks_of(results, tolerance)),
        seconds=time.perf_counter() - start,
    )


def _blame_failed(subject: Subject, error: Any) -> Blame:
    direction = "forward" if error.module is not None else "backward"
    what = f"{error.text}{f' [{error.line}]' if error.line else ''}"
    if _MIXED in error.text:
        what += _OUTSIDE
    return blame_module(subject.run, error.module, subject.classes, direction, what, None)
