"""`pack-fused`: which parameters get which order, and what is left to `shard-params`."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hpx.errors import HpxError
from hpx.facts import PACKED
from hpx.graph import ModuleGraph
from hpx.mesh import MeshSpec
from hpx.order import Order
from hpx.passes.pack_fused import PackFused
from hpx.passes.shard_params import ShardParams
from hpx.pipeline.request import Request
from hpx.plan import ShardingPlan
from hpx.run import Run, run
from hpx.testing import check_contract, graph_of, run_pass

QKV = {"dim": 0, "parts": {"q": 16, "k": 4, "v": 4}}
CUT = {"tp": "S(0)"}


def plan(rules: dict[str, object], packed: Mapping[str, object]) -> ShardingPlan:
    return ShardingPlan(rules, default="replicate", packed=packed)


def orders(before: ModuleGraph, wanted: ShardingPlan, mesh: str = "tp=2") -> dict[str, Order]:
    graph = check_contract(PackFused(), before, plan=wanted, mesh=mesh).graph
    return {graph.path(n.id): n.order for n in graph.parameters() if n.order is not None}


def reasons(before: ModuleGraph, wanted: ShardingPlan, mesh: str = "tp=2") -> list[str]:
    return [event.why for event in run_pass(PackFused(), before, plan=wanted, mesh=mesh).events]


def test_parts_one_after_the_other_are_regrouped_by_rank() -> None:
    found = orders(graph_of({"qkv.weight": (24, 8)}), plan({"qkv.weight": CUT}, {"*.weight": QKV}))
    assert found == {"qkv.weight": Order(0, (("q", 16), ("k", 4), ("v", 4)), 2)}


def test_f1_rank_0_holds_its_q_then_its_k_then_its_v() -> None:
    """Rows q0 q1 q2 q3 k0 k1 v0 v1 on two ranks: q0 q1 k0 v0, and q2 q3 k1 v1."""
    declared = {"dim": 0, "parts": {"q": 4, "k": 2, "v": 2}}
    (order,) = orders(graph_of({"w": (8, 3)}), plan({"w": CUT}, {"w": declared})).values()
    rows = [row for start, end in order.blocks() for row in range(start, end)]
    names = [["q0", "q1", "q2", "q3", "k0", "k1", "v0", "v1"][row] for row in rows]
    assert names == ["q0", "q1", "k0", "v0", "q2", "q3", "k1", "v1"]


def test_a_bias_has_the_order_of_its_weight() -> None:
    before = graph_of({"qkv.weight": (24, 8), "qkv.bias": (24,)})
    found = orders(before, plan({"qkv.weight": CUT}, {"qkv.weight": QKV}))
    assert found["qkv.bias"] == found["qkv.weight"]


def test_the_bias_of_a_transposed_layer_is_reordered_on_its_only_dim() -> None:
    before = graph_of(
        {"c_attn.weight": (8, 24), "c_attn.bias": (24,)},
        classes={"c_attn": "transformers.pytorch_utils.Conv1D"},
    )
    declared = {"dim": 1, "parts": {"q": 8, "k": 8, "v": 8}}
    found = orders(before, plan({"c_attn.weight": {"tp": "S(1)"}}, {"c_attn.weight": declared}))
    assert {name: order.dim for name, order in found.items()} == {
        "c_attn.weight": 1,
        "c_attn.bias": 0,
    }


def test_the_b_of_lora_has_the_order_of_its_layer_and_a_stays() -> None:
    before = graph_of(
        {
            "qkv.base_layer.weight": (24, 8),
            "qkv.lora_A.default.weight": (2, 8),
            "qkv.lora_B.default.weight": (24, 2),
        }
    )
    wanted = plan(
        {"qkv.base_layer.weight": CUT, "qkv.lora_B.*.weight": CUT}, {"qkv.base_layer.weight": QKV}
    )
    assert set(orders(before, wanted)) == {"qkv.base_layer.weight", "qkv.lora_B.default.weight"}


def test_f3_stacked_gate_and_up_are_reordered_on_their_second_dim() -> None:
    declared = {"dim": 1, "parts": {"gate": 4, "up": 4}}
    wanted = plan({"experts.w13": {"tp": "S(1)"}}, {"experts.w13": declared})
    found = orders(graph_of({"experts.w13": (3, 8, 5)}), wanted)
    assert found == {"experts.w13": Order(1, (("gate", 4), ("up", 4)), 2)}


def test_what_is_not_cut_on_its_packed_dim_keeps_its_order() -> None:
    wanted = plan({"w": {"tp": "S(1)"}}, {"w": QKV})
    assert orders(graph_of({"w": (24, 8)}), wanted) == {}
    assert reasons(graph_of({"w": (24, 8)}), wanted) == [
        "nothing that is declared under packed: is cut on its packed dim"
    ]


def test_parts_that_repeat_keep_their_order_and_the_log_says_why() -> None:
    declared = {"dim": 0, "repeat": 4, "parts": {"q": 8, "k": 8, "v": 8}}
    wanted = plan({"w": CUT}, {"w": declared})
    assert orders(graph_of({"w": (24, 8)}), wanted) == {}
    assert reasons(graph_of({"w": (24, 8)}), wanted) == [
        "packed 'w': its parts repeat 4 times, 2 ranks share whole repeats: a plain cut"
    ]


def test_a_plan_without_packed_parts_says_that_there_is_nothing_to_do() -> None:
    wanted = ShardingPlan({"w": CUT})
    assert reasons(graph_of({"w": (24, 8)}), wanted) == ["the plan declares nothing under packed:"]


def test_equal_layers_are_reordered_by_one_event() -> None:
    before = graph_of({f"layers.{i}.qkv.weight": (24, 8) for i in range(5)})
    wanted = plan({"**.qkv.weight": CUT}, {"**.qkv.weight": QKV})
    (event,) = run_pass(PackFused(), before, plan=wanted, mesh="tp=2").events
    assert (event.kind, event.key, len(event.nodes)) == ("set", "order", 5)


def test_a_second_time_nothing_is_done() -> None:
    wanted = plan({"w": CUT}, {"w": QKV})
    once = run_pass(PackFused(), graph_of({"w": (24, 8)}), plan=wanted, mesh="tp=2").graph
    assert reasons(once, wanted) == ["it has this order already"]


def test_an_order_for_other_ranks_is_refused() -> None:
    wanted = plan({"w": CUT}, {"w": QKV})
    once = run_pass(PackFused(), graph_of({"w": (24, 8)}), plan=wanted, mesh="tp=2").graph
    with pytest.raises(HpxError, match="its packed dim has another order"):
        run_pass(ShardParams(), once, plan=wanted, mesh="tp=4")


def test_a_part_whose_heads_the_ranks_cannot_share_is_refused_with_the_heads() -> None:
    before = graph_of(
        {"attn.qkv.weight": (48, 8)}, attributes={"attn": {"num_heads": 8, "head_dim": 4}}
    )
    declared = {"dim": 0, "parts": {"q": 32, "k": 8, "v": 8}}
    wanted = plan({"attn.qkv.weight": CUT}, {"attn.qkv.weight": declared})
    with pytest.raises(HpxError, match=r"part k has 2 heads of 4 rows, and 4 ranks cannot share"):
        run(before, wanted, "tp=4", "@default")


def test_a_quantised_weight_is_not_reordered_away_from_its_scales() -> None:
    before = graph_of(
        {"qkv.weight": (512, 64), "qkv.weight_scale": (8, 1)},
        dtypes={"qkv.weight": "float8_e4m3fn"},
    )
    declared = {"dim": 0, "parts": {"q": 256, "k": 128, "v": 128}}
    wanted = plan({"qkv.weight": CUT, "qkv.weight_scale": CUT}, {"qkv.weight": declared})
    with pytest.raises(HpxError, match="its rows are reordered, and those of weight_scale are not"):
        run(before, wanted, "tp=2")
    scales = {"dim": 0, "parts": {"q": 4, "k": 2, "v": 2}}
    both: dict[str, object] = {"qkv.weight": declared, "qkv.weight_scale": scales}
    assert run(before, plan({"qkv.weight*": CUT}, both), "tp=2").by_name["qkv.weight"].layout


def test_the_fact_names_what_is_cut_across_its_parts() -> None:
    before = graph_of({"w": (24, 8)})
    request = Request(plan({"w": CUT}, {"w": QKV}), MeshSpec.parse("tp=2"))
    assert list(PACKED.holds(before, request)) == [
        "w has its parts one after the other, and will be cut in 2"
    ]


def test_a_run_with_orders_reads_back_equal() -> None:
    before = graph_of({"qkv.weight": (24, 8), "qkv.bias": (24,)})
    done = run(before, plan({"qkv.weight": CUT}, {"qkv.weight": QKV}), "tp=2")
    loaded = Run.from_json(done.to_json())
    assert loaded.events == done.events
    assert loaded.graph.get("qkv.bias").order == Order(0, (("q", 16), ("k", 4), ("v", 4)), 2)  # type: ignore[union-attr]
    assert loaded.by_name["qkv.bias"].lineage == (
        "permute(qkv.bias, dim 0: q 16, k 4, v 4, each in 2)"
    )


def test_integers_as_large_as_a_part_are_divided_where_no_head_dim_is_stored() -> None:
    before = graph_of(
        {"attn.c_attn.weight": (8, 24), "attn.c_proj.weight": (8, 8)},
        classes=dict.fromkeys(("attn.c_attn", "attn.c_proj"), "transformers.pytorch_utils.Conv1D"),
        attributes={"attn": {"n_head": 4, "split_size": 8}},
    )
    declared = {"dim": 1, "parts": {"q": 8, "k": 8, "v": 8}}
    wanted = plan(
        {"attn.c_attn.weight": {"tp": "S(1)"}, "attn.c_proj.weight": {"tp": "S(0)"}},
        {"attn.c_attn.weight": declared},
    )
    done = run(before, wanted, "tp=2")
    assert done.graph.get("attn").attributes == {"n_head": 2, "split_size": 4}  # type: ignore[union-attr]
