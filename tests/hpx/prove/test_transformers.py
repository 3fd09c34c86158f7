"""Models of transformers on meta: what runs with the shapes of one rank, and what does not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import nn

import hpx
from hpx import ShardingPlan
from hpx.prove import Proof, prove

transformers = pytest.importorskip("transformers")

COL, ROW = {"tp": "S(0)"}, {"tp": "S(1)"}
LLAMA = {
    "**.self_attn.{q,k,v}_proj.weight": COL,
    "**.self_attn.o_proj.weight": ROW,
    "**.mlp.{gate,up}_proj.weight": COL,
    "**.mlp.down_proj.weight": ROW,
}
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 128,
}


def proof(kind: str, name: str, rules: Mapping[str, object], **values: object) -> Proof:
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **values})
    with torch.device("meta"):
        model: nn.Module = getattr(transformers, name)._from_config(config)
    plan = ShardingPlan(rules, default="replicate")
    return prove(hpx.run(model, plan, "tp=4"), model, seconds=60.0)


@pytest.mark.parametrize(
    ("kind", "name", "distinct"),
    [
        ("llama", "LlamaForCausalLM", 2),
        ("qwen2", "Qwen2ForCausalLM", 2),
        ("mistral", "MistralForCausalLM", 2),
        ("gemma2", "Gemma2ForCausalLM", 3),  # every other attention has a sliding window
        ("qwen3", "Qwen3ForCausalLM", 2),
    ],
)
def test_models_that_view_their_heads_with_minus_one_are_proved(
    kind: str, name: str, distinct: int
) -> None:
    found = proof(kind, name, LLAMA)
    assert (found.status, found.distinct, found.proved) == ("proved", distinct, distinct)
    assert found.boundaries == 4


def test_a_cache_that_a_call_fills_is_empty_again_for_the_next_rank() -> None:
    config = transformers.AutoConfig.for_model("llama", **SIZES)
    with torch.device("meta"):
        model: nn.Module = transformers.LlamaForCausalLM._from_config(config)
    done = hpx.run(model, ShardingPlan(LLAMA, default="replicate"), "tp=4")
    for more in ({}, {"use_cache": True}):
        given = {"input_ids": torch.zeros(2, 6, dtype=torch.int64), **more}
        assert prove(done, model, given, seconds=60.0).status == "proved"


def test_bert_is_proved_with_its_heads_and_width_divided() -> None:
    rules = {
        "**.attention.self.{query,key,value}.weight": COL,
        "**.attention.output.dense.weight": ROW,
        "**.intermediate.dense.weight": COL,
        "**.layer.*.output.dense.weight": ROW,
    }
    assert proof("bert", "BertModel", rules).status == "proved"


def test_vit_gets_images_of_the_size_of_its_config() -> None:
    rules = {
        "**.attention.{q,k,v}_proj.weight": COL,
        "**.attention.o_proj.weight": ROW,
        "**.mlp.fc1.weight": COL,
        "**.mlp.fc2.weight": ROW,
    }
    assert proof("vit", "ViTModel", rules).status == "proved"


def test_two_towers_get_both_of_their_inputs() -> None:
    small = {**SIZES, "projection_dim": 32, "image_size": 32, "patch_size": 16}
    config = transformers.CLIPConfig(text_config=small, vision_config=small, projection_dim=32)
    with torch.device("meta"):
        model: nn.Module = transformers.CLIPModel._from_config(config)
    rules = {
        "**.self_attn.{q,k,v}_proj.weight": COL,
        "**.self_attn.out_proj.weight": ROW,
        "**.mlp.fc1.weight": COL,
        "**.mlp.fc2.weight": ROW,
    }
    plan = ShardingPlan(rules, default="replicate")
    assert prove(hpx.run(model, plan, "tp=4"), model, seconds=60.0).status == "proved"


def test_a_bias_of_positions_that_a_cut_layer_gets_whole_is_found() -> None:
    rules = {
        "encoder.block.1.layer.0.SelfAttention.{q,k,v}.weight": COL,
        "encoder.block.1.layer.0.SelfAttention.o.weight": ROW,
    }
    config = transformers.T5Config(
        d_model=64, d_kv=8, d_ff=128, num_layers=2, num_heads=8, vocab_size=128
    )
    with torch.device("meta"):
        model: nn.Module = transformers.T5Model._from_config(config)
    found = prove(hpx.run(model, ShardingPlan(rules, default="replicate"), "tp=4"), model)
    (problem,) = found.problems
    assert "in encoder.block.1.layer.0.SelfAttention: " in problem.text
    assert "transformers/" in problem.text


def test_attention_beside_experts_is_proved() -> None:
    rules = {k: v for k, v in LLAMA.items() if "self_attn" in k}
    found = proof("mixtral", "MixtralForCausalLM", rules, num_local_experts=4)
    assert (found.status, found.distinct) == ("proved", 1)
