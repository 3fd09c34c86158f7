"""What a view is of: a graph, with what a run knows about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from hpx.errors import UsageError
from hpx.graph.graph import ModuleGraph
from hpx.mesh import MeshSpec
from hpx.plan import Rule
from hpx.render.of_file import file_problems
from hpx.render.viewmodel import Mark

if TYPE_CHECKING:
    from hpx.diff import Diff
    from hpx.pipeline.context import Problem
    from hpx.run import Run

__all__ = ["Decision", "Subject", "run_until", "subject_of"]


@dataclass(frozen=True, slots=True)
class Decision:
    """Who decided a layout: the pass, and the plan's rule if there was one."""

    pass_: str
    rule: Rule | None


@dataclass(frozen=True)
class Subject:
    """A graph with its decisions.

    Attributes:
        graph: The graph.
        source: What the model was read from.
        mesh: The mesh, if one is known.
        decisions: Who decided the layout, by node id.
        problems: What the run found.
        original_parameters: How many parameters the model came with, where passes changed that.
        step: Which step of the run this is, in words; None for the last.
        run: The run, up to the step that is shown.
        whole: The whole model, where ``graph`` is a part of it or of a comparison.
        selection: What the graph was cut to, in words.
        diff: Of a comparison: what differs from an older side.
        compared: Of a comparison: what it says of nodes, by id. What was removed is in the graph.
        was: Of what it calls changed: the old values, by id.
    """

    graph: ModuleGraph
    source: str
    mesh: MeshSpec | None = None
    decisions: Mapping[int, Decision] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    original_parameters: int | None = None
    step: str | None = None
    run: Run | None = None
    whole: ModuleGraph | None = None
    selection: str = ""
    diff: Diff | None = None
    compared: Mapping[int, Mark] = field(default_factory=dict)
    was: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def gone(self) -> frozenset[int]:
        """Ids of what is in the graph only because a comparison removed it."""
        return frozenset(n for n, mark in self.compared.items() if mark == "removed")

    @property
    def full_graph(self) -> ModuleGraph:
        """The whole model, where ``graph`` is a part of it or holds what a comparison removed."""
        return self.graph if self.whole is None else self.whole


def subject_of(
    target: Run | ModuleGraph, *, mesh: MeshSpec | None = None, step: int | None = None
) -> Subject:
    """A run, as it was after step ``step``; or a graph alone.

    Raises:
        UsageError: The run has no such step, or ``step`` is given for a graph.
    """
    if isinstance(target, ModuleGraph):
        if step is not None:
            raise UsageError(
                "a model has no steps", fix="give a run, or a mesh and a plan to make one"
            )
        return Subject(target, target.source, mesh, problems=tuple(file_problems(target)))
    last = len(target.schedule)
    run = target if step is None or step == last else run_until(target, step)
    decisions: dict[int, Decision] = {}
    for event in run.events:
        if event.kind == "set" and event.key == "layout":
            if event.new is None:
                for node_id in event.nodes:
                    decisions.pop(node_id, None)
            else:
                decisions.update(dict.fromkeys(event.nodes, Decision(event.pass_, event.rule)))
    return Subject(
        run.graph,
        str(target.model["source"]),
        target.mesh,
        decisions,
        (*run.problems, *file_problems(run.graph)),
        int(target.model["num_parameters"]),
        None if step is None else _step_text(target, step),
        run,
    )


def run_until(run: Run, step: int) -> Run:
    """The run as it was after a step: its graph and its events so far; problems come at the end.

    Raises:
        UsageError: The run has no such step.
    """
    from hpx.provenance import Provenance
    from hpx.run import Run

    return Run(
        model=run.model,
        mesh=run.mesh,
        plan=run.plan,
        pipeline=run.pipeline,
        options=run.options,
        schedule=run.schedule[:step],
        facts=(),
        problems=(),
        log=Provenance([event for event in run.events if event.step <= step]),
        timings=run.timings[:step],
        entry=run.entry,
        graph=run.at(step),
    )


def _step_text(run: Run, step: int) -> str:
    if step == 0:
        return "step 0, before the first pass"
    return f"step {step} of {len(run.schedule)}, after {run.schedule[step - 1]['pass']}"
