"""What checks find has the name of the check and its numbers, beside its text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

import hpx
from hpx import HpxError, InputError, Run, ShardingPlan
from hpx.check.checks import known
from hpx.errors import ManyErrors
from tests.cases.models import ATTENTION_PLAN, Attention, Expert, Moe, holding

COL = {"tp": "S(0)"}
KNOWN = {check.name for check in known()} | {"schedule", "shapes"}


class Gated(Attention):
    """A value a head, and integers that may count."""

    def __init__(self) -> None:
        super().__init__(8, 8, 2, 32, num_heads=8, q_size=16, mine=8)
        self.sinks = nn.Parameter(torch.zeros(8))


def warned() -> Run:
    plan = ShardingPlan(ATTENTION_PLAN, default="replicate")
    return hpx.run(holding(Gated()), plan, "tp=4")


def test_problems_of_a_run_have_a_check_and_numbers() -> None:
    found = {(p.check, dict(p.numbers).popitem()) for p in warned().problems}
    assert found == {
        ("uncounted", ("mine", 8)),
        ("uncounted", ("q_size", 16)),
        ("per-head", ("dim", 0)),
    }


def test_checks_and_numbers_survive_saving() -> None:
    done = warned()
    value = json.loads(json.dumps(done.to_json()))
    assert [p["numbers"] for p in value["problems"]] == [dict(p.numbers) for p in done.problems]
    assert Run.from_json(value).problems == done.problems


def test_a_run_from_before_there_were_numbers_loads() -> None:
    value = json.loads(json.dumps(warned().to_json()))
    for problem in value["problems"]:
        del problem["check"], problem["numbers"]
    again = Run.from_json(value)
    assert [(p.check, p.numbers) for p in again.problems] == [("", ())] * 3
    assert [p.text for p in again.problems] == [p.text for p in warned().problems]


@pytest.mark.parametrize(("key", "value"), [("check", 3), ("numbers", {"tp": "4"})])
def test_numbers_that_are_none_are_damage(key: str, value: object, tmp_path: Path) -> None:
    saved = json.loads(json.dumps(warned().to_json()))
    saved["problems"][0][key] = value
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(saved))
    with pytest.raises(InputError, match=r"damaged.*problems\[0\]"):
        Run.load(path)


def findings(model: nn.Module, rules: Mapping[str, object], mesh: str) -> list[HpxError]:
    with pytest.raises(ManyErrors) as caught:
        hpx.run(model, ShardingPlan(rules, default="replicate"), mesh)
    return list(caught.value.findings)


def odd_experts() -> nn.Module:
    model = Moe([Expert() for _ in range(4)])
    model.experts[1].to(torch.bfloat16)
    return model


REFUSED: list[tuple[nn.Module, dict[str, object], str, str, dict[str, int]]] = [
    (nn.Linear(4, 7), {"weight": COL}, "tp=2", "divisibility", {"size": 7, "tp": 2, "largest": 4}),
    (nn.Linear(4, 8), {"weigth": COL, "weight": COL}, "tp=2", "existence", {}),
    (nn.Linear(4, 8), {"w*": COL, "weight": COL}, "tp=2", "never-winning", {}),
    (nn.Linear(4, 8), {"weight": {"pt": "S(0)"}}, "tp=2", "layouts", {}),
    (nn.Linear(4, 8), {}, "tp=2", "nothing-cut", {"parameters": 2, "tp": 2}),
    (nn.LayerNorm(8), {"weight": COL}, "tp=2", "norms", {}),
    (Moe([Expert() for _ in range(6)]), {"experts.w1": {"ep": "S(0)"}}, "dp=4,ep=4",
     "divisibility", {"experts": 6, "ep": 4}),
    (odd_experts(), {}, "dp=4,ep=4", "equal-experts", {}),
    (holding(Attention(16, 6, 4, 64, n_heads=16, n_kv_heads=6)), dict(ATTENTION_PLAN), "tp=4",
     "heads", {"n_heads": 16, "n_kv_heads": 6, "tp": 4, "common": 2}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "rules", "mesh", "check", "numbers"), REFUSED, ids=[row[3] for row in REFUSED]
)
def test_what_is_refused_names_its_check_and_has_its_numbers(
    model: nn.Module, rules: dict[str, object], mesh: str, check: str, numbers: dict[str, int]
) -> None:
    found = findings(model, rules, mesh)
    assert {error.check for error in found} <= KNOWN
    error = next(error for error in found if error.check == check)
    assert numbers.items() <= dict(error.numbers).items()
    assert error.to_json()["text"] == str(error)


def test_a_refusal_names_what_it_is_about() -> None:
    (error,) = findings(nn.Linear(4, 7, bias=False), {"weight": COL}, "tp=2")
    assert error.names == ("weight",)
