"""``hpx plan --check``: what a plan decides for each parameter, and what is wrong with it.

The plan is run through the pipeline. Where the pipeline refuses it, the table has what the rules
say by themselves, on the graph as far as the passes before the refusal could bring it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpx.errors import HpxError, LayoutError, ManyErrors, UsageError, did_you_mean
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import TensorNode
from hpx.layout import Layout
from hpx.mesh import MeshSpec
from hpx.params import Param
from hpx.passes.shard_params import ShardParams
from hpx.pipeline.context import PassContext, Problem
from hpx.pipeline.info import Pass
from hpx.pipeline.manager import PassManager, Progress
from hpx.pipeline.request import Request
from hpx.plan import Pattern, ShardingPlan
from hpx.prove import Proof, prove
from hpx.provenance import Provenance
from hpx.run import Run, run
from hpx.sharding import Decision, decide
from hpx.tools._folding import fold_params, unfolded
from hpx.tools._refused import Others, other_findings
from hpx.tools._report import (
    layout_table,
    lines_of_problems,
    problem_as_json,
    problem_lines,
    problem_to_json,
    uneven_lines,
)
from hpx.tools._summary import summary_blocks, summary_json
from hpx.tools._tables import Block

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Check", "check_plan"]


@dataclass(frozen=True)
class Check:
    """A plan on a model.

    Attributes:
        plan: The plan.
        mesh: The mesh.
        params: The parameters with what the plan decides, or what its rules say.
        findings: Why the pipeline refused the plan; empty if it did not.
        run: The run; None where the pipeline refused.
        proof: What the shape proof found; None where nothing was tried.
        others: What else could be found where the pipeline refused.
    """

    plan: ShardingPlan
    mesh: MeshSpec
    params: tuple[Param, ...]
    findings: tuple[HpxError, ...]
    run: Run | None
    proof: Proof | None = None
    others: Others | None = None

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What a person should look at: of the run, and of the proof."""
        found = self.run.problems if self.run else ()
        return (*found, *(self.proof.problems if self.proof else ()))

    @property
    def ok(self) -> bool:
        """Whether there is nothing to look at: no finding, and no problem but remarks."""
        return not self.findings and all(problem.level == "info" for problem in self.problems)

    def report(self, params: Sequence[Param], *, every: bool) -> list[Block]:
        """The table, with one row for each parameter if ``every``; see `verdict` for the rest.

        Of all parameters the sums are told too: memory, communication, gradients.
        """
        rows = unfolded(params) if every else fold_params(params)
        blocks: list[Block] = [layout_table(rows, full=True)]
        if self.run is not None and len(params) == len(self.params):
            blocks += summary_blocks(self.run, self.proof)
        return blocks

    def verdict(self) -> list[Block]:
        """What is wrong, and one line that says whether the plan fits."""
        blocks: list[Block] = []
        if self.run is not None and (lines := list(uneven_lines(self.run))):
            blocks += ["", "uneven", *lines]
        if self.findings:
            blocks += self._refusal()
        elif self.run is not None and self.problems:
            lines = list(problem_lines(self.run, self.problems))
            blocks += ["", f"problems ({len(self.problems)})", *lines]
        if self.proof is not None and (
            self.proof.unproven or (self.proof.problems and self.proof.experts)
        ):
            blocks += ["", str(self.proof)]
        verdict = "fits" if self.ok else "has problems"
        blocks += ["", f"the plan {verdict}: {self._counts()}"]
        return blocks

    def _refusal(self) -> Iterator[Block]:
        """Why it is refused, what else was found, and what could not be asked."""
        yield from ("", f"problems ({len(self.findings)})", *_finding_lines(self.findings))
        if self.others is None:
            return
        errors, problems, graph, unchecked = self.others
        if errors or problems:
            yield from ("", f"beside what is refused ({len(errors) + len(problems)})")
            yield from _finding_lines(errors)
            yield from lines_of_problems(problems, graph.path)
        yield ""
        yield from (f"not asked: {text}" for text in unchecked)

    def _counts(self) -> str:
        cut = sum(1 for param in self.params if param.layout is not None and param.layout.shards)
        without = sum(1 for param in self.params if param.rule is None)
        return f"{len(self.params):,} parameters, {cut:,} cut, {without:,} without a rule"

    def to_json(self, params: Sequence[Param]) -> dict[str, object]:
        """``{mesh, plan, ok, refused, parameters, problems, not_asked}``, and sums of a run."""
        problems = [dict(finding.to_json()) for finding in self.findings]
        unchecked: Sequence[str] = ()
        if self.others is not None:
            problems += [dict(finding.to_json()) for finding in self.others.errors]
            path = self.others.graph.path
            problems += [problem_as_json(one, path) for one in self.others.problems]
            unchecked = self.others.unchecked
        if self.run is not None:
            problems += [problem_to_json(self.run, problem) for problem in self.problems]
        sums = {} if self.run is None else summary_json(self.run, self.proof)
        return {
            **sums,
            "mesh": str(self.mesh),
            "plan": self.plan.file,
            "ok": self.ok,
            "refused": self.run is None,
            "parameters": [param.to_json() for param in params],
            "problems": problems,
            "not_asked": list(unchecked),
        }

    def matching(self, text: str | None) -> list[Param]:
        """The parameters that a pattern names; all without one.

        Raises:
            UsageError: It names none.
            PlanError: It is malformed.
        """
        if text is None:
            return list(self.params)
        pattern = Pattern.parse(text)
        found = [
            param
            for param in self.params
            if any(pattern.matches(name) for name in (param.name, *param.aliases))
        ]
        if not found:
            names = [param.name for param in self.params[:2000]]
            raise UsageError(
                f"no parameter matches {text!r}",
                fix=did_you_mean(text, names) or "** is any number of parts, * is one",
            )
        return found


def check_plan(
    graph: ModuleGraph,
    plan: ShardingPlan,
    mesh: MeshSpec,
    passes: Sequence[Pass],
    progress: Progress | None = None,
    *,
    model: nn.Module | None = None,
    inputs: object = None,
    proving: bool = True,
) -> Check:
    """Run a plan, or say what its rules say where the pipeline refuses it.

    Args:
        graph: The graph of the model.
        plan: The plan.
        mesh: The mesh.
        passes: The pipeline.
        progress: Called before each step.
        model: The module, to prove the shapes of one rank on; None where there is no code.
        inputs: Example inputs of it.
        proving: Whether to try.
    """
    try:
        done = run(graph, plan, mesh, passes, progress=progress)
    except ManyErrors as error:
        findings = tuple(error.findings)
    except HpxError as error:
        findings = (error,)
    else:
        proof = None
        if proving and model is not None:
            proof = prove(done, model, inputs)
        elif proving and mesh.size("tp", 1) > 1:
            proof = Proof(0, 0, 0, unproven="it was read from files, and has no code to run")
        return Check(plan, mesh, tuple(done.params), (), done, proof=proof)
    reached = _prepared(graph, plan, mesh, passes)
    params = tuple(_said(graph, reached, plan, mesh))
    others = other_findings(reached, (plan, mesh), passes, findings, graph)
    return Check(plan, mesh, params, findings, None, others=others)


def _prepared(
    graph: ModuleGraph, plan: ShardingPlan, mesh: MeshSpec, passes: Sequence[Pass]
) -> ModuleGraph:
    """The graph as the rules would see it, as far as the passes before them work."""
    before: list[Pass] = []
    for pass_ in passes:
        if "structure" in pass_.info.writes:
            try:
                PassManager([*before, pass_]).run(graph, Request(plan, mesh))
            except HpxError:
                continue
            before.append(pass_)
    return PassManager(before).run(graph, Request(plan, mesh)).graph


def _said(
    entry: ModuleGraph, graph: ModuleGraph, plan: ShardingPlan, mesh: MeshSpec
) -> Iterator[Param]:
    """The parameters with what the plan decides for them, as ``shard-params`` would set it."""
    ctx = PassContext(graph, Request(plan, mesh), Provenance(), ShardParams(), entry=entry)
    decisions = decide(graph, ctx).decisions
    for node in graph.parameters():
        decision = decisions.get(node.id)
        rule = None if decision is None else decision.rule
        layout = None if decision is None else _possible(decision, mesh, node)
        if layout is not None and _is_idle(layout, mesh):
            rule = layout = None
        yield Param.of(graph, node, layout, mesh, entry, rule=rule)


def _possible(decision: Decision, mesh: MeshSpec, node: TensorNode) -> Layout | None:
    """The layout that was decided; None where the rule's own cannot be, as a finding says."""
    if decision.rule is not None and decision.follows is None:
        try:
            decision.rule.layout.resolve(mesh, len(node.shape))
        except LayoutError:
            return None
    return decision.layout


def _is_idle(layout: Layout, mesh: MeshSpec) -> bool:
    """Whether the mesh on which a parameter lives has one rank, so that it is left as it is."""
    axis = "ep" if mesh.view_of(layout).name == "expert" else "tp"
    return mesh.size(axis, 1) == 1


def _finding_lines(findings: Iterable[HpxError]) -> Iterator[str]:
    for finding in findings:
        yield from (f"  {line}" for line in f"error: {finding}".splitlines())
