"""What holds of every derived plan, whichever the architecture."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

import hpx
from hpx import ModuleGraph, Run, ShardingPlan
from hpx.roles import roles
from tests.hpx.derive.models import FAMILIES, HAND_WRITTEN, family

EVERY = [*FAMILIES, *HAND_WRITTEN]
MESHES = ("dp=1,tp=2", "dp=1,tp=2,ep=2")


@cache
def graph_of(name: str) -> ModuleGraph:
    if name in FAMILIES:
        return ModuleGraph.from_module(family(name))
    return ModuleGraph.from_module(HAND_WRITTEN[name]())


@cache
def run_of(name: str, mesh: str) -> Run:
    """The derived plan, written, read back and run with collectives."""
    text = hpx.plan(graph_of(name), mesh).to_yaml()
    return hpx.run(graph_of(name), ShardingPlan.from_text(text, "plan.yaml"), mesh, "@run")


@pytest.fixture(name="done", params=[(n, m) for n in EVERY for m in MESHES], ids=str)
def _done(request: pytest.FixtureRequest) -> Run:
    return run_of(*request.param)


def cut(done: Run, axis: str) -> Iterator[str]:
    return (p.name for p in done.params if p.layout is not None and p.layout.dim(axis) is not None)


def test_a_derived_plan_runs_without_errors_and_cuts_something(done: Run) -> None:
    assert [problem for problem in done.problems if problem.level == "error"] == []
    assert next(cut(done, "tp"), None) is not None


def test_every_parameter_has_a_rule_with_file_line_and_reason(done: Run) -> None:
    for param in done.params:
        assert param.rule is not None
        assert param.rule.where.startswith("plan.yaml:")
        assert param.rule.reason


def test_every_reason_says_where_it_comes_from(done: Run) -> None:
    sources = ("(declared by the model)", "(from structure)", "(from names)")
    assert {
        p.name for p in done.params if not ((p.rule and p.rule.reason) or "").endswith(sources)
    } == set()


def test_blocks_pair_colwise_and_rowwise_matrices(done: Run) -> None:
    found = roles(done.graph, done.mesh, done.plan)
    assert found.findings == []
    regions = [role for role in found.boundaries if role.kind == "region"]
    assert all(role.kind in ("region", "rowwise", "embedding", "head") for role in found.boundaries)
    assert len(regions) <= sum(role.kind == "rowwise" for role in found.boundaries)


def test_no_head_is_split_and_no_count_is_left_undivided(done: Run) -> None:
    texts = [problem.text for problem in done.problems]
    assert [
        text for text in texts if "head" in text and "replicated on every rank" not in text
    ] == []


@pytest.mark.parametrize("name", EVERY)
def test_a_plan_uses_only_axes_that_the_mesh_has(name: str) -> None:
    for mesh in ("dp=2", "dp=1,tp=2", "dp=2,ep=2"):
        plan = hpx.plan(graph_of(name), mesh)
        axes = {axis for rule in plan.params for axis, _ in rule.layout.shards}
        assert axes <= {axis for axis in ("tp", "ep") if f"{axis}=" in mesh}


@pytest.mark.parametrize("name", EVERY)
def test_a_plan_reads_back_as_it_was_written(name: str) -> None:
    plan = hpx.plan(graph_of(name), "dp=1,tp=2,ep=2")
    read = ShardingPlan.from_text(plan.to_yaml())
    assert read.content_key() == plan.content_key()
    assert [rule.reason for rule in read.params] == [rule.reason for rule in plan.params]


@pytest.mark.parametrize("name", EVERY)
def test_more_ranks_than_anything_divides_by_leaves_everything_whole_with_numbers(
    name: str,
) -> None:
    plan = hpx.plan(graph_of(name), "tp=7")
    assert [rule for rule in plan.params if rule.layout.shards] == []
    said = " ".join(rule.reason or "" for rule in plan.params)
    assert "% 7 = " in said or "not known" in said
