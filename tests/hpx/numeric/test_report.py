"""What a report of a check says to other programs."""

from __future__ import annotations

import json
import math

import pytest

import hpx
from hpx.numeric.measure import Deviation, Key
from hpx.numeric.report import Blame, Report, figures_of


def report_on(layout: str) -> str:
    """What is printed of two models that are equal, with the head laid out so."""
    plan = hpx.ShardingPlan({"lm_head.weight": {"tp": layout}, "**": "replicate"}, mesh="tp=2")
    run = hpx.run("hpx.bundled:tiny_llama", plan)
    figures = figures_of([[Deviation(Key("output", "logits"), 0.0, 1.0, "")]], 1e-9)
    return str(Report("m", run, 1e-9, 1, figures, None, 1.0, (), 1.0))


@pytest.mark.parametrize(("layout", "told"), [("R", True), ("S(0)", False)])
def test_models_that_are_equal_because_nothing_is_cut_are_told_apart(
    layout: str, told: bool
) -> None:
    text = report_on(layout)
    assert text.startswith("equal: m on tp=2")
    line = "nothing was put to the test: 0 of 21 parameters sharded, and tp is 2"
    assert (line in text) == told


def test_what_is_infinitely_far_is_null_as_json_has_no_infinity() -> None:
    off = Deviation(Key("output", "logits"), math.inf, 1.0, "its shape is (2,), not (3,)")
    (figure,) = figures_of([[off]], 1e-9)
    blame = Blame("head", "Linear", "forward", "its output differs", math.inf)
    text = json.dumps([figure.to_json(), blame.to_json()], allow_nan=False)
    first, second = json.loads(text)
    assert (first["wrong"], first["largest"], first["note"]) == (1, None, off.note)
    assert second["by"] is None
