"""Models that do not look like Llama: what a plain plan gets on them, and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping

import pytest
import torch
from torch import nn

import hpx
from hpx import HpxError, Run, ShardingPlan

transformers = pytest.importorskip("transformers")

COL, ROW = {"tp": "S(0)"}, {"tp": "S(1)"}
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "intermediate_size": 128,
    "vocab_size": 96,
}
GROUPED = {**SIZES, "num_key_value_heads": 4, "head_dim": 8}
BLOOM = {"hidden_size": 64, "n_head": 8, "n_layer": 1, "vocab_size": 96}
T5 = {"d_model": 64, "d_kv": 8, "num_heads": 8, "num_layers": 1, "d_ff": 128, "vocab_size": 96}
LLAMA_RULES = {"**.self_attn.{q,k,v}_proj.weight": COL, "**.self_attn.o_proj.weight": ROW}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def build(kind: str, name: str, values: Mapping[str, object]) -> nn.Module:
    """A transformers model on meta."""
    config = transformers.AutoConfig.for_model(kind, **values)
    with torch.device("meta"):
        model: nn.Module = getattr(transformers, name)._from_config(config)
    return model


def run(model: nn.Module, rules: Mapping[str, object], mesh: str = "tp=4", **plan: object) -> Run:
    made = ShardingPlan(rules, default="replicate", **plan)  # type: ignore[arg-type]
    return hpx.run(model, made, mesh)


def refused(model: nn.Module, rules: Mapping[str, object], mesh: str = "tp=4") -> str:
    with pytest.raises(HpxError) as caught:
        run(model, rules, mesh)
    return str(caught.value)


def integers(done: Run, path: str) -> dict[str, int]:
    node = done.graph.find(path)
    assert node is not None
    return done.graph.module(node).attributes


def texts(done: Run) -> list[str]:
    """What was found, but that these models stand on meta and their buffers hold nothing."""
    return [p.text for p in done.problems if not p.text.startswith("non-persistent buffers")]


def test_bert_divides_its_heads_and_its_width_and_keeps_the_rest() -> None:
    rules = {
        "**.attention.self.{query,key,value}.weight": COL,
        "**.attention.output.dense.weight": ROW,
        "**.intermediate.dense.weight": COL,
        "bert.encoder.layer.*.output.dense.weight": ROW,
    }
    done = run(build("bert", "BertLMHeadModel", {**SIZES, "is_decoder": True}), rules)
    known = integers(done, "bert.encoder.layer.0.attention.self")
    assert (known["num_attention_heads"], known["all_head_size"]) == (2, 16)
    assert known["attention_head_size"] == 8
    assert [param.name for param in done.params if param.reduce] == []
    bias = "bert.encoder.layer.0.{}.bias".format
    assert str(done.by_name[bias("attention.self.key")].layout) == "tp:S(0)"
    assert str(done.by_name[bias("attention.output.dense")].layout) == "R"


def test_the_bias_of_a_tied_bert_head_follows_the_vocabulary() -> None:
    model = build("bert", "BertLMHeadModel", {**SIZES, "is_decoder": True})
    done = run(model, {"bert.embeddings.word_embeddings.weight": COL})
    head = done.by_name["cls.predictions.bias"]
    assert head is done.by_name["cls.predictions.decoder.bias"]
    assert str(head.layout) == "tp:S(0)"


def test_opt_does_not_sum_the_gradients_of_the_norms_beside_its_mlp_matrices() -> None:
    values = {**SIZES, "ffn_dim": 128, "word_embed_proj_dim": 64}
    rules = {
        "**.self_attn.{q,k,v}_proj.weight": COL,
        "**.self_attn.out_proj.weight": ROW,
        "**.fc1.weight": COL,
        "**.fc2.weight": ROW,
    }
    done = run(build("opt", "OPTForCausalLM", values), rules)
    assert [param.name for param in done.params if param.reduce] == []
    assert integers(done, "model.decoder.layers.0.self_attn")["num_heads"] == 2
    assert "embed_dim = 64 stays" in str(done.explain("model.decoder.layers.0.self_attn"))


QKV_BY_HEAD = {"dim": 0, "repeat": 8, "parts": {"q": 64, "k": 64, "v": 64}}


@pytest.mark.parametrize(
    ("kind", "name", "attention"),
    [
        ("gpt_neox", "GPTNeoXForCausalLM", "attention"),
        ("bloom", "BloomForCausalLM", "self_attention"),
    ],
)
def test_a_projection_fused_head_by_head_is_refused_until_that_is_declared(
    kind: str, name: str, attention: str
) -> None:
    values = SIZES if kind == "gpt_neox" else BLOOM
    model = build(kind, name, values)
    rules = {"**.query_key_value.weight": COL, f"**.{attention}.dense.weight": ROW}
    assert "looks like a fused projection" in refused(model, rules)
    done = run(model, rules, packed={"**.query_key_value.weight": QKV_BY_HEAD})
    fused = next(param for param in done.params if param.name.endswith("query_key_value.weight"))
    bias = next(param for param in done.params if param.name.endswith("query_key_value.bias"))
    assert fused.ranges(done.mesh, 3) == ((144, 192), (0, 64))
    assert bias.ranges(done.mesh, 3) == ((144, 192),)


def test_bloom_divides_the_counts_of_its_attention_and_logs_those_above() -> None:
    model = build("bloom", "BloomForCausalLM", BLOOM)
    rules = {"**.query_key_value.weight": COL, "**.self_attention.dense.weight": ROW}
    done = run(model, rules, packed={"**.query_key_value.weight": QKV_BY_HEAD})
    known = integers(done, "transformer.h.0.self_attention")
    assert (known["num_heads"], known["split_size"], known["head_dim"]) == (2, 16, 8)
    assert integers(done, "transformer.h.0")["num_heads"] == 8
    assert "not on the attention module or its children" in str(done.explain("transformer.h.0"))


def test_falcon_with_one_kv_head_in_its_fused_projection_is_refused_by_its_part() -> None:
    model = build("falcon", "FalconForCausalLM", SIZES)
    declared = {"dim": 0, "parts": {"q": 64, "k": 8, "v": 8}}
    with pytest.raises(HpxError, match=r"part k has 1 head of 8 rows, and 4 ranks cannot share"):
        run(model, {"**.query_key_value.weight": COL},
            packed={"**.query_key_value.weight": declared})  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name"), [("olmoe", "OlmoeForCausalLM"), ("olmo2", "Olmo2ForCausalLM")]
)
def test_norms_over_all_heads_are_refused_beside_cut_projections(kind: str, name: str) -> None:
    values = {**SIZES, "num_key_value_heads": 4, "eos_token_id": 1, "num_experts": 4}
    text = refused(build(kind, name, values), LLAMA_RULES)
    assert "self_attn.q_norm.weight: it normalises over all heads, and q_proj is cut" in text
    assert "self_attn.k_norm.weight: it normalises over all heads, and k_proj is cut" in text


def test_norms_with_a_row_a_head_are_pointed_out_until_they_are_cut() -> None:
    values = {**SIZES, "num_key_value_heads": 4, "use_qk_norm": True, "eos_token_id": 1}
    model = build("cohere", "CohereForCausalLM", values)
    assert len(texts(run(model, LLAMA_RULES))) == 2
    assert texts(run(model, {**LLAMA_RULES, "**.{q,k}_norm.weight": COL})) == []


def test_a_list_with_a_norm_a_head_is_refused() -> None:
    values = {**SIZES, "num_key_value_heads": 4, "qk_layernorm": True}
    text = refused(build("stablelm", "StableLmForCausalLM", values), LLAMA_RULES)
    assert "q_layernorm.norms: it holds one module for each of 8 heads" in text


def test_gemma_has_no_count_to_divide_and_no_problem() -> None:
    done = run(build("gemma2", "Gemma2ForCausalLM", GROUPED), LLAMA_RULES)
    assert texts(done) == []
    assert "derived from shape: 8 query heads, 4 kv heads" in str(
        done.explain("model.layers.0.self_attn")
    )


def test_the_sinks_of_gpt_oss_are_pointed_out_until_they_are_cut() -> None:
    model = build("gpt_oss", "GptOssForCausalLM", {**GROUPED, "num_local_experts": 4})
    assert texts(run(model, LLAMA_RULES))[0].startswith("self_attn.sinks is replicated")
    done = run(model, {**LLAMA_RULES, "**.sinks": COL})
    assert texts(done) == []
    assert done.by_name["model.layers.0.self_attn.sinks"].local_shape == (2,)


def test_the_biases_of_gpt_oss_experts_have_to_be_on_ep_with_their_weights() -> None:
    model = build("gpt_oss", "GptOssForCausalLM", {**GROUPED, "num_local_experts": 4})
    text = refused(model, {"**.experts.{gate_up_proj,down_proj}": {"ep": "S(0)"}}, "dp=4,ep=4")
    assert "experts.gate_up_proj_bias" in text
    assert "its slot i would be of another expert than theirs" in text
    done = run(model, {"**.experts.*": {"ep": "S(0)"}}, "dp=4,ep=4")
    assert done.by_name["model.layers.0.mlp.experts.down_proj_bias"].local_shape == (1, 64)


def test_the_shared_expert_of_qwen2_moe_is_dense_beside_experts_on_ep() -> None:
    values = {
        **SIZES,
        "num_key_value_heads": 4,
        "num_experts": 4,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
    }
    rules = {
        "**.mlp.experts.*": {"ep": "S(0)"},
        "**.shared_expert.{gate,up}_proj.weight": COL,
        "**.shared_expert.down_proj.weight": ROW,
    }
    done = run(build("qwen2_moe", "Qwen2MoeForCausalLM", values), rules, "dp=2,tp=2,ep=4")
    mlp = "model.layers.0.mlp"
    assert done.by_name[f"{mlp}.shared_expert.up_proj.weight"].mesh == "dense"
    assert done.by_name[f"{mlp}.experts.down_proj"].mesh == "expert"
    assert str(done.by_name[f"{mlp}.shared_expert_gate.weight"].layout) == "R"
    assert texts(done) == []


def test_the_named_experts_of_switch_transformers_are_stacked_by_number() -> None:
    values = {**T5, "num_experts": 12, "num_sparse_encoder_layers": 1, "num_decoder_layers": 1}
    model = build("switch_transformers", "SwitchTransformersModel", values)
    done = run(model, {"**.mlp.experts.{wi,wo}": {"ep": "S(0)"}}, "dp=4,ep=4")
    stacked = [param for param in done.params if param.lineage]
    assert stacked
    assert {param.shape for param in stacked} == {(12, 128, 64), (12, 64, 128)}
    name = "encoder.block.0.layer.1.mlp.experts.expert_10.wi.weight"
    assert "slot 10 of 12" in str(done.explain(name))


def test_the_position_table_of_t5_is_pointed_out_with_the_dim_that_counts_heads() -> None:
    rules = {"**.{SelfAttention,EncDecAttention}.{q,k,v}.weight": COL}
    done = run(build("t5", "T5Model", T5), rules)
    assert "relative_attention_bias.weight is replicated" in texts(done)[0]
    assert "{tp: S(1)}" in done.problems[0].hint
    known = integers(done, "encoder.block.0.layer.0.SelfAttention")
    assert (known["n_heads"], known["inner_dim"], known["key_value_proj_dim"]) == (2, 64, 8)


def test_the_gated_mlp_of_modernbert_is_seen_though_its_name_tells_nothing() -> None:
    values = {
        **SIZES,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    }
    model = build("modernbert", "ModernBertModel", values)
    text = refused(model, {"**.mlp.Wi.weight": COL, "**.mlp.Wo.weight": ROW})
    assert "layers.0.mlp.Wi.weight, rule 1: it looks like a fused projection" in text
    assert "it gives 256, and layers.0.mlp.Wo.weight takes 128" in text


def test_the_fused_projections_of_phi3_are_refused() -> None:
    values = {**SIZES, "num_key_value_heads": 4, "pad_token_id": 0, "eos_token_id": 1}
    rules = {"**.qkv_proj.weight": COL, "**.gate_up_proj.weight": COL}
    text = refused(build("phi3", "Phi3ForCausalLM", values), rules)
    assert "self_attn.qkv_proj.weight, rule 1: it looks like a fused projection" in text
    assert "mlp.gate_up_proj.weight, rule 2: it looks like a fused projection" in text


def test_multi_query_attention_with_whole_keys_keeps_its_kv_count() -> None:
    class MultiQuery(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads, self.num_kv_heads, self.head_dim = 8, 1, 8
            self.q_proj = nn.Linear(64, 64, bias=False)
            self.k_proj = nn.Linear(64, 8, bias=False)
            self.v_proj = nn.Linear(64, 8, bias=False)
            self.o_proj = nn.Linear(64, 64, bias=False)

    model = nn.Module()
    model.attn = MultiQuery()
    done = run(model, {"attn.q_proj.weight": COL, "attn.o_proj.weight": ROW})
    assert integers(done, "attn") == {"num_heads": 2, "num_kv_heads": 1, "head_dim": 8}
    assert {param.name for param in done.params if param.reduce} == {
        "attn.k_proj.weight",
        "attn.v_proj.weight",
    }


def test_torchs_own_multihead_attention_is_refused_on_its_fused_matrix() -> None:
    model = nn.Module()
    model.attn = nn.MultiheadAttention(64, 8)
    text = refused(model, {"attn.in_proj_weight": COL})
    assert "attn.in_proj_weight, rule 1: it looks like a fused projection" in text
    model.attn = nn.MultiheadAttention(64, 8, kdim=32, vdim=32)
    done = run(model, {"attn.{q,k,v}_proj_weight": COL, "attn.out_proj.weight": ROW})
    assert integers(done, "attn")["num_heads"] == 2
