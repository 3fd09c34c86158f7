"""Cuts that are uneven, of nothing, or of what cannot be cut."""

from __future__ import annotations

import pytest

from hpx.passes.shard_params import ShardParams
from hpx.plan import ShardingPlan
from hpx.testing import graph_of
from tests.passes.sharding import COL, ROW, WHOLE, layouts, refused, shard


def test_an_uneven_cut_is_refused_with_the_sizes_that_would_do() -> None:
    text = refused(graph_of({"w": (6, 4)}), {"w": COL}, "tp=4")
    assert "w, rule 1: dim 0 of [6, 4] cannot be cut evenly by tp=4" in text
    assert "6 % 4 = 2, ranks would hold 2,2,2,0" in text
    assert "use a tp of 1, 2, 3, 6, or shard-params{uneven=allow}" in text


def test_equal_findings_in_all_layers_are_one_error() -> None:
    before = graph_of({f"layers.{i}.w": (6, 4) for i in range(80)})
    text = refused(before, {"layers.*.w": COL}, "tp=4")
    assert len(text.splitlines()) == 2
    assert "layers.{0-79}.w" in text


def test_an_uneven_cut_may_be_allowed_and_its_sizes_are_reported() -> None:
    outcome = shard(graph_of({"w": (5, 4)}), {"w": COL}, "tp=4", ShardParams(uneven="allow"))
    assert layouts(outcome) == {"w": "tp:S(0)"}
    assert [problem.text for problem in outcome.problems] == [
        "dim 0 of size 5 over tp=4 is uneven: 2,2,1,0; tp rank 3 holds nothing"
    ]


def test_an_uneven_number_of_experts_is_never_allowed() -> None:
    before = graph_of({"experts.w": (6, 4, 4)})
    plan, pass_ = {"experts.w": {"ep": "S(0)"}}, ShardParams(uneven="allow")
    text = refused(before, plan, "dp=4,ep=4", pass_)
    assert "6 experts cannot be shared by ep=4: E = 6, ep = 4, 6 % 4 = 2" in text
    assert "use an ep of 1, 2, 3, 6" in text


def test_an_uneven_cut_of_heads_names_the_count_even_where_uneven_is_allowed() -> None:
    before = graph_of({"attn.q_proj.weight": (18, 8)}, attributes={"attn": {"num_heads": 6}})
    text = refused(before, {"attn.q_proj.weight": COL}, "tp=4", ShardParams(uneven="allow"))
    assert "heads cannot be cut by tp=4: 6 % 4 = 2 (num_heads)" in text
    assert "use a tp of 1, 2, 3, 6" in text


def test_nothing_cut_while_tp_is_active_is_an_error() -> None:
    before = graph_of({"w": (4, 4), "v": (4, 4)})
    text = refused(before, ShardingPlan({"w": WHOLE}, default="replicate"))
    assert "0 of 2 parameters sharded, and tp is 2: no rule of the plan cuts anything" in text


def test_nothing_cut_because_the_rule_that_cuts_is_refused_is_told_apart() -> None:
    text = refused(graph_of({"w": (4, 4)}), {"w": {"tp": "S(2)"}})
    assert "cuts dim 2 of a tensor of 2 dims" in text
    assert "0 of 1 parameters sharded, and tp is 2: no rule that cuts can be applied" in text


def test_nothing_cut_is_pointed_out_where_rules_say_of_all_that_they_are_whole() -> None:
    outcome = shard(graph_of({"w": (4, 4)}), {"w": WHOLE})
    assert layouts(outcome) == {"w": "R"}
    assert [problem.text for problem in outcome.problems] == [
        "0 of 1 parameters sharded, and tp is 2: rules say of all that they are whole"
    ]


def test_nothing_cut_while_tp_is_active_may_be_allowed() -> None:
    outcome = shard(graph_of({"w": (4, 4)}), {"w": WHOLE}, "tp=2", ShardParams(nothing="allow"))
    assert layouts(outcome) == {"w": "R"}


def test_a_dim_that_the_parameter_does_not_have_is_refused() -> None:
    text = refused(graph_of({"w": (4,)}), {"w": ROW})
    assert "cuts dim 1 of a tensor of 1 dim" in text


@pytest.mark.parametrize("cls", ["torch.nn.modules.normalization.RMSNorm", "my.LlamaRMSNorm"])
def test_a_norm_that_is_cut_is_refused(cls: str) -> None:
    before = graph_of({"q_norm.weight": (8,), "up.weight": (8, 4)}, classes={"q_norm": cls})
    text = refused(before, {"**": COL})
    assert "q_norm.weight, rule 1: a norm cannot be cut" in text


def test_a_norm_with_a_row_a_head_may_be_cut_on_its_heads() -> None:
    before = graph_of({"q_norm.weight": (8, 4)}, classes={"q_norm": "cohere.CohereLayerNorm"})
    assert layouts(shard(before, {"**": COL})) == {"q_norm.weight": "tp:S(0)"}
