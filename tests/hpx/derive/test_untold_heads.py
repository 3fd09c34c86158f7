"""Attention of which names and shapes do not tell enough stays whole, and its reason says what."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

import hpx
from hpx import Run, ShardingPlan
from tests.hpx.derive.models import Attention, Expert, Layer, Mixer, Stack, family, linear


def derived(mixer: nn.Module) -> Run:
    """The derived plan of one layer, written, read back and run with collectives."""
    model = Stack([Layer(mixer, Expert())])
    text = hpx.plan(model, "tp=2").to_yaml()
    return hpx.run(model, ShardingPlan.from_text(text, "plan.yaml"), "tp=2", "@run")


def reason(done: Run, name: str) -> str:
    param = done.by_name[f"layers.0.mixer.{name}"]
    assert str(param.layout) == "R"
    assert param.rule is not None
    return param.rule.reason or ""


@pytest.mark.parametrize(
    "names",
    [("proj_q", "proj_k", "proj_v", "proj_o"), ("fc_q", "fc_k", "fc_v", "fc_o")],
    ids=lambda names: names[0],
)
def test_layers_of_unknown_names_beside_a_head_count_are_named_together(
    names: Sequence[str],
) -> None:
    attention = Attention(kv=4, names=tuple(names))  # type: ignore[arg-type]
    text = reason(derived(attention), f"{names[0]}.weight")
    assert "Attention counts heads (num_heads = 4, num_key_value_heads = 4)" in text
    assert f"which of {', '.join(names)} are q, k, v and o is not known" in text
    assert "neither shapes nor names tell" in text


class WrappedQuery(Attention):
    def __init__(self) -> None:
        super().__init__(kv=4)
        self.q_proj = nn.Sequential(linear(32, 32))


def test_a_query_in_a_sequential_of_one_layer_is_that_layer() -> None:
    done = derived(WrappedQuery())
    for name in ("q_proj.0", "k_proj"):
        assert str(done.by_name[f"layers.0.mixer.{name}.weight"].layout) == "tp:S(0)"
    assert done.graph.module(done.graph.get("layers.0.mixer").id).attributes["num_heads"] == 2


class DeepQuery(Attention):
    def __init__(self) -> None:
        super().__init__(kv=4)
        self.q_proj = nn.Sequential(linear(32, 32), linear(32, 32))


def test_a_query_in_a_sequential_of_several_layers_is_said_to_be_one() -> None:
    text = reason(derived(DeepQuery()), "k_proj.weight")
    assert "q_proj is a Sequential around a layer" in text
    assert text == reason(derived(DeepQuery()), "q_proj.0.weight")


class Flat(Attention):
    """Attention that holds the norm of its stream itself."""

    def __init__(self, norm: str) -> None:
        super().__init__(kv=4)
        self.add_module(norm, nn.LayerNorm(32, device="meta"))


def test_a_norm_of_the_stream_in_the_module_is_not_said_to_be_over_heads() -> None:
    text = reason(derived(Flat("ln_1")), "q_proj.weight")
    assert "over all heads together" not in text
    assert "ln_1 too, whose 32 values are as many as the stream has" in text
    assert "whether it normalises the stream before them is not known" in text


def test_a_norm_of_queries_as_wide_as_the_stream_is_over_all_heads() -> None:
    text = reason(derived(Flat("q_norm")), "q_proj.weight")
    assert "q_norm normalises over all heads together (32 values)" in text


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((4,), "tp:S(0)"), ((1, 4, 1, 1), "tp:S(1)"), ((4, 1, 1), "tp:S(0)")],
    ids=str,
)
def test_one_value_a_head_is_cut_with_the_heads_in_any_shape(
    shape: tuple[int, ...], layout: str
) -> None:
    attention = Attention()
    attention.scale = nn.Parameter(torch.empty(shape, device="meta"))
    done = derived(attention)
    assert done.problems == ()
    assert str(done.by_name["layers.0.mixer.scale"].layout) == layout


def test_a_model_of_which_nothing_can_be_cut_has_a_plan_that_runs_and_says_so() -> None:
    model = nn.Sequential(Mixer(), Mixer())
    text = hpx.plan(model, "tp=2").to_yaml()
    done = hpx.run(model, ShardingPlan.from_text(text, "plan.yaml"), "tp=2", "@run")
    assert {str(param.layout) for param in done.params} == {"R"}
    assert [(problem.level, problem.text) for problem in done.problems] == [
        (
            "warning",
            "0 of 18 parameters sharded, and tp is 2: rules say of all that they are whole",
        )
    ]


def test_torchs_own_attention_is_said_to_compute_with_whole_weights() -> None:
    done = derived(nn.MultiheadAttention(32, 4, device="meta"))
    for name in ("in_proj_weight", "in_proj_bias", "out_proj.weight"):
        assert "torch's MultiheadAttention computes with its whole weights" in reason(done, name)


def test_layers_of_known_families_are_not_said_to_be_untold() -> None:
    for name in ("llama", "gpt_neox", "deepseek_v3", "bert"):
        reasons = [rule.reason or "" for rule in hpx.plan(family(name), "tp=2").params]
        assert not any("counts heads" in text for text in reasons)
