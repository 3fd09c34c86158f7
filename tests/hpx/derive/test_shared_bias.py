"""Layers that are given the bias of positions of another: cut together, or whole together."""

from __future__ import annotations

import pytest
from torch import nn

import hpx
from hpx.prove import prove
from tests.hpx.derive.models import Attention, Expert, Layer, Stack, family

ATTENTION = ("q", "k", "v", "o", "relative_attention_bias")


def layouts(model: nn.Module, mesh: str) -> dict[str, str]:
    done = hpx.run(model, hpx.plan(model, mesh), mesh, "@run")
    assert done.problems == ()
    return {param.name: str(param.layout) for param in done.params}


def test_t5_is_cut_in_every_layer_with_the_table_of_the_first_on_its_heads() -> None:
    found = layouts(family("t5"), "tp=2")
    of_attention = {name: text for name, text in found.items() if "Attention" in name}
    tables = {n: t for n, t in of_attention.items() if n.endswith("relative_attention_bias.weight")}
    assert list(tables.values()) == ["tp:S(1)", "tp:S(1)"]
    assert "R" not in of_attention.values()


def test_a_derived_plan_of_t5_says_that_the_bias_enters_as_it_is() -> None:
    (encoder, decoder, cross) = hpx.plan(family("t5"), "tp=2").boundaries
    own = (("hidden_states", "R"), ("position_bias", "none"))
    assert encoder.inputs == decoder.inputs == own
    assert dict(cross.inputs or ())["key_value_states"] == "R"


def test_the_shapes_of_t5_are_proved_under_its_derived_plan() -> None:
    model = family("t5")
    found = prove(hpx.run(model, hpx.plan(model, "tp=2"), "tp=2", "@run"), model, seconds=60.0)
    assert (found.status, found.problems) == ("proved", ())


def test_t5_with_heads_that_tp_does_not_divide_is_whole_in_every_layer() -> None:
    model = family("t5", num_heads=3)
    done = hpx.run(model, hpx.plan(model, "tp=2"), "tp=2", "@run")
    assert {str(p.layout) for p in done.params if "Attention" in p.name} == {"R"}
    assert done.plan.boundaries == ()


class WithTable(Attention):
    """Attention of a class that nobody knows, with a table of one column a head."""

    def __init__(self) -> None:
        super().__init__(heads=4, kv=4)
        self.position_bias = nn.Embedding(8, 4, device="meta")


@pytest.fixture(name="first_alone")
def _first_alone() -> nn.Module:
    first, second = WithTable(), WithTable()
    del second.position_bias
    return Stack([Layer(first, Expert()), Layer(second, Expert())])


def test_layers_without_a_table_are_whole_where_the_one_with_it_is(first_alone: nn.Module) -> None:
    plan = hpx.plan(first_alone, "tp=2")
    reasons = {rule.pattern: rule.reason or "" for rule in plan.params}
    second = next(text for name, text in reasons.items() if name.startswith("layers.1.mixer."))
    assert "it has no bias of positions of its own" in second
    assert "layers.0.mixer.position_bias.weight, which stays whole, may be given to it" in second
    done = hpx.run(first_alone, plan, "tp=2", "@run")
    assert {str(p.layout) for p in done.params if ".mixer." in p.name} == {"R"}
