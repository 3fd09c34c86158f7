"""A run: the plan worked out on a model's graph, with the log that led there, in one file.

`run` is the dry run: import, schedule, passes, checks; no tensor is touched. A `Run` answers what
people ask of it (`explain`, `why_not`, `diff`, `at`) and is saved as ``hpx.run/1``. A loaded run
resolves names in the folded graph of the file and expands it only when somebody asks for a graph.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from hpx import __version__
from hpx._files import read_text, write_text
from hpx._fingerprint import fingerprint, plain
from hpx._given import as_mesh, as_plan
from hpx._saved import check_saved
from hpx._schemas import another_kind, no_run
from hpx.check.checks import run_checks
from hpx.errors import HpxError, InputError, UsageError
from hpx.graph.graph import ModuleGraph
from hpx.graph.jsonform import FoldedTree, graph_to_json
from hpx.graph.nodes import TensorNode
from hpx.mesh import MeshSpec
from hpx.params import Param, model_summary, param_of, params_from_json, params_of, params_to_json
from hpx.pipeline.context import Problem
from hpx.pipeline.manager import PassManager, Progress, StepTiming
from hpx.pipeline.request import Request
from hpx.pipeline.textform import as_passes, format_pipeline
from hpx.plan import ShardingPlan
from hpx.provenance import Event, Provenance, replay

if TYPE_CHECKING:
    import torch

    from hpx.diff import Diff
    from hpx.explain import Explanation, WhyNot
    from hpx.pipeline.info import Pass

__all__ = ["SCHEMA", "Run", "run"]

SCHEMA = "hpx.run/1"
_MALFORMED: Final = (KeyError, TypeError, IndexError, AttributeError, ValueError)


class Run:
    """What a run decided, and why.

    Attributes:
        model: ``source``, ``num_parameters`` (tied groups once), ``num_elements``, ``bytes``.
        mesh: The mesh.
        plan: The plan.
        pipeline: The text form of the pipeline.
        options: How the run was made: ``order``.
        schedule: ``[{step, pass, because}]``.
        facts: The facts that hold at the end.
        problems: What a person should look at.
        log: The events.
        timings: What each step took; not part of equality.
    """

    def __init__(
        self,
        *,
        model: Mapping[str, Any],
        mesh: MeshSpec,
        plan: ShardingPlan,
        pipeline: str,
        options: Mapping[str, Any],
        schedule: Sequence[Mapping[str, Any]],
        facts: Sequence[str],
        problems: Sequence[Problem],
        log: Provenance,
        timings: Sequence[StepTiming],
        entry: ModuleGraph | None = None,
        graph: ModuleGraph | None = None,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = dict(model)
        self.mesh = mesh
        self.plan = plan
        self.pipeline = pipeline
        self.options = dict(options)
        self.schedule = [dict(step) for step in schedule]
        self.facts = tuple(facts)
        self.problems = tuple(problems)
        self.log = log
        self.timings = tuple(timings)
        self._saved = saved
        if entry is not None:
            self.__dict__["entry"] = entry
        if graph is not None:
            self.__dict__["graph"] = graph

    # -- graphs ------------------------------------------------------------------------------

    @cached_property
    def entry(self) -> ModuleGraph:
        """The graph before the first pass."""
        with _reading():
            return self.tree.expand()

    @cached_property
    def graph(self) -> ModuleGraph:
        """The graph after the last pass."""
        with _reading():
            return replay(self.entry, self.log.events)

    @cached_property
    def tree(self) -> FoldedTree:
        """The entry graph in its folded form, for looking names up."""
        saved = self._saved["graph"] if self._saved is not None else graph_to_json(self.entry)
        return FoldedTree(cast(Mapping[str, Any], saved))

    @property
    def events(self) -> list[Event]:
        """The log, in order."""
        return self.log.events

    def at(self, step: int) -> ModuleGraph:
        """The graph after step ``step`` of the schedule; 0 is the entry graph.

        Raises:
            UsageError: The schedule has no such step.
        """
        if not 0 <= step <= len(self.schedule):
            raise UsageError(
                f"there is no step {step}",
                why=f"the schedule has {len(self.schedule)} steps",
                fix=f"0 (the model as it came) to {len(self.schedule)}",
            )
        return replay(self.entry, (event for event in self.events if event.step <= step))

    # -- parameters --------------------------------------------------------------------------

    @cached_property
    def params(self) -> list[Param]:
        """One record for every parameter, in the order of the tree."""
        if self._saved is not None:
            return params_from_json(self._saved["params"])
        return list(params_of(self.graph, self.mesh, self.log, self.entry))

    def param(self, node_id: int) -> Param | None:
        """The record of one parameter, by its id; None if no parameter of that id is left."""
        if self._saved is not None:
            entries = self._saved["params"]
            place = next((i for i, entry in enumerate(entries) if entry["id"] == node_id), None)
            return None if place is None else params_from_json(entries, [place])[0]
        node = self.graph.nodes.get(node_id)
        if not isinstance(node, TensorNode) or node.kind != "parameter":
            return None
        return param_of(self.graph, node, self.mesh, self.log, self.entry)

    @cached_property
    def by_name(self) -> dict[str, Param]:
        """Records by name and alias."""
        found: dict[str, Param] = {}
        for param in self.params:
            for name in (param.name, *param.aliases):
                found[name] = param
        return found

    # -- questions ---------------------------------------------------------------------------

    def explain(self, name: str, *, rank: int | None = None) -> Explanation:
        """From the original tensors to what a rank holds: every event about ``name``.

        Args:
            name: A parameter, buffer, module or ``module.attribute``, by any name it has or had.
            rank: A global rank, to say exactly which indices it holds.
        """
        from hpx.explain import explain

        return explain(self, name, rank=rank)

    def why_not(self, name: str, pass_name: str) -> WhyNot:
        """Why a pass did nothing to ``name``, or what it did."""
        from hpx.explain import why_not

        return why_not(self, name, pass_name)

    def diff(self, other: Run) -> Diff:
        """What differs in ``other``, by parameter."""
        from hpx.diff import diff_runs

        return diff_runs(self, other)

    def render(self, path: str | Path, **options: Any) -> Path:
        """Draw the run; the format follows the suffix. See `hpx.render`."""
        from hpx.render import render

        return render(self, Path(path), **options)

    def _repr_html_(self) -> str:
        """The folded picture, for notebooks."""
        from hpx.render.notebook import html_of_run

        return html_of_run(self)

    # -- fingerprints ------------------------------------------------------------------------

    @cached_property
    def request_fingerprint(self) -> str:
        """Hash of plan content, mesh, schedule, options and versions; of no path, line or time."""
        if self._saved is not None:
            return cast(str, self._saved["request"])
        return fingerprint(
            {
                "schema": SCHEMA,
                "version": __version__,
                "plan": self.plan.content_key(),
                "mesh": str(self.mesh),
                "schedule": [step["pass"] for step in self.schedule],
                "pipeline": self.pipeline,
                "options": self.options,
            }
        )

    @cached_property
    def entry_fingerprint(self) -> str:
        """Hash of the entry graph."""
        if self._saved is not None:
            return cast(str, self._saved["entry"])
        form = dict(graph_to_json(self.entry))
        del form["source"]
        form.pop("flow", None)  # traced or not, it is the same model
        hints = cast(dict[str, object], form["hints"])
        form["hints"] = {key: value for key, value in hints.items() if key != "dataflow"}
        return fingerprint(form)

    # -- files -------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The whole run as ``hpx.run/1``."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "mesh": self.mesh.to_json(),
            "plan": self.plan.to_json(),
            "options": self.options,
            "pipeline": self.pipeline,
            "schedule": self.schedule,
            "facts": list(self.facts),
            "problems": [problem.to_json() for problem in self.problems],
            "graph": self._saved["graph"] if self._saved else graph_to_json(self.entry),
            "params": self._saved["params"] if self._saved else params_to_json(self.params),
            "events": [event.to_json() for event in self.events],
            "timings": [timing._asdict() for timing in self.timings],
            "request": self.request_fingerprint,
            "entry": self.entry_fingerprint,
        }

    def save(self, path: str | Path) -> Path:
        """Write the run to one JSON file; an existing file is replaced only on success."""
        return write_text(Path(path), json.dumps(self.to_json(), separators=(",", ":")) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read a saved run.

        Raises:
            UsageError: There is no such file.
            InputError: It is not a run, or one of another schema.
        """
        try:
            value = json.loads(read_text(Path(path)))
        except InputError:
            raise no_run(path, "it is not a text file") from None
        except (ValueError, RecursionError) as error:
            raise no_run(path, f"it is not JSON: {error}") from None
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            raise another_kind(path, value if isinstance(value, dict) else {}, SCHEMA)
        try:
            check_saved(value)
            return cls.from_json(value)
        except (HpxError, *_MALFORMED) as error:
            known = isinstance(error, HpxError)
            why = str(error) if known else f"{type(error).__name__}: {error}"
            raise InputError(f"{path} is a damaged run", why=why) from None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Run:
        """The inverse of `to_json`."""
        return cls(
            model=value["model"],
            mesh=MeshSpec.from_json(value["mesh"]),
            plan=ShardingPlan.from_json(value["plan"]),
            pipeline=value["pipeline"],
            options=value["options"],
            schedule=value["schedule"],
            facts=value["facts"],
            problems=[Problem.from_json(problem) for problem in value["problems"]],
            log=Provenance([Event.from_json(event) for event in value["events"]]),
            timings=[StepTiming(**timing) for timing in value["timings"]],
            saved=value,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Run):
            return NotImplemented
        mine, theirs = self.to_json(), other.to_json()
        del mine["timings"], theirs["timings"]
        return plain(mine) == plain(theirs)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"Run({self.model['source']}, {self.mesh}, {len(self.params)} parameters, "
            f"{len(self.log)} events)"
        )


def run(
    model: ModuleGraph | torch.nn.Module | str | Path,
    plan: ShardingPlan | str | Path,
    mesh: MeshSpec | str | None = None,
    pipeline: str | Sequence[str | Pass | type[Pass]] = "@default",
    *,
    order: Literal["auto", "given"] = "auto",
    progress: Progress | None = None,
) -> Run:
    """Work out a plan on a model: the dry run. The model and its graph stay as they are.

    Args:
        model: A graph, a module, or what ``hpx run MODEL`` takes.
        plan: A plan, or the path of a plan file.
        mesh: A mesh, or its text such as ``dp=4,tp=8,ep=16``; the plan's own if not given.
        pipeline: Text form, or a sequence of passes.
        order: ``auto`` sorts by declared dependencies; ``given`` only verifies the listed order.
        progress: Called before each step with its number, their count and its name.

    Raises:
        HpxError: Whatever stands in the way, as one of its kinds.
    """
    plan = as_plan(plan)
    mesh = plan.own_mesh() if mesh is None else as_mesh(mesh)
    plan.check_mesh(mesh)
    passes = as_passes(pipeline)
    graph = _graph_of(model)
    request = Request(plan, mesh)
    result = PassManager(passes, order=order).run(graph, request, progress=progress)
    return Run(
        model=model_summary(graph),
        mesh=mesh,
        plan=plan,
        pipeline=format_pipeline(passes),
        options={"order": order},
        schedule=result.schedule.to_json(),
        facts=result.facts,
        problems=[
            *_of_pipeline(passes),
            *(Problem("warning", (), text, "", "schedule") for text in result.schedule.warnings),
            *result.problems,
            *run_checks(result.graph, plan, mesh),
        ],
        log=result.log,
        timings=result.timings,
        entry=graph,
        graph=result.graph,
    )


def _of_pipeline(passes: Sequence[object]) -> Iterator[Problem]:
    if not passes:
        text = "the pipeline is empty: no pass ran, and nobody decided anything"
        yield Problem("warning", (), text, "leave it out for @default", "schedule")


@contextmanager
def _reading() -> Iterator[None]:
    """A saved graph that cannot be expanded, or events that do not fit it, are a damaged file."""
    try:
        yield
    except _MALFORMED as error:
        raise InputError(
            "the run is damaged: its graph cannot be read", why=f"{type(error).__name__}: {error}"
        ) from error


def _graph_of(model: ModuleGraph | torch.nn.Module | str | Path) -> ModuleGraph:
    if isinstance(model, ModuleGraph):
        return model
    if isinstance(model, (str, Path)):
        from hpx.graph.sources import open_model

        return open_model(str(model))
    return ModuleGraph.from_module(model)
