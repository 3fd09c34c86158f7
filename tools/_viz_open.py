"""Open what hpx-viz is to draw: a saved run, a model, or a model with a plan worked out on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hpx.graph.graph import ModuleGraph
    from hpx.run import Run
    from hpx.tools._progress import Progress

__all__ = ["open_other", "open_target"]

_LONGEST_HEAD: Final = 4096


def open_target(
    text: str,
    mesh: str | None,
    plan: str | None,
    progress: Progress,
    *,
    strict: bool,
    trust_pickle: bool,
    dataflow: bool = False,
) -> Run | ModuleGraph:
    """The run or model that a user named; a model with a plan becomes a run.

    Raises:
        UsageError: A run comes with a mesh or plan, or a mesh without a plan.
        HpxError: It cannot be opened, or the plan does not fit.
    """
    from hpx.errors import UsageError

    if _is_run(text):
        if mesh is not None or plan is not None:
            raise UsageError(
                f"{text} is a run, which has its own mesh and plan",
                fix="leave --mesh and --plan out, or give the model instead",
            )
        from hpx.run import Run

        return Run.load(text)
    if plan is None:
        if mesh is not None:
            raise UsageError("--mesh needs a plan", fix="add --plan plan.yaml")
        return _open_model(text, progress, strict, trust_pickle, dataflow)
    from hpx.tools._arguments import request_of

    sharding, spec = request_of(plan, mesh)
    from hpx.run import run

    graph = _open_model(text, progress, strict, trust_pickle, dataflow)
    return run(graph, sharding, spec, progress=progress.step)


def _open_model(
    text: str, progress: Progress, strict: bool, trust_pickle: bool, dataflow: bool
) -> ModuleGraph:
    if dataflow:
        from hpx.tools._flow import open_traced

        return open_traced(text, progress, "hpx-viz")
    from hpx.graph.sources import open_for_viewing

    return open_for_viewing(text, strict=strict, trust_pickle=trust_pickle)


def open_other(text: str, *, strict: bool, trust_pickle: bool) -> Run | ModuleGraph:
    """What to compare with: a saved run or a model.

    Raises:
        HpxError: It cannot be opened.
    """
    if _is_run(text):
        from hpx.run import Run

        return Run.load(text)
    from hpx.graph.sources import open_for_viewing

    return open_for_viewing(text, strict=strict, trust_pickle=trust_pickle)


def _is_run(text: str) -> bool:
    """Whether this is a file of JSON with the schema of a run; a config.json is JSON as well."""
    path = Path(text)
    try:
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            head = stream.read(_LONGEST_HEAD).lstrip()
        if not head.startswith(b"{"):
            return False
        if b'"hpx.run/' in head:
            return True
        if path.suffix != ".json":
            return False
        import json

        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False  # whoever opens it as a model says what is wrong
    return isinstance(value, dict) and str(value.get("schema", "")).startswith("hpx.run/")
