"""What a caller may give for a mesh, a plan and a model, and what is said of anything else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import hpx
from hpx._given import as_mesh, as_plan

PLAN = hpx.ShardingPlan({"weight": {"tp": "S(0)"}}, default="replicate")


def test_a_mesh_is_taken_as_it_is_or_as_text() -> None:
    assert as_mesh("dp=2,tp=2") == as_mesh(hpx.MeshSpec.parse("dp=2,tp=2"))


def test_a_mesh_as_a_mapping_is_told_its_text() -> None:
    with pytest.raises(hpx.MeshError, match="Fix: write 'dp=2,tp=4'"):
        as_mesh({"dp": 2, "tp": 4})


def test_a_mesh_of_sizes_alone_is_told_what_to_write() -> None:
    with pytest.raises(hpx.MeshError, match=r"given as a tuple\. Fix: write it as text"):
        as_mesh((2, 4))


def test_a_plan_is_taken_as_it_is_or_from_a_path(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN.to_yaml())
    read = [as_plan(one) for one in (PLAN, tmp_path / "plan.yaml", str(tmp_path / "plan.yaml"))]
    assert [one.content_key() for one in read] == [PLAN.content_key()] * 3


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ({"**": "replicate"}, r"Fix: write hpx.ShardingPlan\(\{...\}\)"),
        (None, "no plan is given. Fix: give a hpx.ShardingPlan"),
        (3, "given as a int. Fix: give a hpx.ShardingPlan"),
    ],
)
def test_what_is_no_plan_is_told_what_to_write(plan: object, told: str) -> None:
    with pytest.raises(hpx.PlanError, match=told):
        as_plan(plan)


CALLS: dict[str, Callable[[object], object]] = {
    "run": lambda model: hpx.run(model, PLAN, "tp=2"),  # type: ignore[arg-type]
    "plan": lambda model: hpx.plan(model, "tp=2"),  # type: ignore[arg-type]
    "apply": lambda model: hpx.apply(model, PLAN, "tp=2"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    ("model", "kind"), [(nn.Linear, "the class Linear"), ({"w": torch.zeros(2)}, "a dict")]
)
def test_what_is_no_model_is_refused(
    call: Callable[[object], object], model: object, kind: str
) -> None:
    with pytest.raises(hpx.UsageError, match=f"the model is given as {kind}. Fix: give the torch"):
        call(model)


def test_the_name_of_a_model_cannot_be_sharded() -> None:
    with pytest.raises(hpx.UsageError, match="the model is given as a str"):
        CALLS["apply"]("hpx.bundled:tiny_llama")


def test_nothing_was_applied_to_a_name() -> None:
    with pytest.raises(hpx.HpxError, match="nothing was applied to this str"):
        hpx.state_dict("hpx.bundled:tiny_llama")  # type: ignore[arg-type]
