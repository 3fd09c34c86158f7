"""A refused plan is told with what else can be found, and what could not be asked."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn

from hpx import MeshSpec, ModuleGraph, ShardingPlan
from hpx.pipeline.textform import as_passes
from hpx.tools._check import Check, check_plan
from tests.cases.models import Attention, holding

COL, ROW = {"tp": "S(0)"}, {"tp": "S(1)"}


class Layer(nn.Module):
    """Attention with a value a head, an mlp and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = Attention(8, 8, 4, 32, num_heads=8)
        self.attn.sinks = nn.Parameter(torch.zeros(8))
        self.mlp = nn.Module()
        self.mlp.up = nn.Linear(32, 64, bias=False)
        self.mlp.down = nn.Linear(64, 32, bias=False)
        self.norm = nn.LayerNorm(32)


RULES: dict[str, object] = {
    "layer.attn.{q,k,v}_proj.weight": COL,
    "layer.attn.o_proj.weight": ROW,
    "layer.mlp.up.weight": COL,
    "layer.mlp.down.weight": ROW,
}


def checked(changes: dict[str, object], mesh: str = "tp=2") -> Check:
    model = nn.Module()
    model.layer = Layer()
    rules = {name: layout for name, layout in {**RULES, **changes}.items() if layout is not None}
    plan = ShardingPlan(rules, default="replicate")
    graph = ModuleGraph.from_module(model)
    return check_plan(graph, plan, MeshSpec.parse(mesh), as_passes("@default"))


def checks_of(found: Check) -> tuple[list[str], list[str]]:
    assert found.others is not None
    refused = [error.check for error in found.findings]
    beside = [error.check for error in found.others.errors]
    return refused, [*beside, *(problem.check for problem in found.others.problems)]


def text_of(found: Check) -> str:
    return "\n".join(str(block) for block in found.verdict())


def test_a_rule_that_matches_nothing_hides_no_cut_that_cannot_be() -> None:
    refused, others = checks_of(checked({"layer.mlp.upp.weight": COL, "layer.norm.weight": COL}))
    assert (refused, others) == (["existence"], ["norms", "per-head"])


def test_a_cut_that_cannot_be_hides_no_warning_of_another_block() -> None:
    refused, others = checks_of(checked({"layer.norm.weight": COL, "layer.mlp.down.weight": None}))
    assert (refused, others) == (["norms"], ["per-head", "pairing"])


def test_nothing_is_said_of_the_block_around_what_is_refused() -> None:
    found = checked({"layer.mlp.*.weight": COL, "layer.mlp.up.weight": None}, mesh="tp=3")
    refused, others = checks_of(found)
    assert set(refused) == {"divisibility", "heads"}
    assert others == []


def test_undivided_heads_hide_no_fault_of_an_mlp() -> None:
    found = checked({"layer.mlp.down.weight": None, "layer.attn.k_proj.weight": "replicate",
                     "layer.attn.{q,k,v}_proj.weight": None,
                     "layer.attn.{q,v}_proj.weight": COL})  # fmt: skip
    assert checks_of(found) == (["heads"], ["pairing"])


def test_what_could_not_be_asked_is_said() -> None:
    text = text_of(checked({"layer.norm.weight": COL}))
    assert "not asked: memory, communication, gradients and the shape proof" in text
    assert "not asked: heads and boundaries around what is refused: layer.norm.weight" in text


def test_others_stand_under_a_heading_of_their_own() -> None:
    text = text_of(checked({"layer.norm.weight": COL}))
    first, _, rest = text.partition("beside what is refused (1)")
    assert "problems (1)" in first
    assert "attn.sinks is replicated" in rest


def test_as_json_all_problems_are_in_one_list_with_check_and_numbers() -> None:
    found = checked({"layer.norm.weight": COL})
    value: Any = json.loads(json.dumps(found.to_json(found.params)))
    assert [(p["level"], p["check"], p["names"]) for p in value["problems"]] == [
        ("error", "norms", ["layer.norm.weight"]),
        ("warning", "per-head", ["layer.attn.sinks"]),
    ]
    assert value["problems"][1]["numbers"] == {"heads": 8, "dim": 0}
    assert (value["refused"], len(value["not_asked"])) == (True, 2)


def test_a_plan_that_is_carried_out_has_nothing_that_was_not_asked() -> None:
    found = checked({})
    assert found.others is None
    assert found.to_json(found.params)["not_asked"] == []


def test_experts_that_are_missing_hide_no_other_finding() -> None:
    graph = ModuleGraph.from_module(holding(Attention(8, 8, 4, 32, num_heads=8)))
    plan = ShardingPlan({"attn.q_projj.weight": COL}, experts=["layers.*.experts"])
    found = check_plan(graph, plan, MeshSpec.parse("tp=2"), as_passes("@default"))
    refused, others = checks_of(found)
    assert refused == ["expert-patterns"]
    assert others[:2] == ["existence", "uncovered"]
