"""The table of a refused plan has what the plan decides, as that of a run has."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from torch import nn

from hpx.graph.graph import ModuleGraph
from hpx.mesh import MeshSpec
from hpx.params import Param
from hpx.pipeline.textform import as_passes
from hpx.plan import ShardingPlan
from hpx.tools._check import Check, check_plan

RULES: Mapping[str, object] = {
    "up.weight": {"tp": "S(0)"},
    "down.weight": {"tp": "S(1)"},
    "norm.*": "replicate",
}


def mlp() -> nn.Module:
    model = nn.Module()
    model.norm, model.up, model.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
    return model


def checked(rules: Mapping[str, object], mesh: str, **plan: str) -> Check:
    graph = ModuleGraph.from_module(mlp())
    passes = as_passes("@default, shard-params{nothing=allow}")
    return check_plan(graph, ShardingPlan(rules, **plan), MeshSpec.parse(mesh), passes)  # type: ignore[arg-type]


def rows(check: Check) -> list[tuple[object, ...]]:
    def row(param: Param) -> tuple[object, ...]:
        rule = None if param.rule is None else param.rule.pattern
        local = param.local_shape, param.local_bytes
        return param.name, str(param.layout), param.mesh, *local, rule

    return [row(param) for param in check.params]


@pytest.mark.parametrize("mesh", ["tp=2", "dp=2,tp=1", "tp=2,dp=2"])
def test_a_refused_plan_has_the_rows_of_the_plan_without_its_error(mesh: str) -> None:
    right = checked(RULES, mesh)
    wrong = checked({**RULES, "nothing.weight": "replicate"}, mesh)
    assert right.run is not None
    assert wrong.run is None
    assert rows(wrong) == rows(right)
    counts = [check.verdict()[-1].partition(": ")[2] for check in (right, wrong)]  # type: ignore[union-attr]
    assert counts[0] == counts[1]


def test_biases_follow_their_weights_though_the_cut_is_refused() -> None:
    check = checked({**RULES, "down.weight": {"tp": "S(5)"}, "up.weight": {"tp": "S(0)"}}, "tp=2")
    assert check.run is None
    layouts = {param.name: str(param.layout) for param in check.params}
    assert layouts["up.bias"] == "tp:S(0)"
    assert layouts["down.weight"] == "None"
    assert [param.name for param in check.params if param.rule is None] == ["down.bias"]
