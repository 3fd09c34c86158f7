"""Cases from the field, answered by derived plans: heads, fused weights, experts, adapters."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import hpx
from hpx import ShardingPlan
from hpx.plan import Rule
from tests.hpx.derive.models import (
    Attention,
    Expert,
    Layer,
    Moe,
    NanoGpt,
    Stack,
    family,
    linear,
)


def rule_for(model: nn.Module, name: str, mesh: str = "tp=2") -> Rule:
    """The rule of a derived plan that decides a parameter, after a run that has no errors."""
    done = hpx.run(model, hpx.plan(model, mesh), mesh, "@run")
    assert [problem for problem in done.problems if problem.level == "error"] == []
    rule = done.by_name[name].rule
    assert rule is not None
    return rule


def attending(heads: int = 4, kv: int = 2, size: int = 8) -> Stack:
    return Stack([Layer(Attention(heads=heads, kv=kv, size=size), Expert()) for _ in range(2)])


Q = "layers.0.mixer.q_proj.weight"


# -- heads -------------------------------------------------------------------------------------


def test_h1_one_kv_head_keeps_attention_whole_and_says_the_ways_out() -> None:
    rule = rule_for(attending(heads=4, kv=1), Q)
    assert str(rule.layout) == "R"
    assert "1 kv heads: 1 % 2 = 1; a tp of 1 can, or repeat the kv heads" in (rule.reason or "")


def test_kv_heads_are_not_to_be_repeated_where_the_heads_do_not_divide_either() -> None:
    rule = rule_for(attending(heads=4, kv=2), "layers.0.mixer.k_proj.weight", "tp=8")
    assert "tp=8 cannot share 4 heads" in (rule.reason or "")
    assert "repeat" not in (rule.reason or "")


def test_h2_an_unknown_head_count_keeps_attention_whole_and_names_the_integer() -> None:
    attention = Attention(heads=4, kv=4)
    for name in ("num_heads", "num_key_value_heads", "head_dim"):
        delattr(attention, name)
    vars(attention)["n"] = 4
    rule = rule_for(Stack([Layer(attention, Expert())]), Q)
    assert str(rule.layout) == "R"
    assert "n = 4 may count them" in (rule.reason or "")
    assert "declare the count under heads:" in (rule.reason or "")


def test_h3_both_counts_and_the_tp_that_divides_them_together_are_said() -> None:
    rule = rule_for(attending(heads=16, kv=6), Q, "tp=4")
    assert str(rule.layout) == "R"
    assert "6 kv heads: 6 % 4 = 2; a tp of 1, 2 can" in (rule.reason or "")


def test_h5_forty_heads_on_three_ranks_list_what_divides() -> None:
    rule = rule_for(attending(heads=40, kv=40), Q, "tp=3")
    assert "40 heads: 40 % 3 = 1; a tp of 1, 2, 4, 5, 8, 10, 20, 40 can" in (rule.reason or "")


def test_h6_a_gate_a_head_keeps_attention_whole() -> None:
    attention = Attention(heads=8, kv=8, size=4)
    attention.g_proj = linear(32, 8)
    rule = rule_for(Stack([Layer(attention, Expert())]), Q, "tp=4")
    assert "what g_proj [8 x 32] does beside the heads is not known" in (rule.reason or "")


def test_h8_sinks_are_cut_with_the_heads() -> None:
    attention = Attention(heads=8, kv=8, size=4)
    attention.sinks = nn.Parameter(torch.empty(8, device="meta"))
    model = Stack([Layer(attention, Expert())])
    rule = rule_for(model, "layers.0.mixer.sinks", "tp=4")
    assert str(rule.layout) == "tp:S(0)"
    assert "one value a head, cut with the heads" in (rule.reason or "")


def test_h9_heads_are_counted_from_shapes() -> None:
    attention = Attention(heads=6, kv=6)
    del attention.num_heads, attention.num_key_value_heads
    rule = rule_for(Stack([Layer(attention, Expert())]), Q, "tp=4")
    assert "6 heads: 6 % 4 = 2" in (rule.reason or "")


def test_a_norm_over_all_heads_keeps_attention_whole() -> None:
    rule = rule_for(family("olmoe"), "model.layers.0.self_attn.q_proj.weight")
    assert "q_norm normalises over all heads together (32 values)" in (rule.reason or "")


def test_slopes_in_a_buffer_keep_attention_whole() -> None:
    attention = Attention(heads=4, kv=4)
    attention.register_buffer("slopes", torch.empty(4, 1, 1, device="meta"))
    rule = rule_for(Stack([Layer(attention, Expert())]), Q)
    assert "slopes [4, 1, 1] has one entry a head" in (rule.reason or "")


def test_attention_over_a_second_stream_stays_whole() -> None:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.self_attn, self.cross_attn = Attention(), Attention()
            self.feed = Expert()

    model = Stack([Decoder()])
    assert str(rule_for(model, "layers.0.self_attn.q_proj.weight").layout) == "tp:S(0)"
    rule = rule_for(model, "layers.0.cross_attn.q_proj.weight")
    assert str(rule.layout) == "R"
    assert "second stream" in (rule.reason or "")


def test_grouped_heads_are_found_whatever_their_names() -> None:
    attention = Attention(heads=8, kv=2, size=8, names=("alpha", "beta", "gamma", "delta"))
    model = Stack([Layer(attention, Expert())])
    plan = {rule.pattern: rule for rule in hpx.plan(model, "tp=2").params}
    columns = plan["layers.*.mixer.{alpha,beta,gamma}.weight"]
    assert str(columns.layout) == "tp:S(0)"
    assert columns.source == "structure"
    assert "4 of 8, and 1 of 2 for k and v" in (columns.reason or "")
    assert str(plan["layers.*.mixer.delta.weight"].layout) == "tp:S(1)"


def test_square_layers_without_telling_names_stay_whole() -> None:
    attention = Attention(heads=4, kv=4, size=8, names=("alpha", "beta", "gamma", "delta"))
    model = Stack([Layer(attention, Expert())])
    assert str(rule_for(model, "layers.0.mixer.alpha.weight").layout) == "R"


# -- fused weights -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pattern", "repeat", "parts"),
    [
        ("gpt2", "transformer.h.*.attn.c_attn.weight", 1, {"q": 32, "k": 32, "v": 32}),
        ("phi3", "model.layers.*.self_attn.qkv_proj.weight", 1, {"q": 32, "k": 16, "v": 16}),
        ("phi3", "model.layers.*.mlp.gate_up_proj.weight", 1, {"gate": 64, "up": 64}),
        (
            *("gpt_neox", "gpt_neox.layers.*.attention.query_key_value.weight", 4),
            {"q": 32, "k": 32, "v": 32},
        ),
        (
            *("bloom", "transformer.h.*.self_attention.query_key_value.weight", 4),
            {"q": 32, "k": 32, "v": 32},
        ),
        (
            *("falcon", "transformer.h.*.self_attention.query_key_value.weight", 2),
            {"q": 32, "k": 16, "v": 16},
        ),
    ],
)
def test_f4_the_layout_of_a_fused_weight_is_derived_where_code_fixes_it(
    name: str, pattern: str, repeat: int, parts: dict[str, int]
) -> None:
    packed = {entry.pattern: entry for entry in hpx.plan(family(name), "tp=2").packed}
    assert (packed[pattern].repeat, dict(packed[pattern].parts)) == (repeat, parts)


def test_f4_a_fused_weight_of_a_hand_written_class_is_not_guessed() -> None:
    plan = hpx.plan(NanoGpt(), "tp=2")
    assert plan.packed == ()
    rule = rule_for(NanoGpt(), "transformer.h.0.attn.c_attn.weight")
    assert str(rule.layout) == "R"
    assert "declare it under packed:" in (rule.reason or "")


def test_f1_parts_one_after_the_other_and_heads_in_turn_are_cut_and_declared() -> None:
    phi = rule_for(family("phi3"), "model.layers.0.self_attn.qkv_proj.weight")
    assert str(phi.layout) == "tp:S(0)"
    declared = {entry.pattern: entry.content() for entry in hpx.plan(family("phi3"), "tp=2").packed}
    assert declared == {
        "model.layers.*.self_attn.qkv_proj.weight": {
            "dim": 0,
            "repeat": 1,
            "parts": {"q": 32, "k": 16, "v": 16},
        },
        "model.layers.*.mlp.gate_up_proj.weight": {
            "dim": 0,
            "repeat": 1,
            "parts": {"gate": 64, "up": 64},
        },
    }
    neox = rule_for(family("gpt_neox"), "gpt_neox.layers.0.attention.query_key_value.weight")
    assert str(neox.layout) == "tp:S(0)"


def test_f3_fused_experts_are_cut_on_their_expert_dim() -> None:
    rule = rule_for(family("mixtral"), "model.layers.0.mlp.experts.gate_up_proj", "dp=1,tp=2,ep=2")
    assert str(rule.layout) == "ep:S(0)"


# -- experts -----------------------------------------------------------------------------------


def test_e5_experts_are_named_as_they_are_after_stacking() -> None:
    model = Stack([Layer(Attention(), Moe())])
    plan = hpx.plan(model, "dp=1,tp=2,ep=2")
    assert "layers.*.feed.experts.{w1,w3,w2}" in [rule.pattern for rule in plan.params]


def test_an_ep_that_does_not_divide_leaves_experts_whole_with_numbers() -> None:
    rule = rule_for(Stack([Layer(Attention(), Moe(6))]), "layers.0.feed.experts.w1", "tp=4,ep=4")
    assert "ep=4 cannot share 6 experts, 6 % 4 = 2; an ep of 1, 2, 3, 6 can" in (rule.reason or "")


def test_without_an_ep_axis_every_rank_holds_all_experts() -> None:
    rule = rule_for(Stack([Layer(Attention(), Moe())]), "layers.0.feed.experts.w1")
    assert "the mesh has no ep axis, so every rank holds all 4 experts" in (rule.reason or "")


def test_e8_experts_that_differ_stay_apart_and_whole_with_the_odd_ones_named() -> None:
    moe = Moe()
    moe.experts[2].get_submodule("w1").weight.requires_grad_(False)
    model = Stack([Layer(Attention(), moe)])
    plan = hpx.plan(model, "dp=1,tp=2,ep=2")
    assert plan.experts == ()
    rule = rule_for(model, "layers.0.feed.experts.0.w1.weight", "dp=1,tp=2,ep=2")
    assert "the experts cannot be stacked" in (rule.reason or "")


# -- rules and explanations --------------------------------------------------------------------


def test_r4_kinds_of_replication_are_told_apart() -> None:
    model = family("starcoder2")
    done = hpx.run(model, hpx.plan(model, "tp=2"), "tp=2")
    reasons = {
        name: str(done.explain(f"model.{name}"))
        for name in ("layers.0.self_attn.o_proj.bias", "norm.weight")
    }
    assert "added once, after the sum over tp" in reasons["layers.0.self_attn.o_proj.bias"]
    assert "a norm, whole on every rank" in reasons["norm.weight"]


def test_r7_an_explanation_names_the_source_of_its_rule() -> None:
    model = family("llama")
    done = hpx.run(model, hpx.plan(model, "tp=2"), "tp=2")
    assert "(model)" in str(done.explain("model.layers.0.self_attn.q_proj.weight"))
    assert "(structure)" in str(done.explain("model.norm.weight"))
    handmade = attending()
    done = hpx.run(handmade, hpx.plan(handmade, "tp=2"), "tp=2")
    assert "(names)" in str(done.explain(Q))


class LoraLinear(nn.Module):
    """As PEFT wraps a layer: the base, and A and B by adapter."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.ModuleDict({"default": linear(base.in_features, rank)})
        self.lora_B = nn.ModuleDict({"default": linear(rank, base.out_features)})


def test_r11_adapters_follow_their_layers() -> None:
    model = attending(heads=4, kv=4)
    for layer in model.layers:
        for path in ("feed.w1", "feed.w2", "mixer.q_proj", "mixer.v_proj", "mixer.o_proj"):
            owner, _, name = path.partition(".")
            base = layer.get_submodule(path)
            assert isinstance(base, nn.Linear)
            layer.get_submodule(owner).add_module(name, LoraLinear(base))
    feed, mixer = "layers.1.feed", "layers.1.mixer"
    wanted = {
        f"{mixer}.q_proj.base_layer.weight": "tp:S(0)",
        f"{mixer}.k_proj.weight": "tp:S(0)",
        f"{mixer}.v_proj.lora_A.default.weight": "R",
        f"{mixer}.v_proj.lora_B.default.weight": "tp:S(0)",
        f"{mixer}.o_proj.base_layer.weight": "tp:S(1)",
        f"{mixer}.o_proj.lora_A.default.weight": "tp:S(1)",
        f"{mixer}.o_proj.lora_B.default.weight": "R",
        f"{feed}.w1.base_layer.weight": "tp:S(0)",
        f"{feed}.w1.lora_A.default.weight": "R",
        f"{feed}.w1.lora_B.default.weight": "tp:S(0)",
        f"{feed}.w2.base_layer.weight": "tp:S(1)",
        f"{feed}.w2.lora_A.default.weight": "tp:S(1)",
        f"{feed}.w2.lora_B.default.weight": "R",
    }
    done = hpx.run(model, hpx.plan(model, "tp=2"), "tp=2", "@run")
    assert {name: str(done.by_name[name].layout) for name in wanted} == wanted


# -- patterns and memory -----------------------------------------------------------------------


def test_layers_that_differ_get_rules_of_their_own() -> None:
    layers: list[nn.Module] = [Layer(Attention(), Expert()) for _ in range(6)]
    layers[2] = Layer(Attention(), Expert(inner=45))
    plan = hpx.plan(Stack(layers), "tp=2")
    patterns = [rule.pattern for rule in plan.params if ".feed." in rule.pattern]
    assert "layers.{[0-1],[3-5]}.feed.{w1,w3}.weight" in patterns
    assert "layers.2.feed.{w1,w2,w3}.weight" in patterns or any(
        pattern.startswith("layers.2.feed.") for pattern in patterns
    )
    assert "45 % 2 = 1" in (rule_for(Stack(layers), "layers.2.feed.w1.weight").reason or "")


def test_a_vocabulary_that_does_not_divide_is_whole_with_the_numbers() -> None:
    rule = rule_for(family("gpt2", vocab_size=129), "transformer.wte.weight")
    assert "129 rows cannot be shared by tp=2, 129 % 2 = 1" in (rule.reason or "")


def test_planning_many_configurations_keeps_none_of_them() -> None:
    kept: list[weakref.ref[nn.Module]] = []
    counts: list[int] = []
    for width in range(100):
        model = attending(heads=2 + width % 5 * 2, kv=2, size=4 + width)
        assert isinstance(hpx.plan(model, "tp=2"), ShardingPlan)
        kept.append(weakref.ref(model))
        del model
        if width % 33 == 32:
            gc.collect()
            counts.append(len(gc.get_objects()))
    gc.collect()
    assert [ref for ref in kept if ref() is not None] == []
    assert counts[-1] - counts[0] < 2000


def test_a_table_that_gives_means_of_bags_stays_whole() -> None:
    model = Stack([Layer(Attention(), Expert())])
    model.embed = nn.EmbeddingBag(128, 32, device="meta")  # type: ignore[assignment]
    assert str(rule_for(model, "embed.weight").layout) == "R"


def test_a_matrix_that_another_block_holds_too_keeps_its_block_whole() -> None:
    one, two = Expert(), Expert()
    two.w1.weight = one.w1.weight
    model = Stack([Layer(Attention(), one), Layer(Attention(), two)])
    rule = rule_for(model, "layers.0.feed.w1.weight")
    assert str(rule.layout) == "R"
    assert "w1 is layers.1.feed.w1.weight too" in (rule.reason or "")
