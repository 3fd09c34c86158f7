"""Asks static checks about small graphs with layouts."""

from __future__ import annotations

from collections.abc import Mapping

from hpx.check.subject import Question, Subject, problems_of
from hpx.graph.graph import ModuleGraph
from hpx.mesh import MeshSpec
from hpx.pipeline.context import Problem
from hpx.plan import ShardingPlan

__all__ = ["CONV1D", "EMBEDDING", "LINEAR", "ask", "levels", "subject", "where"]

LINEAR = "torch.nn.modules.linear.Linear"
EMBEDDING = "torch.nn.modules.sparse.Embedding"
CONV1D = "transformers.pytorch_utils.Conv1D"


def subject(
    graph: ModuleGraph, mesh: str = "tp=2", boundaries: Mapping[str, object] | None = None
) -> Subject:
    plan = ShardingPlan({}, default="replicate", boundaries=boundaries or {})
    return Subject(graph, plan, MeshSpec.parse(mesh))


def ask(
    question: Question,
    graph: ModuleGraph,
    mesh: str = "tp=2",
    boundaries: Mapping[str, object] | None = None,
) -> list[Problem]:
    return problems_of(question(subject(graph, mesh, boundaries)))


def levels(problems: list[Problem]) -> list[str]:
    return [problem.level for problem in problems]


def where(graph: ModuleGraph, problems: list[Problem]) -> list[list[str]]:
    return [[graph.path(node) for node in problem.nodes] for problem in problems]
