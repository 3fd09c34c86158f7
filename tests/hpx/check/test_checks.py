"""The list of all checks, and what becomes of errors."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import nn

import hpx
from hpx import ManyErrors, ShardingPlan
from hpx.check.accept import refuse_errors
from hpx.check.checks import IN_PASSES, Known, known
from hpx.pipeline import registry

LLAMA = """\
version: 1
params:
  "model.layers.*.self_attn.{q,k,v}_proj.weight": {tp: S(0)}
  "model.layers.*.self_attn.o_proj.weight": {tp: S(1)}
  "model.layers.*.mlp.{gate,up}_proj.weight": {tp: S(0)}
  "model.layers.*.mlp.down_proj.weight": {tp: S(1)}
default: replicate
"""


def test_every_check_has_a_name_of_its_own() -> None:
    names = [check.name for check in known()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("check", known(), ids=lambda check: check.name)
def test_every_check_is_done_by_a_function_that_exists(check: Known) -> None:
    module, _, name = check.function.partition(":")
    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize("check", known(), ids=lambda check: check.name)
def test_every_check_says_what_has_to_hold(check: Known) -> None:
    assert check.text.endswith((".", ")"))
    assert set(check.levels.split(", ")) <= {"error", "warning", "info"}


def test_every_check_of_a_pass_names_a_pass() -> None:
    assert {check.where for check in IN_PASSES} <= set(registry.names())


def test_a_plan_that_is_right_is_silent() -> None:
    plan = ShardingPlan.from_text(LLAMA)
    assert hpx.run("hpx.bundled:tiny_llama", plan, "dp=2,tp=2").problems == ()


class Quantised(nn.Module):
    """A weight and its scales."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 16, bias=False)
        self.down = nn.Linear(16, 16, bias=False)
        self.up.weight_scale = nn.Parameter(torch.ones(4, 2))


QUANTISED = {"up.weight": {"tp": "S(0)"}, "down.weight": {"tp": "S(1)"}}


def test_a_run_with_errors_is_not_accepted() -> None:
    run = hpx.run(Quantised(), ShardingPlan(QUANTISED, default="replicate"), "tp=2")
    with pytest.raises(ManyErrors) as caught:
        refuse_errors(run)
    assert "up.weight_scale: it is R, and weight [16, 16] tp:S(0) asks for" in str(caught.value)
    assert "Fix: give it {tp: S(0)}" in str(caught.value)


def test_a_run_without_errors_is_accepted() -> None:
    rules = {**QUANTISED, "up.weight_scale": {"tp": "S(0)"}}
    refuse_errors(hpx.run(Quantised(), ShardingPlan(rules, default="replicate"), "tp=2"))


def test_warnings_do_not_stand_in_the_way() -> None:
    run = hpx.run(nn.Linear(4, 4, bias=False), ShardingPlan({"weight": {"tp": "S(0)"}}), "tp=2")
    assert [problem.level for problem in run.problems] == ["warning"]
    refuse_errors(run)
