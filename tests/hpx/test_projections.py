from __future__ import annotations

import pytest
from torch import nn

from hpx.graph.graph import ModuleGraph
from hpx.projections import is_projection, layer_weight, output_dim, role_of_name
from hpx.testing import graph_of


@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("q", "q q_proj wq Wq w_q query to_q q_lin linear_q query_layer q_b_proj q_net c_q"),
        ("q", "attn_q attention_query"),
        ("k", "k k_proj wk key to_k key_proj k_lin k_proj_weight attn_k"),
        ("v", "v v_proj wv value to_v value_proj v_proj_weight cross_attn_v"),
        ("kv", "kv kv_proj kv_b_proj to_kv wkv key_value"),
        ("qkv", "qkv qkv_proj Wqkv to_qkv query_key_value c_attn in_proj in_proj_weight W_pack"),
        ("qkv", "attn_qkv attn_Wqkv self_attn_qkv_proj mixed_qkv attn_in attention_in_proj"),
    ],
)
def test_usual_names_have_their_role(role: str, names: str) -> None:
    assert {name: role_of_name(name) for name in names.split()} == dict.fromkeys(
        names.split(), role
    )


OTHERS = """o_proj out_proj fc1 gate_proj up_proj q_a_proj kv_a_proj_with_mqa q_norm k_layernorm
lm_head value_head keys w1 c_proj qk_norm attn_out
attn_o attn_norm attn_gate fused_qkv_a_proj_with_mqa attn_proj"""


@pytest.mark.parametrize("name", OTHERS.split())
def test_other_names_have_none(name: str) -> None:
    assert role_of_name(name) is None


def test_the_output_dim_of_a_linear_is_its_first_and_of_a_conv1d_its_second() -> None:
    graph = graph_of(
        {"a.weight": (8, 4), "b.weight": (4, 8)},
        classes={"b": "transformers.pytorch_utils.Conv1D"},
    )
    a, b = graph.parameters()
    assert (output_dim(graph, a), output_dim(graph, b)) == (0, 1)


@pytest.mark.parametrize(
    ("shape", "bias", "dim"),
    [((8, 4), (8,), 0), ((4, 8), (8,), 1), ((8, 8), (8,), 0)],
    ids=["linear", "transposed", "square"],
)
def test_without_classes_the_bias_tells_the_output_dim(
    shape: tuple[int, ...], bias: tuple[int, ...], dim: int
) -> None:
    graph = graph_of({"a.weight": shape, "a.bias": bias}, classes={"": "", "a": ""})
    assert output_dim(graph, next(graph.parameters())) == dim


def test_an_embedding_called_key_is_no_projection() -> None:
    graph = graph_of(
        {"m.key.weight": (8, 4)}, classes={"m.key": "torch.nn.modules.sparse.Embedding"}
    )
    assert not is_projection(graph, next(graph.parameters()))


def test_the_weight_of_a_layer_is_found_inside_what_only_wraps_it() -> None:
    graph = graph_of({"q.base_layer.weight": (8, 4), "q.lora_A.weight": (2, 4)})
    found = layer_weight(graph, graph.module(graph.find("q") or -1))
    assert found is not None
    assert graph.path(found.id) == "q.base_layer.weight"
    assert layer_weight(graph, graph.module(graph.root)) is None


def wrapped(*layers: nn.Module) -> ModuleGraph:
    attention = nn.ModuleDict({"q": nn.Sequential(*layers), "o_proj": nn.Linear(8, 8, bias=False)})
    return ModuleGraph.from_module(nn.ModuleDict({"attn": attention}))


def test_a_sequence_of_one_layer_is_that_layer() -> None:
    graph = wrapped(nn.Linear(8, 8, bias=False), nn.Dropout(0.0))
    assert is_projection(graph, graph.tensor(graph.find("attn.q.0.weight") or -1))
    found = layer_weight(graph, graph.module(graph.find("attn.q") or -1))
    assert found is not None
    assert graph.path(found.id) == "attn.q.0.weight"


def test_a_sequence_of_several_layers_is_none_of_them() -> None:
    graph = wrapped(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    assert not is_projection(graph, graph.tensor(graph.find("attn.q.0.weight") or -1))
