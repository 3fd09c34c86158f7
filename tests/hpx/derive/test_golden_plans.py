"""Whole plans, reviewed line by line against the code of each model (transformers 5.24)."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpx
from tests.hpx.derive.models import NanoGpt, family

GOLDEN = Path(__file__).parents[2] / "golden"
MESH = "dp=2,tp=2,ep=2"


@pytest.mark.parametrize(
    "name",
    ["llama", "qwen2", "gpt2", "phi3", "mixtral", "qwen3_moe", "deepseek_v3"],
)
def test_a_family_gets_its_reviewed_plan(name: str) -> None:
    assert hpx.plan(family(name), MESH).to_yaml() == (GOLDEN / f"{name}.yaml").read_text()


def test_a_hand_written_gpt_gets_its_reviewed_plan() -> None:
    assert hpx.plan(NanoGpt(), MESH).to_yaml() == (GOLDEN / "nano_gpt.yaml").read_text()
