"""Names in which the name of a projection or a norm is a part, and which are none."""

from __future__ import annotations

import pytest
from torch import nn

import hpx
from hpx import ModuleGraph, Run
from hpx._graph_of import graph_of
from tests.hpx.derive.models import Attention, Expert, Layer, Moe, Stack, linear

MISLEADING = [
    "audio_proj",  # o_proj
    "proto_proj",  # o_proj
    "video_proj",  # o_proj
    "block_proj",  # k_proj
    "seq_proj",  # q_proj
    "conv_proj",  # v_proj
    "group_proj",  # up_proj
    "normalizer",  # norm
    "shared_experts_gate",  # shared_experts, gate
]


def planned(model: nn.Module, mesh: str = "tp=2") -> Run:
    return hpx.run(model, hpx.plan(model, mesh), mesh, "@run")


@pytest.mark.parametrize("name", MISLEADING)
def test_a_layer_beside_the_blocks_is_not_mistaken_for_one_of_them(name: str) -> None:
    model = Stack([Layer(Attention(), Expert()) for _ in range(2)])
    for layer in model.layers:
        layer.add_module(name, linear(32, 32))
    done = planned(model)
    param = done.by_name[f"layers.0.{name}.weight"]
    assert str(param.layout) == "R"
    assert param.rule is not None
    assert "without a partner" in (param.rule.reason or "")
    assert str(done.by_name["layers.0.mixer.q_proj.weight"].layout) == "tp:S(0)"
    assert str(done.by_name["layers.0.mixer.o_proj.weight"].layout) == "tp:S(1)"
    assert str(done.by_name["layers.0.feed.w2.weight"].layout) == "tp:S(1)"


@pytest.mark.parametrize("name", MISLEADING)
def test_a_layer_inside_attention_is_not_taken_for_q_k_v_or_o(name: str) -> None:
    attention = Attention()
    attention.add_module(name, linear(32, 32))
    done = planned(Stack([Layer(attention, Expert())]))
    reason = done.by_name["layers.0.mixer.q_proj.weight"].rule
    assert str(done.by_name[f"layers.0.mixer.{name}.weight"].layout) == "R"
    assert str(done.by_name["layers.0.mixer.q_proj.weight"].layout) == "R"
    assert reason is not None
    assert f"what {name} [32 x 32] does beside the heads is not known" in (reason.reason or "")


@pytest.mark.parametrize("name", MISLEADING)
def test_a_layer_inside_a_feed_forward_block_keeps_it_whole(name: str) -> None:
    feed = Expert()
    feed.add_module(name, linear(32, 7))
    done = planned(Stack([Layer(Attention(), feed)]))
    rule = done.by_name["layers.0.feed.w1.weight"].rule
    assert rule is not None
    assert f"what {name} [7 x 32] does beside it is not known" in (rule.reason or "")
    assert str(done.by_name[f"layers.0.feed.{name}.weight"].layout) == "R"


def test_the_gate_of_a_shared_expert_is_no_router_and_no_expert() -> None:
    moe = Moe()
    moe.shared_experts = Expert()
    moe.shared_experts_gate = linear(32, 1)
    done = planned(Stack([Layer(Attention(), moe)]), "dp=1,tp=2,ep=2")
    feed = "layers.0.feed"
    assert str(done.by_name[f"{feed}.shared_experts_gate.weight"].layout) == "R"
    assert str(done.by_name[f"{feed}.shared_experts.w1.weight"].layout) == "tp:S(0)"
    assert str(done.by_name[f"{feed}.shared_experts.w2.weight"].layout) == "tp:S(1)"
    assert str(done.by_name[f"{feed}.experts.w1"].layout) == "ep:S(0)"
    router = done.by_name[f"{feed}.gate.weight"].rule
    assert router is not None
    assert "routes its tokens over all experts" in (router.reason or "")


@pytest.mark.parametrize("name", [n for n in MISLEADING if n != "shared_experts_gate"])
def test_names_alone_do_not_mislead_either(name: str) -> None:
    """A state dict: no class, no integer, only names and shapes."""
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (128, 32),
        f"layers.0.{name}.weight": (32, 32),
        "layers.0.mlp.gate_proj.weight": (64, 32),
        "layers.0.mlp.up_proj.weight": (64, 32),
        "layers.0.mlp.down_proj.weight": (32, 64),
    }
    graph: ModuleGraph = graph_of(shapes, classes=dict.fromkeys(_modules(shapes), ""))
    plan = hpx.plan(graph, "tp=2")
    found = {rule.pattern: str(rule.layout) for rule in plan.params}
    assert found[f"layers.*.{name}.weight"] == "R"
    assert found["layers.*.mlp.down_proj.weight"] == "tp:S(1)"


def _modules(shapes: dict[str, tuple[int, ...]]) -> list[str]:
    found = {""}
    for name in shapes:
        parts = name.split(".")[:-1]
        found |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
    return sorted(found)
