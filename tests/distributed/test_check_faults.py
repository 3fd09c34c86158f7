"""Each fault that a sharded model can have is noticed, with its module and the pass that did it."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

import hpx
from hpx.numeric.pool import Pool
from hpx.numeric.report import Blame, Report
from hpx.pipeline import Pass
from tests.distributed import faults
from tests.distributed.configs import config_file

TINY = "hpx.bundled:tiny_llama"


def checked(model: object, pool: Pool, *broken: Pass) -> Report:
    return hpx.check(model, mesh="tp=2", pipeline=["@run", *broken], pool=pool)  # type: ignore[arg-type]


def first(report: Report, by: str) -> Blame:
    """What the report blames, if the pass is among those it names."""
    assert not report.ok
    assert report.blame is not None
    assert by in report.blame.passes, report
    return report.blame


def test_undivided_heads_fail_in_their_attention(gloo: Pool) -> None:
    report = checked(TINY, gloo, faults.UndividedHeads())
    found = first(report, "undivided-heads")
    assert report.verdict == "failed"
    assert found.module == "model.layers.0.self_attn"
    assert "bundled_modules.py:" in found.what


def test_a_bias_added_twice_shows_in_the_output_of_its_layer(gloo: Pool, tmp_path: Path) -> None:
    config = config_file(tmp_path, "llama", mlp_bias=True)
    found = first(checked(config, gloo, faults.BiasOnEveryRank()), "bias-on-every-rank")
    assert (found.module, found.direction) == ("model.layers.1.mlp.down_proj", "forward")
    assert "model.layers.1.mlp.down_proj.bias" in found.parameters


def test_a_missing_reduction_shows_in_the_output_of_its_layer(gloo: Pool) -> None:
    found = first(checked(TINY, gloo, faults.NoReduction()), "no-reduction")
    assert (found.module, found.direction) == ("model.layers.1.self_attn.o_proj", "forward")


def test_a_missing_reduction_of_a_gradient_shows_in_backward_alone(gloo: Pool) -> None:
    report = checked(TINY, gloo, faults.NoCopy())
    found = first(report, "no-copy")
    assert (found.module, found.direction) == ("model.layers.1.mlp", "backward")
    assert report.largest("output") <= report.tolerance


def test_a_padding_index_on_shifted_ids_shows_in_the_gradient_of_the_table(
    gloo: Pool, tmp_path: Path
) -> None:
    config = config_file(tmp_path, "llama", pad_token_id=3)
    found = first(checked(config, gloo, faults.PaddingOnShiftedIds()), "padding-on-shifted-ids")
    assert (found.module, found.direction) == ("model.embed_tokens", "backward")
    assert found.parameters == ("model.embed_tokens.weight",)


def test_a_broken_tie_is_refused_before_anything_runs(gloo: Pool, tmp_path: Path) -> None:
    config = config_file(tmp_path, "gemma2")
    with pytest.raises(hpx.HpxError, match=r"lm_head\.weight") as caught:
        checked(config, gloo, faults.BrokenTie())
    assert "faults:broken_tie by pass broken-tie" in str(caught.value)


def test_a_wrong_kv_group_shows_in_its_projection(gloo: Pool) -> None:
    found = first(checked(TINY, gloo, faults.WrongGroup()), "wrong-group")
    assert (found.module, found.direction) == ("model.layers.1.self_attn.k_proj", "forward")


def test_a_head_norm_without_its_reduction_shows_in_its_gradient(
    gloo: Pool, tmp_path: Path
) -> None:
    config = config_file(tmp_path, "qwen3")
    report = checked(config, gloo, faults.NoNormReduction())
    found = first(report, "no-norm-reduction")
    assert (found.module, found.direction) == ("model.layers.1.self_attn.k_norm", "backward")
    assert report.largest("output") <= report.tolerance


def test_a_wrong_packed_order_shows_in_its_attention(gloo: Pool, tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    more = {"num_hidden_layers": 2, "vocab_size": 48, "max_position_embeddings": 64}
    config = config_file(tmp_path, "gpt_neox", **sizes, **more)
    saved = hpx.plan(config, "tp=2").to_json()
    packed = cast(list[dict[str, object]], saved["packed"])
    assert [entry["repeat"] for entry in packed] == [4]
    packed[0]["repeat"] = 1  # q, k and v one after the other: they stand head by head
    wrong = hpx.ShardingPlan.from_json(saved)
    report = hpx.check(config, wrong, "tp=2", shrink=False, pool=gloo)
    found = first(report, "pack-fused")
    assert (found.module, found.direction) == ("gpt_neox.layers.0.attention", "forward")
    assert "gpt_neox.layers.0.attention.query_key_value.weight" in found.parameters


def test_a_vector_of_one_number_a_head_that_stays_whole_fails_in_its_attention(gloo: Pool) -> None:
    plan = hpx.ShardingPlan(
        {"attn.{q,k,v}_proj.weight": {"tp": "S(0)"}, "attn.o_proj.weight": {"tp": "S(1)"}},
        default="replicate",
    )
    report = hpx.check(faults.with_loss, plan, "tp=2", pool=gloo)
    assert report.verdict == "failed"
    assert report.blame is not None
    assert report.blame.module == "attn"
    assert "faults.py:" in report.blame.what
    assert "attn.sinks" in report.blame.parameters
    assert "shard-params" in report.blame.passes  # as no rule matches it
    assert any("sinks" in problem.text for problem in report.run.problems)


def test_without_a_fault_the_same_models_are_equal(gloo: Pool, tmp_path: Path) -> None:
    for family, changes in (("llama", {"mlp_bias": True, "pad_token_id": 3}), ("qwen3", {})):
        checked(config_file(tmp_path, family, **changes), gloo).raise_if_different()
    hpx.check(faults.with_loss, mesh="tp=2", pool=gloo).raise_if_different()
