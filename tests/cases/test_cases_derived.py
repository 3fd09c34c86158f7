"""Field cases H4, H7, E6 and F1 to F5 as a derived plan answers them, before anything runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpx
from hpx import HpxError, Run, ShardingPlan
from hpx.testing import prove_conservation
from hpx.tools.cli import main
from tests.hpx.derive.models import Attention, Expert, Layer, Stack, family, moe

MODELS = """\
from tests.hpx.derive.models import Attention, Expert, Layer, Stack, moe

def grouped():
    attention = Attention(heads=8, kv=4, size=4)
    attention.num_key_value_groups = 2
    return Stack([Layer(attention, Expert())])

def dense():
    return Stack([Layer(Attention(), Expert())])
"""


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "case_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    sys.modules.pop("case_models", None)


def derived(model: Stack, mesh: str) -> Run:
    """The derived plan, written, read back and run with collectives."""
    plan = ShardingPlan.from_text(hpx.plan(model, mesh).to_yaml(), "plan.yaml")
    return hpx.run(model, plan, mesh, "@run")


def integers(done: Run) -> dict[str, int]:
    node = done.graph.find("layers.0.mixer")
    assert node is not None
    return done.graph.module(node).attributes


def sources(done: Run, name: str, rank: int) -> list[str]:
    """The ranges of the original tensor that a rank holds, in its order."""
    lines = str(done.explain(name, rank=rank)).splitlines()
    return [line.split(f"{name} ")[1] for line in lines if line.startswith(f"  = {name} ")]


# -- heads -------------------------------------------------------------------------------------


def grouped() -> Stack:
    attention = Attention(heads=8, kv=4, size=4)
    vars(attention)["num_key_value_groups"] = 2
    return Stack([Layer(attention, Expert())])


def test_h4_a_derived_plan_edits_two_counts_and_leaves_two_integers() -> None:
    done = derived(grouped(), "tp=2")
    assert integers(done) == {
        "num_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "num_key_value_groups": 2,
    }
    logged = [(e.kind, e.key) for e in done.events if e.pass_ == "update-heads"]
    assert sorted(logged) == [
        ("set", "attributes.num_heads"),
        ("set", "attributes.num_key_value_heads"),
        ("skip", "attributes.head_dim"),
        ("skip", "attributes.num_key_value_groups"),
    ]


def test_h4_the_reason_of_a_derived_plan_has_both_counts_of_a_rank(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "case_models:grouped", "--mesh", "tp=2"]) == 0
    assert "a rank holds whole heads (4 of 8, and 2 of 4 for k and v)" in capsys.readouterr().out


def test_h7_both_names_of_a_count_become_2_under_a_derived_plan() -> None:
    attention = Attention(heads=8, kv=8, size=4)
    for name in ("num_heads", "num_key_value_heads", "head_dim"):
        delattr(attention, name)
    vars(attention).update(n_heads=8, n_local_heads=8)
    done = derived(Stack([Layer(attention, Expert())]), "tp=4")
    assert integers(done) == {"n_heads": 2, "n_local_heads": 2}
    assert str(done.by_name["layers.0.mixer.q_proj.weight"].layout) == "tp:S(0)"


# -- experts -----------------------------------------------------------------------------------


def test_e6_a_plan_derived_with_experts_is_refused_where_there_are_none(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "moe.yaml").write_text(hpx.plan(moe(), "dp=1,tp=2,ep=2").to_yaml())
    assert main(["plan", "case_models:dense", "--check", "moe.yaml"]) == 1
    out = capsys.readouterr().out
    assert "rule 'layers.*.feed.experts.{w1,w3,w2}' matches no parameter" in out


def test_e6_experts_that_a_plan_asks_for_and_the_model_lacks_are_an_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = hpx.plan(Stack([Layer(Attention(), Expert())]), "dp=1,tp=2").to_yaml()
    (folder / "asked.yaml").write_text(text + 'experts: ["layers.*.feed.experts"]\n')
    assert main(["plan", "case_models:dense", "--check", "asked.yaml"]) == 1
    assert "no experts at 'layers.*.feed.experts'" in capsys.readouterr().out
    optional = "@default, !stack-experts, stack-experts{optional=true}"
    assert main(["plan", "case_models:dense", "--check", "asked.yaml", "-p", optional]) == 0


def test_e6_expert_ranks_for_a_model_without_experts_are_pointed_out() -> None:
    (problem,) = derived(Stack([Layer(Attention(), Expert())]), "dp=2,tp=2,ep=4").problems
    assert problem.text == "the mesh has ep=4, and no parameter is sharded on ep"


# -- fused weights -----------------------------------------------------------------------------


def fused(name: str) -> Run:
    model = family(name)
    return hpx.run(model, hpx.plan(model, "tp=2"), "tp=2", "@run")


QKV = "model.layers.0.self_attn.qkv_proj.weight"
GATE_UP = "model.layers.0.mlp.gate_up_proj.weight"


def test_f1_a_rank_holds_its_heads_of_q_k_and_v_one_after_the_other() -> None:
    """4 query heads and 2 kv heads of 8 rows: q0 q1 k0 v0, and q2 q3 k1 v1."""
    done = fused("phi3")
    assert sources(done, QKV, 0) == ["[0:16, 0:32]", "[32:40, 0:32]", "[48:56, 0:32]"]
    assert sources(done, QKV, 1) == ["[16:32, 0:32]", "[40:48, 0:32]", "[56:64, 0:32]"]


def test_f2_a_rank_holds_the_same_channels_of_gate_and_up() -> None:
    done = fused("phi3")
    assert sources(done, GATE_UP, 0) == ["[0:32, 0:32]", "[64:96, 0:32]"]
    assert sources(done, GATE_UP, 1) == ["[32:64, 0:32]", "[96:128, 0:32]"]


EXPERTS = "model.layers.0.mlp.experts.gate_up_proj"
CUT_INSIDE = {
    "model.layers.*.mlp.experts.gate_up_proj": {"tp": "S(1)"},
    "model.layers.*.mlp.experts.down_proj": {"tp": "S(2)"},
}


def test_f3_stacked_gate_and_up_cut_on_dim_1_are_declared_by_part_or_refused() -> None:
    silent = ShardingPlan(CUT_INSIDE, default="replicate")
    with pytest.raises(HpxError, match="looks like a fused projection and is cut on dim 1"):
        hpx.run(family("mixtral"), silent, "tp=2")
    packed = {"**.experts.gate_up_proj": {"dim": 1, "parts": {"gate": 64, "up": 64}}}
    declared = ShardingPlan(CUT_INSIDE, default="replicate", packed=packed)
    done = hpx.run(family("mixtral"), declared, "tp=2")
    assert sources(done, EXPERTS, 1) == ["[0:4, 32:64, 0:32]", "[0:4, 96:128, 0:32]"]


def test_f3_a_derived_plan_never_cuts_inside_an_expert() -> None:
    layouts = {
        str(
            hpx.run(family("mixtral"), hpx.plan(family("mixtral"), mesh), mesh)
            .by_name[EXPERTS]
            .layout
        )
        for mesh in ("tp=2", "dp=1,tp=2,ep=2")
    }
    assert layouts == {"R", "ep:S(0)"}


@pytest.mark.parametrize("parts", [{"q": 32, "k": 16, "v": 8}, {"q": 31, "k": 17, "v": 16}])
def test_f4_declared_parts_are_checked_one_by_one(parts: dict[str, int]) -> None:
    rules = {"**.qkv_proj.weight": {"tp": "S(0)"}, "**.self_attn.o_proj.weight": {"tp": "S(1)"}}
    packed = {"**.qkv_proj.weight": {"dim": 0, "repeat": 1, "parts": parts}}
    plan = ShardingPlan(rules, default="replicate", packed=packed)
    with pytest.raises(HpxError, match="its packed parts cannot be cut like this"):
        hpx.run(family("phi3"), plan, "tp=2")


@pytest.mark.parametrize("name", ["gpt2", "phi3", "gpt_neox", "falcon"])
def test_f5_every_element_of_a_derived_plan_is_held_and_comes_back(name: str) -> None:
    model = family(name, "cpu")
    plan = hpx.plan(model, "tp=2")
    assert plan.packed
    assert prove_conservation(model, plan, "tp=2").ranks == 2
