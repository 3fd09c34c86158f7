"""The page of architectures lists every family that the tests derive plans for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hpx.derive.models import FAMILIES
from tests.hpx.derive.test_tp_plans import EXPLAINED

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "architectures.md").read_text()
DERIVED, _, COMPARED = PAGE.partition("## Where transformers ships a tp plan")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_a_row(name: str) -> None:
    assert f"\n| {name} |" in DERIVED


@pytest.mark.parametrize("name", EXPLAINED)
def test_a_difference_from_the_plan_of_transformers_has_a_row(name: str) -> None:
    assert f"\n| {name} |" in COMPARED


def test_what_is_marked_as_reviewed_is_a_golden_plan() -> None:
    golden = {path.stem for path in (Path(__file__).parents[1] / "golden").glob("*.yaml")}
    marked = {row.split("|")[1].strip() for row in DERIVED.splitlines() if "| yes |" in row}
    assert {name.replace("nanoGPT, hand-written", "nano_gpt") for name in marked} == golden
