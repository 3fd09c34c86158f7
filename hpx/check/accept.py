"""A run with errors is not carried out: what it would compute is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpx.errors import HpxError, ManyErrors, PlanError
from hpx.ranges import fold_names

if TYPE_CHECKING:
    from hpx.run import Run

__all__ = ["refuse_errors"]

_MAX_NAMES = 6


def refuse_errors(run: Run) -> None:
    """Refuse a run that has problems of the level ``error``.

    Warnings and remarks are for people: they do not stand in the way.

    Raises:
        ManyErrors: It has some; one finding each.
    """
    findings = [
        _error(run, problem.text, problem.nodes, problem.hint)
        for problem in run.problems
        if problem.level == "error"
    ]
    if findings:
        raise ManyErrors.about("the run", findings)


def _error(run: Run, text: str, nodes: tuple[int, ...], hint: str) -> HpxError:
    names = fold_names(run.graph.path(node) for node in nodes)
    return PlanError(text, where=", ".join(names[:_MAX_NAMES]) or None, fix=hint or None)
