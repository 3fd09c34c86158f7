"""The journal: whatever is changed through it can be taken back, order and identity included."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hpx.runtime.journal import Journal
from tests.hpx.runtime.snapshot import assert_same, snapshot


class StopError(Exception):
    pass


def _model() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    first = model.get_submodule("0")
    first.__dict__["number"] = 4
    first.register_forward_hook(_hook)
    first.register_forward_pre_hook(_hook)
    return model


def _hook(*_: object, **__: object) -> None:
    return None


def _new() -> nn.Parameter:
    return nn.Parameter(torch.ones(1))


Change = Callable[[Journal, nn.Module], None]
"""Changes a linear layer."""
CHANGES: dict[str, Change] = {
    "a parameter": lambda journal, m: journal.set_parameter(m, "weight", _new()),
    "a new parameter": lambda journal, m: journal.set_parameter(m, "extra", _new()),
    "no parameter": lambda journal, m: journal.set_parameter(m, "bias", None),
    "a parameter less": lambda journal, m: journal.remove_parameter(m, "weight"),
    "a module": lambda journal, m: journal.set_module(m, "act", nn.GELU()),
    "an attribute": lambda journal, m: journal.set_attribute(m, "number", 2),
    "a new attribute": lambda journal, m: journal.set_attribute(m, "other", 2),
    "an attribute less": lambda journal, m: journal.remove_attribute(m, "number"),
    "a hook": lambda journal, m: journal.add_hook(m.register_forward_hook, _hook),
    "a hook before the others": lambda journal, m: journal.add_hook(
        m.register_forward_hook, _hook, prepend=True, with_kwargs=True, always_call=True
    ),
    "a state dict hook": lambda journal, m: journal.add_hook(m.register_state_dict_pre_hook, _hook),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_taken_back(what: str) -> None:
    model = _model()
    before = snapshot(model)
    journal = Journal()
    CHANGES[what](journal, model.get_submodule("0"))
    journal.rollback()
    assert_same(before, model)


def test_all_changes_together_are_taken_back() -> None:
    model = _model()
    before = snapshot(model)
    journal = Journal()
    for what in sorted(CHANGES, key=lambda what: "less" in what):
        CHANGES[what](journal, model.get_submodule("0"))
    assert journal.changes == len(CHANGES)
    journal.rollback()
    assert_same(before, model)


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_that_fails_has_not_happened(what: str) -> None:
    def fault(kind: str) -> None:
        raise StopError(kind)

    model = _model()
    before = snapshot(model)
    journal = Journal(fault)
    with pytest.raises(StopError):
        CHANGES[what](journal, model.get_submodule("0"))
    assert_same(before, model)
    journal.rollback()
    assert_same(before, model)


def test_hooks_that_are_taken_off_come_back_at_their_place() -> None:
    model = nn.Linear(2, 2)
    handles = [model.register_forward_hook(_hook) for _ in range(3)]
    handles.append(model.register_forward_pre_hook(_hook, with_kwargs=True))
    before = snapshot(model)
    journal = Journal()
    for handle in (handles[1], handles[3]):
        journal.remove_hook(handle)
    assert len(model._forward_hooks) == 2
    assert not model._forward_pre_hooks
    assert not model._forward_pre_hooks_with_kwargs
    journal.rollback()
    assert_same(before, model)


def test_a_change_of_another_kind_brings_its_own_way_back() -> None:
    done: list[str] = []
    journal = Journal()
    journal.call("something", lambda: done.append("done"), lambda: done.append("undone"))
    journal.rollback()
    assert done == ["done", "undone"]


def test_a_change_that_breaks_half_way_is_taken_back_too() -> None:
    found = {"a": 1}

    def change() -> None:
        found["a"] = 2
        raise StopError

    journal = Journal()
    with pytest.raises(StopError):
        journal.call("half", change, lambda: found.update(a=1))
    journal.rollback()
    assert found == {"a": 1}


@pytest.mark.parametrize("own", [{}, {"own_hooks": [1], "has_hooks": True}])
def test_a_hook_whose_registration_is_interrupted_is_taken_off(own: dict[str, object]) -> None:
    model = nn.Linear(2, 2)
    model.__dict__.update(own)
    before = snapshot(model)

    def register_forward_hook(hook: Callable[..., None]) -> object:
        model.register_forward_hook(hook)
        raise KeyboardInterrupt

    register_forward_hook.__self__ = model  # type: ignore[attr-defined]
    journal = Journal()
    with pytest.raises(KeyboardInterrupt):
        journal.add_hook(register_forward_hook, _hook)
    journal.rollback()
    assert_same(before, model)


def test_what_is_committed_stays() -> None:
    model = nn.Linear(2, 2)
    journal = Journal()
    new = nn.Parameter(torch.ones(1))
    journal.set_parameter(model, "weight", new)
    journal.commit()
    journal.rollback()
    assert model.weight is new


def test_a_rolled_back_journal_can_be_used_again() -> None:
    model = nn.Linear(2, 2)
    before = snapshot(model)
    journal = Journal()
    for _ in range(2):
        journal.set_parameter(model, "bias", None)
        journal.rollback()
        assert_same(before, model)


def test_the_fault_hears_what_each_change_is() -> None:
    heard: list[str] = []
    model = nn.Linear(2, 2)
    journal = Journal(heard.append)
    journal.set_attribute(model, "a", 1)
    journal.set_module(model, "b", nn.GELU())
    journal.add_hook(model.register_forward_hook, _hook)
    assert heard == ["set_attribute a", "set_module b", "add_hook register_forward_hook"]


def test_a_snapshot_sees_a_changed_bit() -> None:
    model = nn.Linear(2, 2)
    before = snapshot(model)
    weight: Tensor = model.weight
    with torch.no_grad():
        weight[0, 0] = -weight[0, 0]
    with pytest.raises(AssertionError, match="bits"):
        assert_same(before, model)
