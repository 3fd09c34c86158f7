"""``hpx check``: a model run sharded and unsharded on local processes, on one mesh or several."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from hpx._files import write_text
from hpx.errors import TooLargeError, UsageError
from hpx.tools._progress import Progress
from hpx.tools._streams import tell

__all__ = ["check"]

SCHEMA: Final = "hpx.check/1"
_GRACE: Final = 5.0  # for the ranks to be told of the limit before the whole command is
_TRANSFORMERS: Final = ("transformers.modeling_utils", "transformers.models.auto.modeling_auto")


def check(
    model: str,
    meshes: Sequence[str],
    plan: str | None,
    pipeline: str,
    output: str | None,
    *,
    shrink: bool | None,
    attention: str | None,
    tolerance: float,
    steps: int,
    timeout: float,
    dry: bool,
    json: bool,
) -> bool:
    """Check a model on each mesh and print the reports; whether all are equal.

    Raises:
        HpxError: The plan is refused, the model cannot be read, or time is over.
    """
    from hpx.numeric.checking import refuse_limits

    refuse_limits(tolerance, timeout)
    reports: list[Any] = []
    with limited(timeout + _GRACE, timeout), Progress(f"reading {model}") as progress:
        from hpx.mesh import MeshSpec
        from hpx.plan import ShardingPlan

        given = None if plan is None else ShardingPlan.from_file(Path(plan))
        specs = [MeshSpec.parse(mesh) for mesh in meshes]
        if not specs and (given is None or given.mesh is None):
            raise UsageError(
                "there is no mesh",
                why=None if plan is None else f"{plan} names none",
                fix="give --mesh such as dp=2,tp=2",
            )
        specs = specs or [given.own_mesh()] if given is not None else specs
        end = time.monotonic() + timeout
        options: dict[str, Any] = {"shrink": shrink, "attention": attention, "steps": steps}
        if dry:
            reports = [_dry(model, given, spec, pipeline, options) for spec in specs]
        else:
            reports = _numeric(model, given, specs, pipeline, options, tolerance, end, progress)
    ok = all(report.ok for report in reports)
    _emit(reports, output, ok=ok, json=json)
    return ok


def _numeric(
    model: str,
    plan: Any,
    specs: Sequence[Any],
    pipeline: str,
    options: dict[str, Any],
    tolerance: float,
    end: float,
    progress: Progress,
) -> list[Any]:
    """The reports, from processes that are started once for all meshes."""
    from hpx.numeric.checking import check_in, new_pool
    from hpx.numeric.preparing import MOST_RANKS, prepare

    size = max(spec.world_size for spec in specs)
    more = _TRANSFORMERS if model.endswith(".json") or Path(model).is_dir() else ()
    reports = []
    with new_pool(min(size, MOST_RANKS), more) as pool:
        if size <= MOST_RANKS:
            pool.begin()  # they import torch while the plan is worked out
        for spec in specs:
            start = time.perf_counter()
            subject = prepare(model, plan, spec, pipeline, **options)
            progress.say(f"running {spec}")
            left = max(1.0, end - time.monotonic())
            reports.append(check_in(pool, subject, tolerance, left, start))
        progress.say("ending the processes")
    return reports


def _dry(model: str, plan: Any, spec: Any, pipeline: str, options: dict[str, Any]) -> Any:
    """What ``hpx.numeric.dry.validate`` says of the same subject, without processes."""
    from hpx.numeric.dry import validate
    from hpx.numeric.preparing import prepare

    return validate(prepare(model, plan, spec, pipeline, **options))


def _emit(reports: Sequence[Any], output: str | None, *, ok: bool, json: bool) -> None:
    from hpx.tools._tables import emit_json, emit_text, json_text

    form = {"schema": SCHEMA, "ok": ok, "checks": [report.to_json() for report in reports]}
    if output is not None:
        write_text(Path(output), json_text(form) + "\n")
    if json:
        emit_json(form)
    else:
        emit_text("\n".join(str(report) for report in reports))
    if output is not None:
        tell(f"hpx: wrote {output}")


class _OverError(BaseException):
    """Time is over; no error, so that no code of a person's takes it for one of its own."""


@contextmanager
def limited(seconds: float, told: float) -> Iterator[None]:
    """End what runs longer, whatever it is doing: a person's own code may never come back.

    Args:
        seconds: How long.
        told: How long, as the message says it.

    Raises:
        TooLargeError: Time is over.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_over = False

    def over(_number: int, _frame: FrameType | None) -> NoReturn:
        nonlocal is_over
        is_over = True
        raise _OverError

    before = signal.signal(signal.SIGALRM, over)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with suppress(_OverError):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)  # of whoever had set the timer
        signal.signal(signal.SIGALRM, before)
        if is_over:  # whatever came of it: an import that was cut short fails in its own way
            raise TooLargeError(
                f"the check was not done after {told:g} s",
                fix="give more time with --timeout, or a smaller model",
            ) from None
