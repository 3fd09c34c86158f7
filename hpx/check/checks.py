"""Every static check of a plan, in one list: what it looks at, and what it says.

Most stand in the passes, which refuse before anything is set; `run_checks` asks the others, of the
graph that the passes left, before a run is accepted. ``docs/checks.md`` is made from this list.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from hpx.check import (
    companions,
    cuts,
    expert_containers,
    expert_cuts,
    fused,
    head_counts,
    pairing,
    per_head,
    placed,
    plan_report,
    quantised,
    replicated,
    unsaved,
)
from hpx.check.subject import Question, Subject, problems_of
from hpx.graph.graph import ModuleGraph
from hpx.mesh import MeshSpec
from hpx.pipeline.context import Problem
from hpx.plan import ShardingPlan, findings

__all__ = ["CHECKS", "IN_PASSES", "Known", "known", "run_checks"]


class Known(NamedTuple):
    """One check, for people.

    Attributes:
        name: Its name.
        levels: What it may say: ``error``, ``warning``, ``info``.
        where: The pass that asks it, or ``every run``.
        function: What does it; its docstring is the description.
        text: The description, where the function does more than this.
    """

    name: str
    levels: str
    where: str
    function: Callable[..., Any]
    text: str = ""

    @property
    def description(self) -> str:
        """The first paragraph of what it says of itself."""
        said = self.text or inspect.getdoc(self.function) or ""
        return " ".join(said.split("\n\n")[0].split())


CHECKS: Final[tuple[tuple[str, str, Question], ...]] = (
    ("pairing", "warning, info", pairing.unpaired),
    ("summed-twice", "warning, info", pairing.summed_twice),
    ("scales", "error", companions.scales),
    ("lora-pairs", "error", companions.lora_pairs),
    ("lost-buffers", "warning, info", unsaved.lost_buffers),
    ("plain-tensors", "warning, info", unsaved.plain_tensors),
    ("large-replicated", "warning, info", replicated.large_replicated),
)
"""The checks of a finished graph: name, levels, function."""


IN_PASSES: Final = (
    Known("existence", "error", "shard-params", findings.unmatched),
    Known("never-winning", "error", "shard-params", findings.never_winning),
    Known("uncovered", "error", "shard-params", findings.uncovered),
    Known("tied-rules", "error", "shard-params", findings.conflicting_names),
    Known(
        *("nothing-cut", "error", "shard-params", cuts.cut_problems),
        "Where tp is active, something is cut (or nothing=allow).",
    ),
    Known(
        *("divisibility", "error", "shard-params", cuts.cut_problems),
        "Every cut divides its dim by the product of its axes, and heads stay whole; with"
        " uneven=allow the sizes and the empty ranks are told instead.",
    ),
    Known(
        *("tensor-type", "error", "shard-params", cuts.cut_problems),
        "A tensor class whose elements may be packed bits is not cut.",
    ),
    Known(
        *("norms", "error", "shard-params", per_head.is_norm),
        "A norm is not cut: a rank would normalise over its own part.",
    ),
    Known("fused", "error", "shard-params", fused.fused_problem),
    Known("packed-parts", "error", "shard-params", fused.packed_problem),
    Known("quantised-blocks", "error", "shard-params", quantised.block_problem),
    Known("expert-dim", "error", "shard-params", expert_cuts.expert_cut_problem),
    Known("expert-sets", "error", "shard-params", expert_cuts.split_containers),
    Known("equal-experts", "error", "stack-experts", expert_containers.container_problems),
    Known("placed", "error", "shard-params", placed.placed_problem),
    Known(
        *("report", "warning", "shard-params", plan_report.report),
        "An ep axis that cuts nothing, experts that stay whole beside it, uneven pieces and empty"
        " ranks, and a bias whose own rule contradicts its weight's.",
    ),
    Known("heads", "error", "update-heads", head_counts.head_problems),
    Known("declared-heads", "error", "update-heads", head_counts.declared_counts),
    Known("head-norms", "error", "update-heads", per_head.wide_norms),
    Known("head-modules", "error", "update-heads", per_head.per_head_modules),
    Known("per-head", "warning", "update-heads", per_head.per_head_tensors),
    Known("uncounted", "warning", "update-heads", per_head.uncounted_integers),
    Known(
        *("census", "warning, info", "build-source-info", plan_report.report),
        "The dtypes, and the frozen among the trained, of the parameters of one data-parallel"
        " group.",
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
    return [problem for _, _, ask in CHECKS for problem in problems_of(ask(subject))]


def known() -> list[Known]:
    """All checks, those of the passes first."""
    others = [Known(name, levels, "every run", ask) for name, levels, ask in CHECKS]
    return [*IN_PASSES, *others]
