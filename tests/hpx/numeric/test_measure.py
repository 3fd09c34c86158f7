"""How far two steps are apart."""

from __future__ import annotations

import math

import torch

from hpx.numeric.measure import Key, deviations, distance, largest


def test_the_largest_difference_is_told_over_the_largest_value() -> None:
    assert distance(torch.tensor([1.0, -3.0]), torch.tensor([1.0, -4.0])) == 0.25


def test_another_shape_and_what_is_no_number_are_infinitely_far() -> None:
    assert distance(torch.zeros(2), torch.zeros(3)) == math.inf
    assert distance(torch.tensor([math.nan]), torch.tensor([1.0])) == math.inf


def test_a_gradient_of_rounding_alone_is_measured_against_the_largest() -> None:
    large, small = Key("gradient", "weight"), Key("gradient", "bias")
    expected = {large: torch.tensor([2.0]), small: torch.tensor([1e-17])}
    found = {large: torch.tensor([2.0]), small: torch.tensor([-1e-17])}
    by_name = {one.key.name: one for one in deviations(found, expected)}
    assert by_name["bias"].by < 1e-16
    assert "rounding" in by_name["bias"].note
    found[small] = torch.tensor([0.5])
    assert largest(deviations(found, expected))["gradient"].by == 0.25
