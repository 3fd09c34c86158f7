"""Layers in a wrapper beside a head count: pointed out where they are cut and it is not divided."""

from __future__ import annotations

import pytest
from torch import nn

import hpx
from hpx import ShardingPlan
from hpx.check.wrapped_heads import wrapped_heads
from hpx.testing import graph_of
from tests.hpx.check.asking import LINEAR, ask, where

SEQUENTIAL = "torch.nn.modules.container.Sequential"


def wrapped(layouts: dict[str, str], heads: int = 4) -> hpx.ModuleGraph:
    shapes = {"attn.q_proj.0.weight": (16, 16), "attn.q_proj.2.weight": (16, 16)}
    classes = {"attn.q_proj": SEQUENTIAL, "attn.q_proj.0": LINEAR, "attn.q_proj.2": LINEAR}
    whole = {name: layouts.get(name, "R") for name in shapes}
    attributes = {"attn": {"num_heads": heads}}
    return graph_of(shapes, classes=classes, layouts=whole, attributes=attributes)


def test_a_cut_layer_in_a_sequential_beside_a_count_that_stays_is_a_warning() -> None:
    graph = wrapped({"attn.q_proj.0.weight": "tp:S(0)"})
    (problem,) = ask(wrapped_heads, graph)
    assert problem.level == "warning"
    assert problem.text == "q_proj.0 is cut on its 16 outputs, and num_heads = 4 was not rewritten"
    assert where(graph, [problem]) == [["attn"]]


@pytest.mark.parametrize(
    ("layouts", "heads"),
    [
        ({}, 4),
        ({"attn.q_proj.0.weight": "tp:S(0)"}, 3),
        ({"attn.q_proj.0.weight": "tp:S(0)", "attn.q_proj.2.weight": "tp:S(1)"}, 4),
    ],
    ids=["whole", "no multiple of the count", "a block by itself"],
)
def test_what_can_be_no_projection_is_not_told(layouts: dict[str, str], heads: int) -> None:
    assert ask(wrapped_heads, wrapped(layouts, heads)) == []


def test_without_tp_nothing_is_told() -> None:
    assert ask(wrapped_heads, wrapped({"attn.q_proj.0.weight": "tp:S(0)"}), "dp=2,tp=1") == []


class WrappedQuery(nn.Module):
    """q in a Sequential, the others as usual."""

    def __init__(self, *more: nn.Module) -> None:
        super().__init__()
        self.num_heads, self.head_dim = 4, 4
        self.q_proj = nn.Sequential(nn.Linear(16, 16, bias=False), *more)
        self.k_proj = nn.Linear(16, 16, bias=False)
        self.v_proj = nn.Linear(16, 16, bias=False)
        self.o_proj = nn.Linear(16, 16, bias=False)


RULES = {
    "attn.q_proj.0.weight": {"tp": "S(0)"},
    "attn.{k,v}_proj.weight": {"tp": "S(0)"},
    "attn.o_proj.weight": {"tp": "S(1)"},
}


def outer(*more: nn.Module) -> nn.Module:
    model = nn.Module()
    model.attn = WrappedQuery(*more)
    return model


def test_a_sequential_of_one_layer_is_that_layer_and_its_count_is_divided() -> None:
    done = hpx.run(outer(nn.Dropout(0.1)), ShardingPlan(RULES), "tp=2")
    assert not [problem for problem in done.problems if "was not rewritten" in problem.text]
    assert done.graph.module(done.graph.get("attn").id).attributes["num_heads"] == 2


def test_declaring_the_count_divides_it_and_it_is_no_longer_told() -> None:
    model = outer(nn.Linear(16, 16, bias=False))
    rules = {**RULES, "attn.q_proj.1.weight": "replicate", "attn.{k,v}_proj.weight": "replicate"}
    text = "q_proj.0 is cut on its 16 outputs, and num_heads = 4 was not rewritten"
    found = [
        [problem.text for problem in hpx.run(model, plan, "tp=2").problems]
        for plan in (ShardingPlan(rules), ShardingPlan(rules, heads={"attn": ["num_heads"]}))
    ]
    assert (text in found[0], text in found[1]) == (True, False)
