"""Field cases M2 and M4 to M8: meshes and placements."""

from __future__ import annotations

import pytest
from torch import nn

import hpx
from hpx import Layout, LayoutError, MeshError, MeshSpec, ShardingPlan
from hpx.layout import index_range, local_shape
from tests.cases.models import Attention, Expert, Moe


def test_m2_an_optional_axis_counts_as_1_where_the_mesh_lacks_it() -> None:
    mesh = MeshSpec.parse("tp=2")
    assert mesh.size("dp", 1) == 1


def test_m2_a_required_axis_that_the_mesh_lacks_is_a_clear_error() -> None:
    mesh = MeshSpec.parse("tp=2")
    with pytest.raises(MeshError, match=r"mesh tp=2 has no axis 'dp': its axes are tp"):
        mesh.size("dp")


def test_m2_a_model_runs_on_a_mesh_of_tp_alone() -> None:
    done = hpx.run(nn.Linear(4, 4, bias=False), ShardingPlan({"weight": {"tp": "S(0)"}}), "tp=2")
    assert str(done.by_name["weight"].layout) == "tp:S(0)"


class Layer(nn.Module):
    """Attention and a mixture of four experts."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = Attention(4, 4, 4, 16, num_heads=4)
        self.mlp = Moe([Expert(16, 8) for _ in range(4)], 16)


PLAN = """\
version: 1
params:
  "attn.{q,k,v}_proj.weight": {tp: S(0)}
  "attn.o_proj.weight": {tp: S(1)}
  "mlp.gate.weight": replicate
  "mlp.experts.*": {ep: S(0)}
"""


@pytest.mark.parametrize(
    ("name", "mesh", "layout", "line"),
    [
        ("mlp.gate.weight", "dense mesh dp=2,tp=2", "layout R", 5),
        ("mlp.experts.w1", "expert mesh edp=2,ep=2", "layout ep:S(0)", 6),
        ("attn.q_proj.weight", "dense mesh dp=2,tp=2", "layout tp:S(0)", 3),
    ],
)
def test_m4_router_expert_and_projection_each_show_their_mesh_axes_and_rule(
    name: str, mesh: str, layout: str, line: int
) -> None:
    plan = ShardingPlan.from_text(PLAN, "plan.yaml")
    text = str(hpx.run(Layer(), plan, "dp=2,tp=2,ep=2").explain(name))
    assert mesh in text
    assert layout in text
    assert f"plan.yaml:{line}" in text


@pytest.mark.parametrize("tp", range(4))
@pytest.mark.parametrize("dp", range(2))
def test_m5_fsdp_over_tp_cuts_the_rows_that_a_tp_rank_has(dp: int, tp: int) -> None:
    layout = Layout.parse({"tp": "S(0)"}).then("dp", 0)
    sizes, at = {"dp": 2, "tp": 4}, {"dp": dp, "tp": tp}
    start = tp * 4 + dp * 2
    assert index_range((16, 16), layout, sizes, at) == ((start, start + 2), (0, 16))


def test_m5_ranges_are_shown_and_not_only_placements() -> None:
    plan = ShardingPlan({"weight": {"tp": "S(0)"}})
    text = str(hpx.run(nn.Linear(16, 16, bias=False), plan, "dp=2,tp=4").explain("weight", rank=6))
    assert "rank 6, at dp=1, tp=2" in text
    assert "[8:12, 0:16]" in text


def test_m6_5_rows_over_4_list_the_empty_rank() -> None:
    plan = ShardingPlan({"weight": {"tp": "S(0)"}})
    pipeline = "@default, !shard-params, shard-params{uneven=allow}"
    done = hpx.run(nn.Linear(2, 5, bias=False), plan, "tp=4", pipeline)
    assert [problem.text for problem in done.problems] == [
        "dim 0 of size 5 over tp=4 is uneven: 2,2,1,0; tp rank 3 holds nothing",
        (
            "its outputs are cut, and no rowwise matrix takes them: it has 5, and no layer near it"
            " takes as many"
        ),
    ]
    rows = [done.by_name["weight"].ranges(done.mesh, rank)[0] for rank in range(4)]
    assert rows == [(0, 2), (2, 4), (4, 5), (5, 5)]


def test_m6_is_refused_where_uneven_is_not_allowed() -> None:
    plan = ShardingPlan({"weight": {"tp": "S(0)"}})
    with pytest.raises(hpx.HpxError, match="ranks would hold 2,2,1,0"):
        hpx.run(nn.Linear(2, 5, bias=False), plan, "tp=4")


def test_m7_columns_over_4_are_3_3_3_1_and_the_global_stride_stays() -> None:
    plan = ShardingPlan({"weight": {"tp": "S(1)"}})
    pipeline = "@default, !shard-params, shard-params{uneven=allow}"
    done = hpx.run(nn.Linear(10, 4, bias=False), plan, "tp=4", pipeline)
    layout = done.by_name["weight"].layout
    assert layout is not None
    shapes = [local_shape((4, 10), layout, {"tp": 4}, {"tp": rank}) for rank in range(4)]
    assert shapes == [(4, 3), (4, 3), (4, 3), (4, 1)]
    assert next(done.graph.parameters()).spec.strides == (10, 1)


def test_m8_on_a_tp_of_size_1_the_same_rules_work_and_counts_stay() -> None:
    attention = nn.Module()
    attention.attn = Attention(4, 4, 4, 16, num_heads=4)
    rules = {"attn.{q,k,v}_proj.weight": {"tp": "S(0)"}, "attn.o_proj.weight": {"tp": "S(1)"}}
    done = hpx.run(attention, ShardingPlan(rules), "dp=8,tp=1")
    assert {param.layout for param in done.params} == {None}
    assert done.graph.module(done.graph.find("attn") or -1).attributes["num_heads"] == 4
    assert not [event for event in done.events if event.kind in ("set", "attach")]


def test_an_axis_that_the_mesh_lacks_is_no_silent_replicate() -> None:
    with pytest.raises(LayoutError, match="names axis 'ep', which mesh tp=2 does not have"):
        Layout.parse({"ep": "S(0)"}).resolve(MeshSpec.parse("tp=2"), 2)
