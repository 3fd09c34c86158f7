"""Pass ``stack-experts``: one ``[E, ...]`` parameter for each parameter path inside the experts."""

from __future__ import annotations

from dataclasses import dataclass

from hpx.check.expert_containers import container_problems
from hpx.check.expert_lists import report_lists
from hpx.errors import ManyErrors
from hpx.experts import (
    ExpertContainer,
    all_below,
    expert_containers,
    overlooked_containers,
    stacked_name,
    stacks_of,
    unmatched_expert_patterns,
)
from hpx.facts import EXPERTS_STACKED, TIED
from hpx.graph import ModuleGraph
from hpx.lineage import Source, Stack
from hpx.pipeline import Pass, PassInfo, register
from hpx.pipeline.context import PassContext
from hpx.ranges import fold_names

__all__ = ["StackExperts"]


@register
@dataclass(frozen=True, kw_only=True)
class StackExperts(Pass):
    """Stack the experts of each container on a new first dim, slot i holding expert i.

    1. Containers are those under ``experts:`` in the plan, else found by name, or by structure:
       beside a module named as a router that has a row for each of them.
    2. Indices must be exactly ``0..E-1`` and are taken as numbers, so 2 comes before 10.
    3. The stacked name is the inner path without a final ``.weight``, dots as ``_``; a name that
       exists, or that would hide a field of the container, is refused.
    4. Experts must agree in structure, integers, shapes, dtypes and requires_grad; those that
       differ are refused by name.
    5. Buffers, tensor attributes, shared tensors, hooks, wrappers, DTensors and unknown tensor
       types inside experts are refused by name.
    6. What else stands in the container stays there. Stacked containers are left as they are.
    7. Patterns under ``experts:`` that name no container are an error, unless ``optional``;
       containers that the plan does not name, and lists that may be experts, are pointed out.
    """

    info = PassInfo(
        name="stack-experts",
        requires={TIED},
        provides={EXPERTS_STACKED},
        writes={"structure"},
    )

    optional: bool = False
    """Whether a model without the experts that the plan names is fine."""

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        """Check every container first, then stack."""
        self._check_patterns(graph, ctx)
        containers = expert_containers(graph, ctx.plan)
        todo = [container for container in containers if not container.stacked]
        done = [container.id for container in containers if container.stacked]
        findings = [
            error.found_by("equal-experts")
            for found in todo
            for error in container_problems(graph, ctx, found)
        ]
        if findings:
            raise ManyErrors.about("experts", findings).located(f"pass {ctx.name}")
        if done:
            ctx.skip(done, why="its parameters are stacked already")
        if not containers:
            ctx.note("the model has no expert containers: nothing to stack")
        overlooked = _report_overlooked(graph, ctx)
        report_lists(graph, ctx, [*containers, *overlooked])
        for container in todo:
            _stack(graph, ctx, container)

    def _check_patterns(self, graph: ModuleGraph, ctx: PassContext) -> None:
        missing = unmatched_expert_patterns(graph, ctx.plan)
        if not missing:
            return
        what = f"no experts at {', '.join(repr(pattern) for pattern in missing)}"
        if self.optional:
            ctx.note(f"{what}; optional=true")
            return
        raise ctx.error(
            what,
            why="a container has numbered modules 0..E-1, or stacked 3-D parameters",
            fix="correct the plan's experts:, or use stack-experts{optional=true}",
            check="expert-patterns",
        )


def _report_overlooked(graph: ModuleGraph, ctx: PassContext) -> list[ExpertContainer]:
    overlooked = overlooked_containers(graph, ctx.plan)
    if overlooked:
        names = ", ".join(fold_names(graph.path(found.id) for found in overlooked))
        ctx.problem(
            f"experts that the plan does not name stay separate: {names}",
            [found.id for found in overlooked],
            hint="add them to the plan's experts:",
            check="expert-lists",
        )
    return overlooked


def _stack(graph: ModuleGraph, ctx: PassContext, container: ExpertContainer) -> None:
    stacked: list[int] = []
    experts = [child for _, _, child in container.experts]
    why = f"{len(experts)} experts, found by {container.found_by}; slot i is expert i"
    for inner, columns in stacks_of(graph, experts):
        parts = tuple(map(Source, columns))
        stacked.append(ctx.derive(container.id, stacked_name(inner), Stack(parts), why=why))
    names = ", ".join(graph.nodes[node_id].name for node_id in stacked)
    ctx.remove(all_below(graph, experts), why=f"stacked into {names}")
