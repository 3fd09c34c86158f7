"""How far two steps are apart."""

from __future__ import annotations

import math

import pytest
import torch

from hpx.errors import InputError
from hpx.numeric.measure import Key, Kind, deviations, distance, refuse_no_numbers


def test_the_largest_difference_is_told_over_the_largest_value() -> None:
    assert distance(torch.tensor([1.0, -3.0]), torch.tensor([1.0, -4.0])) == 0.25


def test_another_shape_and_what_is_no_number_are_infinitely_far() -> None:
    assert distance(torch.zeros(2), torch.zeros(3)) == math.inf
    assert distance(torch.tensor([math.nan]), torch.tensor([1.0])) == math.inf


def test_the_same_infinity_is_equal_and_is_no_measure() -> None:
    expected = torch.tensor([2.0, -math.inf])
    assert distance(torch.tensor([2.5, -math.inf]), expected) == 0.25
    assert distance(torch.tensor([2.0, math.inf]), expected) == math.inf
    assert distance(torch.tensor([2.0, 1.0]), expected) == math.inf


@pytest.mark.parametrize("kind", ["output", "loss", "gradient"])
def test_what_is_no_number_unsharded_is_refused_by_its_name(kind: Kind) -> None:
    step = {Key(kind, "a"): torch.ones(2), Key(kind, "b"): torch.tensor([1.0, math.nan])}
    with pytest.raises(InputError, match=f"of its {kind} b 1 of 2 values is nan"):
        refuse_no_numbers(step, "mine")


def test_a_gradient_of_rounding_alone_is_measured_against_the_largest() -> None:
    large, small = Key("gradient", "weight"), Key("gradient", "bias")
    expected = {large: torch.tensor([2.0]), small: torch.tensor([1e-17])}
    found = {large: torch.tensor([2.0]), small: torch.tensor([-1e-17])}
    by_name = {one.key.name: one for one in deviations(found, expected)}
    assert by_name["bias"].by < 1e-16
    assert "rounding" in by_name["bias"].note
    found[small] = torch.tensor([0.5])
    assert max(one.by for one in deviations(found, expected)) == 0.25


def test_what_one_side_alone_gives_is_infinitely_far_and_says_so() -> None:
    one = torch.ones(1)
    logits, loss = Key("output", "logits", 1), Key("loss", "", 1)
    expected = {logits: one, loss: one}
    found = {loss: one, Key("output", "extra", 1): one}
    notes = {each.key.name: each.note for each in deviations(found, expected) if each.by}
    assert notes == {
        "extra": "the unsharded model does not give it",
        "logits": "the sharded model does not give it",
    }


def test_outputs_of_the_data_of_other_ranks_are_not_missed() -> None:
    one = torch.ones(1)
    expected = {Key(kind, "", batch): one for kind in ("output", "loss") for batch in (0, 1)}
    expected[Key("gradient", "weight")] = one
    found = {key: value for key, value in expected.items() if key.kind == "gradient" or key.batch}
    assert [each.by for each in deviations(found, expected)] == [0.0] * 3
