"""A shrunk configuration keeps the structure of the model, and what divides what."""

from __future__ import annotations

from typing import Any

import pytest

from hpx.mesh import MeshSpec
from hpx.numeric.shrinking import Shrunk, shrink

pytest.importorskip("transformers")


def shrunk(family: str, mesh: str = "tp=2", **changes: Any) -> Shrunk:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    values = {**CONFIG_MAPPING[family]().to_dict(), **changes}
    return shrink(values, MeshSpec.parse(mesh), f"{family}.json")


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_query_heads_for_a_key_head_and_the_head_size_stay_related(tp: int) -> None:
    made = shrunk("llama", f"tp={tp}", num_attention_heads=32, num_key_value_heads=8).values
    assert made["num_key_value_heads"] % tp == 0
    assert made["num_attention_heads"] == 2 * made["num_key_value_heads"]
    assert made["hidden_size"] == made["num_attention_heads"] * made["head_dim"]


def test_a_hidden_size_that_is_not_heads_times_head_size_stays_such() -> None:
    made = shrunk("gemma2", hidden_size=2304, num_attention_heads=8, head_dim=256).values
    assert made["hidden_size"] != made["num_attention_heads"] * made["head_dim"]


@pytest.mark.parametrize(("heads", "tp", "divides"), [(32, 4, True), (30, 4, False), (6, 4, False)])
def test_what_tp_does_not_divide_it_still_does_not(heads: int, tp: int, divides: bool) -> None:
    changes = {"num_attention_heads": heads, "num_key_value_heads": heads}
    sizes = {"hidden_size": heads * 16, "head_dim": 16}
    made = shrunk("llama", f"tp={tp}", **changes, **sizes).values
    assert (made["num_attention_heads"] % tp == 0) is divides
    assert made["num_attention_heads"] <= heads


def test_a_vocabulary_that_tp_does_not_divide_stays_such() -> None:
    assert shrunk("gpt2").values["vocab_size"] % 2 == 1
    assert shrunk("llama").values["vocab_size"] % 2 == 0


def test_one_dense_layer_and_one_with_experts_are_kept() -> None:
    made = shrunk("deepseek_v3")
    assert made.layers == (61, 2)
    assert made.values["first_k_dense_replace"] == 1


def test_one_layer_of_each_kind_of_attention_is_kept() -> None:
    made = shrunk("gemma3_text")
    assert made.values["layer_types"] == ["sliding_attention", "full_attention"]
    assert made.values["num_hidden_layers"] == 2


def test_tokens_stay_within_the_vocabulary() -> None:
    made = shrunk("phi3").values
    assert made["pad_token_id"] < made["vocab_size"]
    assert made["eos_token_id"] != made["pad_token_id"]


def test_missing_ranks_and_groups_of_experts_stay_such() -> None:
    made = shrunk("deepseek_v3", q_lora_rank=None).values
    assert made["q_lora_rank"] is None
    assert made["n_group"] == 2
    assert made["n_routed_experts"] >= made["num_experts_per_tok"] * made["n_group"]


def test_sizes_of_parts_of_fused_weights_are_told() -> None:
    made = shrunk("phi3")
    values = made.values
    assert made.sizes[8192] == values["intermediate_size"]
    assert made.sizes[3072] == values["hidden_size"]
    assert made.counts[32] == values["num_attention_heads"]


def test_factors_of_each_channel_are_cut_to_those_that_are_left() -> None:
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    made = shrunk("phi3", rope_parameters={**rope, "rope_theta": 10000.0}).values
    half = made["hidden_size"] // made["num_attention_heads"] // 2
    assert made["rope_parameters"]["short_factor"] == [1.0] * half
