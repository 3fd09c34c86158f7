"""Run passes in order over a copy of a graph: all of it, or nothing.

The manager detects what holds at entry, asks `schedule` for the order, runs each pass through a
context that logs what it does, and checks after each one that it kept its word. The graph that was
given stays as it was, whether the run succeeds or fails.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final, Literal, NamedTuple

from hpx.errors import ContractError, HpxError
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode
from hpx.pipeline.context import PassContext, Problem
from hpx.pipeline.info import Fact, Pass
from hpx.pipeline.request import Request
from hpx.pipeline.schedule import Schedule, schedule
from hpx.provenance import Event, Provenance

__all__ = ["FailedStep", "PassManager", "Result", "StepTiming", "failed_step"]

_FAILED: Final = "_hpx_failed_step"

Progress = Callable[[int, int, str], None]
"""Called before each step with its number, the number of steps, and its name."""


class StepTiming(NamedTuple):
    """What one step took: seconds, events, and nodes that its events name."""

    step: int
    name: str
    seconds: float
    events: int
    nodes: int


class Result(NamedTuple):
    """What a pass manager hands back: the new graph, the log and what led there."""

    graph: ModuleGraph
    log: Provenance
    schedule: Schedule
    facts: tuple[str, ...]
    problems: tuple[Problem, ...]
    timings: tuple[StepTiming, ...]


class FailedStep(NamedTuple):
    """The order of a run that failed, and the number of the step that did."""

    schedule: Schedule
    number: int


class PassManager:
    """Holds a pipeline and runs it.

    >>> PassManager([]).schedule().steps
    ()
    """

    def __init__(self, passes: Sequence[Pass], *, order: Literal["auto", "given"] = "auto") -> None:
        self.passes = tuple(passes)
        self.order: Literal["auto", "given"] = order

    def schedule(self, entry_facts: Iterable[str] | None = None) -> Schedule:
        """The order that the declarations give; pure. See `hpx.pipeline.schedule`."""
        facts = None if entry_facts is None else list(entry_facts)
        return schedule(self.passes, facts, order=self.order)

    def run(
        self, graph: ModuleGraph, request: Request, *, progress: Progress | None = None
    ) -> Result:
        """Run every pass on a copy of the graph.

        Raises:
            PipelineError: There is no valid order, or a fact is missing.
            ContractError: A pass wrote what it does not declare, or a fact that it provides does
                not hold, or the tree is no longer sound.
            HpxError: A pass refused; the error names the pass.

        A pass that crashes is a `ContractError` too; its cause is what the pass raised.
        """
        entry = self.facts_at_entry(graph, request)
        plan = self.schedule(entry)
        working = graph.copy()
        log = Provenance()
        problems: list[Problem] = []
        timings: list[StepTiming] = []
        for number, step in enumerate(plan.steps, start=1):
            if progress is not None:
                progress(number, len(plan.steps), step.name)
            ctx = PassContext(
                working, request, log, step.pass_, step=number, name=step.name, entry=graph
            )
            before = len(log)
            start = time.perf_counter()
            with _telling_of(plan, number):
                step.pass_.run(working, ctx)
            if len(log) == before:
                ctx.note("matched nothing: no decision to make here")
            events = log.events[before:]
            with _telling_of(plan, number):
                check_step(working, request, step.pass_, step.name, events)
            seconds = time.perf_counter() - start
            problems.extend(ctx.problems)
            touched = sum(len(event.nodes) for event in events)
            timings.append(StepTiming(number, step.name, seconds, len(events), touched))
        facts = plan.facts_after[-1] if plan.steps else frozenset(entry)
        # A fresh copy: the dictionary of a graph that lost 100,000 nodes keeps room for them.
        final = working.copy()
        return Result(final, log, plan, tuple(sorted(facts)), tuple(problems), tuple(timings))

    def facts_at_entry(self, graph: ModuleGraph, request: Request) -> set[str]:
        """The facts that hold already, of those that a pass of the pipeline speaks of."""
        spoken: dict[str, tuple[Fact, Pass]] = {}
        for pass_ in self.passes:
            for fact in pass_.info.requires | pass_.info.provides:
                spoken[fact.name] = fact, pass_
        return {
            name
            for name, (fact, pass_) in spoken.items()
            if not _against(fact, graph, request, pass_, f"pass {pass_.info.name}", most=1)
        }


@contextmanager
def _telling_of(plan: Schedule, number: int) -> Iterator[None]:
    """Whatever a step raises names it, and is an `HpxError` that `failed_step` knows."""
    step = plan.steps[number - 1]
    try:
        yield
    except HpxError as error:
        if step.name not in str(error):
            error.located(f"pass {step.name}")
        error.__dict__[_FAILED] = FailedStep(plan, number)
        raise
    except Exception as error:
        where = f"pass {step.name}, step {number} of {len(plan.steps)}"
        crash = _crashed(error, step.pass_, where)
        crash.__dict__[_FAILED] = FailedStep(plan, number)
        raise crash from error


def failed_step(error: HpxError) -> FailedStep | None:
    """The step of a pipeline that raised an error; None if it was none.

    Args:
        error: What `PassManager.run` raised.
    """
    found = error.__dict__.get(_FAILED)
    return found if isinstance(found, FailedStep) else None


def check_step(
    graph: ModuleGraph, request: Request, pass_: Pass, name: str, events: Sequence[Event]
) -> None:
    """What a pass promised holds, and the tree is sound where the pass touched it.

    Raises:
        ContractError: It does not.
    """
    for fact in sorted(pass_.info.provides, key=str):
        against = _against(fact, graph, request, pass_, f"pass {name}")
        if against:
            more = f" (and {len(against) - 1} more)" if len(against) > 1 else ""
            raise ContractError(
                f"provides '{fact.name}', which does not hold after it",
                where=f"pass {name}",
                why=f"{against[0]}{more}",
            )
    if any(event.kind in ("derive", "remove", "alias", "rename") for event in events):
        _check_tree(graph, name)


def _against(
    fact: Fact,
    graph: ModuleGraph,
    request: Request,
    pass_: Pass,
    where: str,
    most: int | None = None,
) -> list[str]:
    """What speaks against a fact; ``most`` of it, as to name 45,000 parameters takes a while.

    Raises:
        ContractError: Asking it crashed.
    """
    try:
        return list(islice(fact.holds(graph, request), most))
    except HpxError:
        raise
    except Exception as error:
        raise _crashed(error, pass_, f"{where}, fact '{fact.name}'") from error


def _crashed(error: Exception, pass_: Pass, where: str) -> ContractError:
    """A crash in one line: the exception, and the line of the pass's own file that led to it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.lineno]
    own = getattr(sys.modules.get(type(pass_).__module__), "__file__", None)
    below = [frame for frame in frames if frame.filename != __file__]
    inside = [frame for frame in below if frame.filename == own] or below or frames
    line = f"{inside[-1].filename}:{inside[-1].lineno}" if inside else "an unknown line"
    text = " ".join(str(error).split())
    return ContractError(
        f"crashed at {line}",
        where=where,
        why=f"{type(error).__name__}: {text}" if text else type(error).__name__,
    )


def _check_tree(graph: ModuleGraph, name: str) -> None:
    """Every edge leads to a node that knows it, and every node stands where its edges say."""
    nodes = graph.nodes
    for node in nodes.values():
        if isinstance(node, ModuleNode):
            for child_name, child_id in node.children.items():
                child = nodes.get(child_id)
                if child is None or (
                    (child.parent, child.name) != (node.id, child_name)
                    and (node.id, child_name) not in child.more
                ):
                    where = graph.edge_path(node.id, child_name)
                    raise ContractError(f"left a broken edge at '{where}'", where=f"pass {name}")
        if node.parent >= 0:
            owner = nodes.get(node.parent)
            if not isinstance(owner, ModuleNode) or owner.children.get(node.name) != node.id:
                raise ContractError(
                    f"left '{node.name}' without a place",
                    where=f"pass {name}",
                    why=f"node {node.id} is below node {node.parent}, which does not hold it",
                    fix="remove a module together with everything below it",
                )
