"""The list of all checks."""

from __future__ import annotations

import pytest

import hpx
from hpx import ShardingPlan
from hpx.check.checks import CHECKS, IN_PASSES, Known, known
from hpx.pipeline import registry


def test_every_check_has_a_name_of_its_own() -> None:
    names = [check.name for check in known()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("check", known(), ids=lambda check: check.name)
def test_every_check_says_what_it_looks_at(check: Known) -> None:
    assert check.description.endswith((".", ")"))


def test_every_check_of_a_pass_names_a_pass() -> None:
    assert {check.where for check in IN_PASSES} <= set(registry.names())


def test_a_plan_that_is_right_is_silent() -> None:
    plan = ShardingPlan.from_text(
        """\
version: 1
params:
  "model.layers.*.self_attn.{q,k,v}_proj.weight": {tp: S(0)}
  "model.layers.*.self_attn.o_proj.weight": {tp: S(1)}
  "model.layers.*.mlp.{gate,up}_proj.weight": {tp: S(0)}
  "model.layers.*.mlp.down_proj.weight": {tp: S(1)}
default: replicate
"""
    )
    assert hpx.run("hpx.bundled:tiny_llama", plan, "dp=2,tp=2").problems == ()


def test_every_check_of_a_finished_graph_is_in_the_list() -> None:
    assert {check.name for check in known()} >= {name for name, _, _ in CHECKS}
