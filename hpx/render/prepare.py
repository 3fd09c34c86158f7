"""From what somebody asked for to what is drawn: step, comparison, selection."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hpx.graph.nodes import TensorNode
from hpx.render.compare import compared
from hpx.render.options import Options
from hpx.render.select import ids_of_kind, keep, selected
from hpx.render.subject import Subject, subject_of

if TYPE_CHECKING:
    from hpx.graph.graph import ModuleGraph
    from hpx.run import Run

__all__ = ["only", "prepare", "without_only"]


def prepare(target: Run | ModuleGraph | Subject, options: Options) -> Subject:
    """The subject that options ask for; one that is prepared already stays as it is.

    Raises:
        UsageError: There is no such step, or a pattern matches nothing, or ``only`` asks for what
            is not known.
        PlanError: A pattern is malformed.
    """
    if isinstance(target, Subject):
        return target
    return only(without_only(target, options), options)


def without_only(target: Run | ModuleGraph, options: Options) -> Subject:
    """As `prepare`, but for ``only``: what conditions are asked of."""
    if options.against is not None:
        subject = compared(target, options.against, options.step)
    else:
        subject = subject_of(target, mesh=options.mesh, step=options.step)
    found = selected(subject, options)
    if found is None:
        return subject
    words = [f"--focus {pattern}" for pattern in options.focus]
    words += [f"--ignore {pattern}" for pattern in options.ignore]
    return _cut(subject, found, " ".join(words))


def only(subject: Subject, options: Options) -> Subject:
    """The parameters of the kinds that ``only`` names."""
    if not options.only:
        return subject
    found = {n for kind in options.only for n in ids_of_kind(subject, kind)}
    found &= subject.graph.nodes.keys()
    tensors = {n for n in found if isinstance(subject.graph.nodes[n], TensorNode)}
    words = " ".join(f"--only {kind}" for kind in options.only)
    return _cut(subject, tensors, " ".join(filter(None, (subject.selection, words))))


def _cut(subject: Subject, tensors: set[int], words: str) -> Subject:
    graph = keep(subject.graph, tensors)
    problems = tuple(
        p for p in subject.problems if not p.nodes or any(n in graph.nodes for n in p.nodes)
    )
    return replace(
        subject, graph=graph, whole=subject.full_graph, selection=words, problems=problems
    )
