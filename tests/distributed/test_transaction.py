"""On several ranks: what fails on one of them leaves all of them as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch.distributed as dist
from torch import nn

import hpx
from hpx import bundled
from hpx.numeric.pool import Pool
from hpx.runtime import apply as applying
from tests.hpx.runtime.snapshot import Facts, differences, snapshot

RULES: Final[dict[str, Any]] = {
    "model.embed_tokens.weight": {"tp": "S(0)"},
    "**.{q,k,v}_proj.weight": {"tp": "S(0)"},
    "**.o_proj.weight": {"tp": "S(1)"},
}
EXPERTS: Final[dict[str, Any]] = {**RULES, "**.experts.*": {"ep": "S(0)"}}
PLAN: Final = hpx.ShardingPlan(params=RULES, default="replicate")


class FaultError(Exception):
    pass


class At:
    """Raises at the n-th change, on one rank."""

    def __init__(self, number: int, rank: int, kind: type[BaseException] = FaultError) -> None:
        self.number = number if dist.get_rank() == rank else -1
        self.kind = kind
        self.count = 0

    def __call__(self, what: str) -> None:
        self.count += 1
        if self.count == self.number:
            raise self.kind(what)


def _said(call: Callable[[], object]) -> str:
    try:
        call()
    except BaseException as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    return ""


def _same(before: Facts, model: nn.Module) -> list[str]:
    return differences(before, snapshot(model))[:5]


# -- faults ---------------------------------------------------------------------------------------


def fails_at(steps: int, bad: int) -> tuple[list[str], list[str], int]:
    """Apply with a fault at every ``steps``-th change of one rank, then restore likewise."""
    model = bundled.tiny_moe()
    plan = hpx.ShardingPlan(params=EXPERTS, default="replicate")
    faults: list[str] = []
    said: list[str] = []
    before = snapshot(model)
    made = hpx.run(model, plan, "tp=2,ep=2")
    number = 0
    for verb in (
        lambda fault: hpx.apply(model, run=made, fault=fault),
        lambda fault: hpx.restore(model, fault=fault),
    ):
        position = 1
        while True:
            fault = At(position, bad)
            text = _said(lambda: verb(fault))  # noqa: B023
            if not text:
                break
            said.append(text)
            number += 1
            faults += _same(before, model)
            position += steps
        before = snapshot(model)
    return faults, said, number


def test_a_fault_at_any_change_of_one_rank_undoes_all_of_them(gloo: Pool) -> None:
    good, bad = gloo.run(fails_at, 2, 7, 1)
    for faults, said, number in (good, bad):
        assert faults == []
        assert len(said) == number > 15
    assert all(text.startswith("FaultError: ") for text in bad[1])
    assert all(text.startswith("RankError: rank 1 failed; this rank's") for text in good[1])
    assert all("rank 1: FaultError: " in text for text in good[1])


def interrupted() -> tuple[str, list[str]]:
    model = bundled.tiny_llama()
    before = snapshot(model)
    said = _said(lambda: hpx.apply(model, PLAN, "tp=2", fault=At(5, 0, KeyboardInterrupt)))
    return said, _same(before, model)


def test_an_interrupt_on_one_rank_undoes_all_of_them(gloo: Pool) -> None:
    (first, odd), (second, other) = gloo.run(interrupted, 2)
    assert odd == other == []
    assert first.startswith("KeyboardInterrupt")
    assert "rank 0: KeyboardInterrupt" in second


def step_fails(step: str) -> tuple[str, list[str]]:
    """One step of apply raises on rank 1."""
    model = bundled.tiny_moe()
    before = snapshot(model)
    plan = hpx.ShardingPlan(params=EXPERTS, default="replicate")
    real = getattr(applying, step)

    def stop(*_: Any, **__: Any) -> Any:
        raise FaultError(step)

    if dist.get_rank() == 1:
        setattr(applying, step, stop)
    try:
        said = _said(lambda: hpx.apply(model, plan, "tp=2,ep=2", verify="full"))
    finally:
        setattr(applying, step, real)
    return said, _same(before, model)


@pytest.mark.parametrize(
    "step", ["work_out", "build", "install", "verify_model", "verify_elements"]
)
def test_a_step_that_fails_on_one_rank_undoes_all_of_them(step: str, gloo: Pool) -> None:
    (first, odd), (second, other) = gloo.run(step_fails, 2, step)
    assert odd == other == []
    assert f"rank 1: FaultError: {step}" in first
    assert second == f"FaultError: {step}"


# -- ranks that do not agree ----------------------------------------------------------------------


def another_plan() -> tuple[str, list[str]]:
    model = bundled.tiny_llama()
    before = snapshot(model)
    rules = {**RULES, "**.down_proj.weight": {"tp": "S(1)"}} if dist.get_rank() == 2 else RULES
    plan = hpx.ShardingPlan(params=rules, default="replicate")
    said = _said(lambda: hpx.apply(model, plan, "tp=4"))
    return said, _same(before, model)


def test_ranks_with_different_plans_are_refused_with_the_first_event_that_differs(
    gloo: Pool,
) -> None:
    texts = gloo.run(another_plan, 4)
    assert [odd for _, odd in texts] == [[]] * 4
    assert len({said for said, _ in texts}) == 1
    assert "rank 2 has another plan, mesh or pipeline than rank 0" in texts[0][0]
    assert "is the first that differs: " in texts[0][0]
    assert "model.layers.{0-1}.mlp.down_proj.weight only on rank" in texts[0][0]


def another_model() -> tuple[str, list[str]]:
    model = bundled.tiny_llama()
    if dist.get_rank() == 0:
        model.get_parameter("model.norm.weight").requires_grad_(False)
    before = snapshot(model)
    return _said(lambda: hpx.apply(model, PLAN, "tp=2")), _same(before, model)


def test_ranks_with_different_models_are_refused(gloo: Pool) -> None:
    for said, odd in gloo.run(another_model, 2):
        assert odd == []
        assert "rank 1 has another model than rank 0" in said
        assert "requires_grad of 'model.norm.weight' is False on rank 0, True on rank 1" in said


def another_mesh() -> tuple[str, list[str]]:
    model = bundled.tiny_llama()
    before = snapshot(model)
    mesh = "tp=2" if dist.get_rank() == 0 else "dp=2,tp=1"
    return _said(lambda: hpx.apply(model, PLAN, mesh)), _same(before, model)


def test_ranks_with_different_meshes_are_refused_before_they_wait(gloo: Pool) -> None:
    for rank, (said, odd) in enumerate(gloo.run(another_mesh, 2)):
        assert odd == []
        assert f"the ranks do not agree on the mesh: rank {1 - rank} has" in said


def no_mesh() -> str:
    mesh = "tp=2" if dist.get_rank() == 0 else None
    return _said(lambda: hpx.apply(bundled.tiny_llama(), PLAN, mesh))


def test_a_rank_without_a_mesh_tells_the_others(gloo: Pool) -> None:
    first, second = gloo.run(no_mesh, 2)
    assert "the ranks do not agree on the mesh: rank 1 has PlanError: the plan names no" in first
    assert second.startswith("PlanError: the plan names no mesh")


def one_is_sharded() -> tuple[str, list[str]]:
    model = bundled.tiny_llama()
    applied = hpx.apply(model, PLAN, "tp=2")
    if dist.get_rank() == 1:
        model = bundled.tiny_llama()
    before = snapshot(model)
    said = _said(lambda: hpx.apply(model, PLAN, "tp=2"))
    del applied
    return said, _same(before, model)


def test_a_rank_that_is_sharded_already_among_others_that_are_not_is_refused(gloo: Pool) -> None:
    for said, odd in gloo.run(one_is_sharded, 2):
        assert odd == []
        assert "the ranks do not agree" in said
        assert "sharded already" in said
        assert "not sharded" in said


def refused_on_one() -> str:
    rules = RULES if dist.get_rank() == 0 else {"nowhere": {"tp": "S(0)"}}
    plan = hpx.ShardingPlan(params=rules, default="replicate")
    return _said(lambda: hpx.apply(bundled.tiny_llama(), plan, "tp=2"))


def test_a_plan_that_one_rank_refuses_is_told_to_the_others(gloo: Pool) -> None:
    first, second = gloo.run(refused_on_one, 2)
    assert "rank 1: ManyErrors" in first
    assert "nowhere" in first
    assert "nowhere" in second
