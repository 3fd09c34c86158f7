"""Field cases H1 to H9: head counts on tensor-parallel ranks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hpx
from hpx import HpxError, Run, ShardingPlan
from tests.cases.models import ATTENTION_PLAN, Attention, holding, values_of


def run(attention: nn.Module, mesh: str, plan: ShardingPlan | None = None) -> Run:
    return hpx.run(holding(attention), plan or ShardingPlan(ATTENTION_PLAN), mesh)


def refused(attention: nn.Module, mesh: str, plan: ShardingPlan | None = None) -> str:
    before = values_of(attention)
    with pytest.raises(HpxError) as caught:
        run(attention, mesh, plan)
    after = attention.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    return str(caught.value)


def integers(done: Run, path: str = "attn") -> dict[str, int]:
    node = done.graph.find(path)
    assert node is not None
    return done.graph.module(node).attributes


def whys(done: Run, kind: str) -> list[str]:
    return [e.why for e in done.events if e.pass_ == "update-heads" and e.kind == kind]


@pytest.mark.parametrize(
    "known",
    [{"num_heads": 4, "num_key_value_heads": 1}, {"head_dim": 4}],
    ids=["counts", "head_dim"],
)
def test_h1_one_kv_head_on_tp_2_is_refused_before_a_weight_is_touched(
    known: dict[str, int],
) -> None:
    text = refused(Attention(4, 1, 4, 16, **known), "tp=2")
    assert "attn, rule 1: heads cannot be cut by tp=2: k_proj, v_proj would split a head" in text
    assert "1 % 2 = 1" in text
    assert "keep q, k, v and o of this module whole (replicate)" in text
    assert "or repeat its 1 kv head(s) to 2 in the model" in text


UNPAIRED = (
    "warning",
    (
        "its outputs are cut, and no rowwise matrix takes them: the module would give a part of its"
        " result on every rank"
    ),
)


class ViewsByN(nn.Module):
    """Reads its heads from ``self.n``, a name that nobody knows."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 8
        self.q = nn.Linear(16, 16)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, _ = hidden.shape
        query: torch.Tensor = self.q(hidden)
        return query.view(batch, length, self.n, 2)


def test_h2_a_declared_count_is_divided_and_logged() -> None:
    plan = ShardingPlan({"attn.q.weight": {"tp": "S(0)"}}, heads={"attn": ["n"]})
    done = run(ViewsByN(), "tp=4", plan)
    assert integers(done) == {"n": 2}
    assert whys(done, "set") == ["declared under heads: / tp 4: 8 -> 2"]
    assert [(problem.level, problem.text) for problem in done.problems] == [UNPAIRED]


def test_h2_an_undeclared_count_is_a_warning() -> None:
    done = run(ViewsByN(), "tp=4", ShardingPlan({"attn.q.weight": {"tp": "S(0)"}}))
    assert integers(done) == {"n": 8}
    assert [(problem.level, problem.text) for problem in done.problems] == [
        ("warning", "q is sharded on heads, no head count was rewritten"),
        UNPAIRED,
    ]


def test_h3_two_counts_are_one_error_with_the_sizes_that_divide_both() -> None:
    text = refused(Attention(16, 6, 4, 64, n_heads=16, n_kv_heads=6), "tp=4")
    assert "6 % 4 = 2 (n_kv_heads); beside 16 (n_heads). Fix: use a tp of 1, 2" in text
    assert len(text.splitlines()) == 2


def test_h4_two_counts_are_edited_and_two_deliberate_non_edits_logged() -> None:
    known = {"num_heads": 8, "num_key_value_heads": 4, "num_key_value_groups": 2, "head_dim": 4}
    done = run(Attention(8, 4, 4, 32, **known), "tp=2")
    assert integers(done) == {
        "num_heads": 4,
        "num_key_value_heads": 2,
        "num_key_value_groups": 2,
        "head_dim": 4,
    }
    assert whys(done, "set") == ["head count / tp 2: 8 -> 4", "head count / tp 2: 4 -> 2"]
    assert [why.partition(":")[0] for why in whys(done, "skip")] == [
        "num_key_value_groups = 2 stays",
        "head_dim = 4 stays",
    ]


@pytest.mark.parametrize("head_dim", [3, 4])
def test_h5_40_heads_on_tp_3_list_all_sizes_that_would_do(head_dim: int) -> None:
    attention = Attention(40, 40, head_dim, 120, num_attention_heads=40)
    text = refused(attention, "tp=3")
    assert "attn" in text
    assert "40 % 3 = 1 (num_attention_heads)" in text
    assert "use a tp of 1, 2, 4, 5, 8, 10, 20, 40" in text


class WithGate(Attention):
    """One more projection, with an output for each head."""

    def __init__(self) -> None:
        super().__init__(8, 8, 2, 16, num_heads=8)
        self.g_proj = nn.Linear(16, 8, bias=False)


def test_h6_a_gate_with_one_output_a_head_that_stays_whole_is_reported() -> None:
    plan = ShardingPlan(ATTENTION_PLAN, default="replicate")
    (problem,) = run(WithGate(), "tp=4", plan).problems
    assert problem.text == (
        "g_proj.weight is replicated, and its size 8 equals the head count of its owner,"
        " whose projections are cut on heads"
    )


def test_h7_both_names_of_a_count_are_divided() -> None:
    done = run(Attention(8, 8, 2, 16, n_heads=8, n_local_heads=8), "tp=4")
    assert integers(done) == {"n_heads": 2, "n_local_heads": 2}


class WithSinks(Attention):
    """A learned value a head."""

    def __init__(self) -> None:
        super().__init__(8, 8, 2, 16, num_heads=8)
        self.sinks = nn.Parameter(torch.zeros(8))


def test_h8_sinks_with_a_rule_are_cut_with_the_heads() -> None:
    done = run(WithSinks(), "tp=4", ShardingPlan({**ATTENTION_PLAN, "attn.sinks": {"tp": "S(0)"}}))
    sinks = done.by_name["attn.sinks"]
    assert sinks.local_shape == (2,)
    assert sinks.ranges(done.mesh, 2) == ((4, 6),)
    assert done.problems == ()


def test_h8_sinks_without_a_rule_say_that_their_size_is_the_head_count() -> None:
    done = run(WithSinks(), "tp=4", ShardingPlan(ATTENTION_PLAN, default="replicate"))
    assert "replicated: no rule; size equals num_heads 8" in str(done.explain("attn.sinks"))


def test_h9_heads_that_do_not_divide_are_caught_from_shapes() -> None:
    text = refused(Attention(6, 6, 8, 48, head_dim=8), "tp=4")
    assert "attn, rule 1" in text
    assert "q_proj" in text
    assert "6 % 4 = 2 (q heads: q_proj rows / head_dim 8)" in text
    assert "q_proj, k_proj, v_proj would split a head" in text
