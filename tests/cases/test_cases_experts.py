"""Field cases E1, E2, E5 to E8, and F4: experts and fused weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hpx
from hpx import HpxError, Run, ShardingPlan
from hpx.lineage import sources
from tests.cases.models import Expert, Moe

REPLICATE = ShardingPlan({}, default="replicate")


def stacked(model: nn.Module, plan: ShardingPlan = REPLICATE) -> Run:
    return hpx.run(model, plan, "tp=1", "stack-experts, tie-weights")


def refused(model: nn.Module, plan: ShardingPlan = REPLICATE, mesh: str = "tp=1") -> str:
    with pytest.raises(HpxError) as caught:
        hpx.run(model, plan, mesh)
    return str(caught.value)


@pytest.mark.parametrize("shuffled", [False, True])
def test_e1_slots_follow_the_number_and_not_the_text_of_a_name(shuffled: bool) -> None:
    model = nn.Module()
    order = [0, 1, 10, 11, *range(2, 10)] if shuffled else range(12)
    model.experts = nn.ModuleDict({str(i): nn.Linear(4, 4, bias=False) for i in order})
    done = stacked(model)
    node = done.graph.tensor(done.graph.find("experts.weight") or -1)
    assert node.lineage is not None
    names = [done.entry.path(source) for source in sources(node.lineage)]
    assert names == [f"experts.{i}.weight" for i in range(12)]


def test_e1_a_state_dict_in_text_order_gives_numeric_slots(tmp_path: object) -> None:
    from hpx.graph.from_names import NamedTensor, graph_from_names

    names = sorted(f"experts.{i}.weight" for i in range(12))
    graph = graph_from_names([NamedTensor(n, (4, 4), "float32") for n in names], source="x")
    done = hpx.run(graph, REPLICATE, "tp=1")
    assert "slot 10 of 12" in str(done.explain("experts.10.weight"))


def test_e2_linear_experts_with_a_bias_give_two_stacked_parameters() -> None:
    done = stacked(Moe([nn.Linear(8, 6, bias=True) for _ in range(4)]))
    shapes = {param.name: param.shape for param in done.params if param.lineage}
    assert shapes == {"experts.weight": (4, 6, 8), "experts.bias": (4, 6)}


def test_e5_a_plan_in_another_dialect_lists_the_expert_weights_without_a_rule() -> None:
    plan = ShardingPlan(
        {"experts.{gate_proj,up_proj,down_proj}": {"ep": "S(0)"}, "gate.weight": "replicate"}
    )
    text = refused(Moe([Expert() for _ in range(4)]), plan, "dp=4,ep=4")
    assert "3 expert weights with no rule: experts.w1, experts.w3, experts.w2" in text
    assert "'experts.{gate_proj,up_proj,down_proj}' matches no parameter" in text


def test_e6_experts_that_the_plan_expects_and_the_model_lacks_are_an_error() -> None:
    plan = ShardingPlan({"**": "replicate"}, experts=["layers.*.experts"])
    assert "no experts at 'layers.*.experts'" in refused(nn.Linear(4, 4), plan)


def test_e6_unless_they_are_declared_optional() -> None:
    plan = ShardingPlan({}, experts=["layers.*.experts"], default="replicate")
    done = hpx.run(nn.Linear(4, 4), plan, "dp=4", "@default, !stack-experts, "
                   "stack-experts{optional=true}")  # fmt: skip
    assert "no experts at 'layers.*.experts'; optional=true" in [e.why for e in done.events]


def test_e7_a_plan_that_matches_nothing_says_that_nothing_is_sharded() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    plan = ShardingPlan({"model.layers.*.weight": {"tp": "S(0)"}}, default="replicate")
    text = refused(model, plan, "tp=2")
    assert "0 of 2 parameters sharded, and tp is 2" in text
    assert "rule 'model.layers.*.weight' matches no parameter" in text


def test_e7_unless_that_is_asked_for() -> None:
    done = hpx.run(
        nn.Linear(4, 4), REPLICATE, "tp=2", ["@default", "!shard-params",
        "shard-params{nothing=allow}"]
    )  # fmt: skip
    assert {str(param.layout) for param in done.params} == {"R"}


def test_e8_experts_frozen_except_one_are_refused_by_the_odd_one() -> None:
    model = Moe([Expert() for _ in range(4)])
    model.experts.requires_grad_(False)
    model.experts[2].requires_grad_(True)
    text = refused(model)
    assert "experts: expert 2 of 4 differs from the others" in text
    assert "w1.weight has requires_grad True, not False" in text


def test_e8_one_bf16_expert_among_fp32_is_refused_by_name() -> None:
    model = Moe([Expert() for _ in range(4)])
    model.experts[3].to(torch.bfloat16)
    text = refused(model)
    assert "expert 3 of 4 differs from the others" in text
    assert "w1.weight has dtype bfloat16, not float32" in text


class Fused(nn.Module):
    """2 heads of 2 with q, k and v in one matrix of 12 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim = 2, 2
        self.qkv = nn.Linear(4, 12, bias=False)


def fused_plan(packed: dict[str, object] | None = None) -> ShardingPlan:
    declared = {"attn.qkv.weight": packed} if packed else {}
    return ShardingPlan({"attn.qkv.weight": {"tp": "S(0)"}}, packed=declared)


def attn(inner: nn.Module) -> nn.Module:
    model = nn.Module()
    model.attn = inner
    return model


def test_f4_a_fused_weight_without_a_declared_layout_is_refused() -> None:
    text = refused(attn(Fused()), fused_plan(), "tp=2")
    assert "attn.qkv.weight, rule 1: it looks like a fused projection" in text
    assert text.endswith(
        "Fix: replicate it, or declare how its parts lie under packed: in the plan, for pack-fused"
    )


def test_f4_a_layout_that_goes_head_by_head_may_be_cut() -> None:
    """q0 k0 v0 q1 k1 v1: rank 1 holds the second half, all of head 1."""
    declared = {"dim": 0, "repeat": 2, "parts": {"q": 4, "k": 4, "v": 4}}
    done = hpx.run(attn(Fused()), fused_plan(declared), "tp=2")
    assert done.by_name["attn.qkv.weight"].ranges(done.mesh, 1) == ((6, 12), (0, 4))


def test_f4_sizes_of_one_repeat_are_refused_with_those_of_all_repeats() -> None:
    declared = {"dim": 0, "repeat": 2, "parts": {"q": 2, "k": 2, "v": 2}}
    text = refused(attn(Fused()), fused_plan(declared), "tp=2")
    assert "declares q 2 + k 2 + v 2 = 6 rows, and dim 0 has 12" in text
    assert text.endswith("Fix: declare the sizes of all 2 repeats together: {q: 4, k: 4, v: 4}")


def test_f4_sizes_that_fit_no_repeat_are_refused_with_their_sum() -> None:
    declared = {"dim": 0, "repeat": 2, "parts": {"q": 4, "k": 4}}
    text = refused(attn(Fused()), fused_plan(declared), "tp=2")
    assert text.endswith("Fix: declare parts that add up to 12, all repeats together")


def test_f4_a_layout_of_whole_parts_is_refused_where_nothing_packs_it() -> None:
    """qq kk vv: a plain cut would give rank 0 both q and half of k."""
    declared = {"dim": 0, "parts": {"q": 4, "k": 4, "v": 4}}
    with pytest.raises(HpxError) as caught:
        hpx.run(attn(Fused()), fused_plan(declared), "tp=2", "@default, !pack-fused")
    assert "goes across them. Fix: add pack-fused" in str(caught.value)


def test_f4_a_layout_of_whole_parts_is_packed() -> None:
    declared = {"dim": 0, "parts": {"q": 4, "k": 4, "v": 4}}
    done = hpx.run(attn(Fused()), fused_plan(declared), "tp=2")
    text = str(done.explain("attn.qkv.weight", rank=1))
    assert "permute(attn.qkv.weight, dim 0: q 4, k 4, v 4, each in 2)" in text
    assert [line for line in text.splitlines() if "= attn.qkv.weight" in line] == [
        "  = attn.qkv.weight [2:4, 0:4]",
        "  = attn.qkv.weight [6:8, 0:4]",
        "  = attn.qkv.weight [10:12, 0:4]",
    ]
