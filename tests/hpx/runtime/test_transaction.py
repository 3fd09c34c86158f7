"""Apply and restore are transactions: an error at any change leaves the model as it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
import torch
from torch import nn

import hpx
from hpx.bundled_modules import CausalLM, DecoderConfig
from hpx.errors import HpxError
from hpx.lineage import pull
from hpx.runtime import apply as applying
from hpx.runtime import materialize
from tests.hpx.runtime.conftest import FakeGroup
from tests.hpx.runtime.snapshot import assert_same, snapshot

DENSE: Final = hpx.ShardingPlan(
    params={
        "model.embed_tokens.weight": {"tp": "S(0)"},
        "**.{q,k,v}_proj.weight": {"tp": "S(0)"},
        "**.o_proj.weight": {"tp": "S(1)"},
        "**.mlp.{gate,up}_proj.weight": {"tp": "S(0)"},
        "**.mlp.down_proj.weight": {"tp": "S(1)"},
    },
    default="replicate",
)
EXPERTS: Final = hpx.ShardingPlan(
    params={
        "**.experts.*": {"ep": "S(0)"},
        "**.{q,k,v}_proj.weight": {"tp": "S(0)"},
        "**.o_proj.weight": {"tp": "S(1)"},
    },
    default="replicate",
)
KINDS: Final[dict[str, tuple[hpx.ShardingPlan, str, str, dict[str, Any]]]] = {
    "dense, tied, with collectives": (DENSE, "tp=2", "@run", {"tied": True}),
    "experts": (EXPERTS, "tp=2,ep=2", "@default", {"num_experts": 2}),
    "permanent": (DENSE, "tp=2", "@default,localize{mode=permanent}", {"tied": True}),
    "excluded": (DENSE, "tp=2", '@default,localize{exclude=["**.mlp"]}', {}),
}


class FaultError(Exception):
    pass


def _model(**more: Any) -> nn.Module:
    torch.manual_seed(0)
    model = CausalLM(
        DecoderConfig(
            hidden_size=8,
            intermediate_size=8,
            num_layers=1,
            num_heads=4,
            num_key_value_heads=2,
            head_dim=2,
            vocab_size=8,
            **more,
        )
    )
    for number, parameter in enumerate(model.parameters()):
        parameter.__dict__["tag"] = number
        parameter.__dict__["_private"] = number
    model.register_buffer("kept", torch.arange(3.0))
    model.register_buffer("unsaved", torch.arange(2.0), persistent=False)
    model.register_forward_hook(lambda *_: None)
    model.get_submodule("model").register_forward_pre_hook(lambda *_: None)
    model.get_parameter("model.norm.weight").requires_grad_(False)
    return model


class At:
    """Raises at the n-th change."""

    def __init__(self, number: int, kind: type[BaseException] = FaultError) -> None:
        self.number = number
        self.kind = kind
        self.heard: list[str] = []

    def __call__(self, what: str) -> None:
        self.heard.append(what)
        if len(self.heard) == self.number:
            raise self.kind(what)


@pytest.fixture
def two_ranks(fake_group: FakeGroup) -> None:
    fake_group(1, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_apply_that_fails_at_any_change_leaves_the_model_as_it_was(
    kind: str, two_ranks: None
) -> None:
    plan, mesh, pipeline, more = KINDS[kind]
    model = _model(**more)
    before = snapshot(model)
    made = hpx.run(model, plan, mesh, pipeline)
    number = 0
    while True:
        number += 1
        fault = At(number)
        try:
            hpx.apply(model, run=made, fault=fault)
        except FaultError:
            assert_same(before, model)
        else:
            break
    assert number == len(fault.heard) + 1 > 20
    kinds = {what.split()[0] for what in fault.heard}
    assert {"set_parameter", "set_attribute", "add_hook"} <= kinds


@pytest.mark.parametrize("kind", KINDS)
def test_restore_that_fails_at_any_change_leaves_the_model_sharded(
    kind: str, two_ranks: None
) -> None:
    plan, mesh, pipeline, more = KINDS[kind]
    model = _model(**more)
    hpx.apply(model, plan, mesh, pipeline)
    before = snapshot(model)
    number = 0
    while True:
        number += 1
        fault = At(number)
        try:
            hpx.restore(model, fault=fault)
        except FaultError:
            assert_same(before, model)
        else:
            break
    assert number == len(fault.heard) + 1 > 20


@pytest.mark.parametrize("number", [1, 7, 20])
def test_an_interrupt_leaves_the_model_as_it_was(number: int, two_ranks: None) -> None:
    plan, mesh, pipeline, more = KINDS["experts"]
    model = _model(**more)
    before = snapshot(model)
    with pytest.raises(KeyboardInterrupt):
        hpx.apply(model, plan, mesh, pipeline, fault=At(number, KeyboardInterrupt))
    assert_same(before, model)
    hpx.apply(model, plan, mesh, pipeline)
    before = snapshot(model)
    with pytest.raises(KeyboardInterrupt):
        hpx.restore(model, fault=At(number, KeyboardInterrupt))
    assert_same(before, model)


def _stop(*_: object, **__: object) -> Any:
    raise FaultError


@pytest.mark.parametrize(
    "step", ["build", "install", "verify_model", "verify_elements", "agree", "work_out"]
)
def test_a_step_that_fails_leaves_the_model_as_it_was(
    step: str, two_ranks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, mesh, pipeline, more = KINDS["experts"]
    model = _model(**more)
    before = snapshot(model)
    monkeypatch.setattr(applying, step, _stop)
    with pytest.raises(FaultError):
        hpx.apply(model, plan, mesh, pipeline, verify="full")
    assert_same(before, model)


def test_what_fails_after_the_originals_were_freed_is_told_as_not_undoable(
    two_ranks: None,
) -> None:
    plan, mesh, pipeline, more = KINDS["experts"]
    with pytest.raises(HpxError, match=r"cannot be given back.*load the model again"):
        hpx.apply(_model(**more), plan, mesh, pipeline, donate=True, fault=At(5))


def test_a_failure_before_anything_was_freed_gives_the_model_back(
    two_ranks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, mesh, pipeline, more = KINDS["experts"]
    model = _model(**more)
    before = snapshot(model)
    monkeypatch.setattr(applying, "check_sources", _stop)
    with pytest.raises(FaultError):
        hpx.apply(model, plan, mesh, pipeline, donate=True)
    assert_same(before, model)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_applies_after_a_failure_as_if_nothing_had_been(kind: str, two_ranks: None) -> None:
    plan, mesh, pipeline, more = KINDS[kind]
    model, twin = _model(**more), _model(**more)
    with pytest.raises(FaultError):
        hpx.apply(model, plan, mesh, pipeline, fault=At(9))
    hpx.apply(model, plan, mesh, pipeline)
    hpx.apply(twin, plan, mesh, pipeline)
    assert list(_places(model)) == list(_places(twin))


def _places(model: nn.Module) -> Iterator[str]:
    for place, value in snapshot(model).items():
        yield place.split("hooks")[0] + (f" {value!r}" if isinstance(value, bytes) else "")


def test_elements_in_the_wrong_place_are_found_by_full_verification(
    two_ranks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, mesh, pipeline, more = KINDS["experts"]
    model = _model(**more)
    before = snapshot(model)
    monkeypatch.setattr(
        materialize, "pull", lambda of, ranges: pull(of, [(0, b - a) for a, b in ranges])
    )
    with pytest.raises(HpxError, match="its elements are not where the run says"):
        hpx.apply(model, plan, mesh, pipeline, verify="full")
    assert_same(before, model)
    hpx.apply(model, plan, mesh, pipeline)  # shapes and flags are right
