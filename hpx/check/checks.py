"""Every static check of a plan, in one list: what it looks at, and what it says.

Most stand in the passes, which refuse before anything is set; `run_checks` asks the others, of the
graph that the passes left, before a run is accepted. ``docs/checks.md`` is made from this list.
"""

from __future__ import annotations

import inspect
from typing import Final, NamedTuple

from hpx.check import companions, pairing, replicated, unsaved, wrapped_heads
from hpx.check.subject import Question, Subject, problems_of
from hpx.graph.graph import ModuleGraph
from hpx.mesh import MeshSpec
from hpx.pipeline.context import Problem
from hpx.plan import ShardingPlan

__all__ = ["CHECKS", "IN_PASSES", "Known", "known", "run_checks"]


class Known(NamedTuple):
    """One check, for people.

    Attributes:
        name: Its name.
        levels: What it may say: ``error``, ``warning``, ``info``.
        where: The pass that asks it, or ``every run``.
        function: ``package.module:name`` of what does it.
        text: What has to hold.
    """

    name: str
    levels: str
    where: str
    function: str
    text: str


CHECKS: Final[tuple[tuple[str, str, Question], ...]] = (
    ("pairing", "warning, info", pairing.unpaired),
    ("summed-twice", "warning, info", pairing.summed_twice),
    ("wrapped-heads", "warning", wrapped_heads.wrapped_heads),
    ("scales", "error, warning", companions.scales),
    ("lora-pairs", "error", companions.lora_pairs),
    ("lost-buffers", "warning, info", unsaved.lost_buffers),
    ("plain-tensors", "warning, info", unsaved.plain_tensors),
    ("large-replicated", "warning, info", replicated.large_replicated),
)
"""The checks of a finished graph: name, levels, function."""


IN_PASSES: Final = (
    Known(
        *("tied-ends", "error", "tie-weights", "hpx.ties:declared_pairs"),
        "Both ends of a declared pair exist, and have one shape and one dtype.",
    ),
    Known(
        *(
            "equal-experts",
            "error",
            "stack-experts",
            "hpx.check.expert_containers:container_problems",
        ),
        "Experts of a container are numbered 0 to E-1 without a gap, have equal shapes, dtypes and"
        " requires_grad, and nothing in them that stacking would lose; each odd one is named.",
    ),
    Known(
        *("expert-patterns", "error", "stack-experts", "hpx.passes.stack_experts:StackExperts"),
        "Every container that the plan expects under experts: is there (or optional=true).",
    ),
    Known(
        *("expert-lists", "warning, info", "stack-experts", "hpx.check.expert_lists:report_lists"),
        "Lists that look like experts and stay apart are pointed out.",
    ),
    Known(
        *("existence", "error", "shard-params", "hpx.plan.findings:unmatched"),
        "Every rule, and every alternative of a rule, matches a parameter.",
    ),
    Known(
        *("never-winning", "error", "shard-params", "hpx.plan.findings:never_winning"),
        "No rule loses every parameter that it matches to rules before it.",
    ),
    Known(
        *("uncovered", "error", "shard-params", "hpx.plan.findings:uncovered"),
        "Every parameter has a rule, or the plan a default; experts without a rule are told apart.",
    ),
    Known(
        *("tied-rules", "error", "shard-params", "hpx.plan.findings:conflicting_names"),
        "All names of a tied parameter are won by the same rule.",
    ),
    Known(
        *("nothing-cut", "error, warning", "shard-params", "hpx.passes.shard_params:ShardParams"),
        "Where tp is active, something is cut (or nothing=allow); that every parameter has a rule"
        " which says replicate is only pointed out.",
    ),
    Known(
        *("layouts", "error", "shard-params", "hpx.sharding:decide"),
        "The layout of a rule names axes of the mesh and dims of its parameters.",
    ),
    Known(
        *("parametrised", "error", "shard-params", "hpx.sharding:decide"),
        "Nothing of a parametrised module, such as one under weight_norm, is cut.",
    ),
    Known(
        *("placed", "error", "shard-params", "hpx.check.placed:placed_problem"),
        "A parameter that is a DTensor already is placed as the plan says.",
    ),
    Known(
        *("tensor-type", "error", "shard-params", "hpx.check.cuts:cut_problems"),
        "A tensor class whose elements may be packed bits is not cut.",
    ),
    Known(
        *("norms", "error", "shard-params", "hpx.check.per_head:is_norm"),
        "A norm is not cut: a rank would normalise over its own part.",
    ),
    Known(
        *("expert-dim", "error", "shard-params", "hpx.check.expert_cuts:expert_cut_problem"),
        "ep cuts dim 0 of stacked experts, and nothing else.",
    ),
    Known(
        *("expert-sets", "error", "shard-params", "hpx.check.expert_cuts:split_containers"),
        "All parameters of a container are on ep, or none: slot i is one expert everywhere.",
    ),
    Known(
        *("quantised-blocks", "error", "shard-params", "hpx.check.quantised:block_problem"),
        "No cut goes through a block of elements that shares one scale.",
    ),
    Known(
        *("divisibility", "error", "shard-params", "hpx.check.cuts:cut_problems"),
        "Every cut divides its dim by the product of its axes, and heads stay whole; with"
        " uneven=allow the sizes and the empty ranks are told instead.",
    ),
    Known(
        *("fused", "error", "shard-params", "hpx.check.fused:fused_problem"),
        "A fused projection that is cut on its packed dim declares its parts under packed:.",
    ),
    Known(
        *("packed-parts", "error", "shard-params", "hpx.check.fused:packed_problem"),
        "Declared parts add up to their dim, and each is divided, not only their sum.",
    ),
    Known(
        *("report", "warning", "shard-params", "hpx.check.plan_report:report"),
        "An ep axis that cuts nothing, experts that stay whole beside it, uneven pieces and empty"
        " ranks, and a bias whose own rule contradicts its weight's, are pointed out.",
    ),
    Known(
        *("heads", "error", "update-heads", "hpx.check.head_counts:head_problems"),
        "tp divides all head counts of an attention together, and q, k and v are cut alike.",
    ),
    Known(
        *("declared-heads", "error", "update-heads", "hpx.check.head_counts:declared_counts"),
        "Integers under heads: exist, count something that is cut, and divide.",
    ),
    Known(
        *("unclear-heads", "warning", "update-heads", "hpx.check.head_counts:unclear_counts"),
        "Of every head count beside cut layers it is known whether what it counts is cut.",
    ),
    Known(
        *("head-norms", "error", "update-heads", "hpx.check.per_head:wide_norms"),
        "No norm over all heads of q or k stands beside cut heads.",
    ),
    Known(
        *("head-modules", "error", "update-heads", "hpx.check.per_head:per_head_modules"),
        "No list with one module a head stands beside cut heads.",
    ),
    Known(
        *("per-head", "warning", "update-heads", "hpx.check.per_head:per_head_tensors"),
        "Whole tensors with one value or row a head, beside cut heads, are pointed out.",
    ),
    Known(
        *("uncounted", "warning", "update-heads", "hpx.check.per_head:uncounted_integers"),
        "Integers of an unknown name that equal the head count or the width of a cut projection are"
        " pointed out, and modules in which no count was found.",
    ),
    Known(
        *(
            "census",
            "warning, info",
            "build-source-info",
            "hpx.passes.build_source_info:BuildSourceInfo",
        ),
        "The parameters of one data-parallel group have one dtype, and are all trained or frozen.",
    ),
    Known(
        *("boundaries", "error", "insert-collectives", "hpx.roles:roles"),
        "Where collectives are inserted, what pairing and boundaries point out is refused.",
    ),
)
"""The checks that passes ask, in the order of the passes."""


def run_checks(graph: ModuleGraph, plan: ShardingPlan, mesh: MeshSpec) -> list[Problem]:
    """What the checks of a finished graph say, in the order of the list.

    Args:
        graph: The graph after the last pass.
        plan: The plan.
        mesh: The mesh.
    """
    subject = Subject(graph, plan, mesh)
    return [problem for name, _, ask in CHECKS for problem in problems_of(ask(subject), name)]


def known() -> list[Known]:
    """All checks, those of the passes first; of the others the docstrings say what they ask."""
    others = [
        Known(name, levels, "every run", f"{ask.__module__}:{ask.__name__}", _first_lines(ask))
        for name, levels, ask in CHECKS
    ]
    return [*IN_PASSES, *others]


def _first_lines(ask: Question) -> str:
    said = inspect.getdoc(ask) or ""
    return " ".join(said.split("\n\n")[0].split())
