"""Plans derived from checkpoints: names and shapes, and the config beside them."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
import torch

import hpx
from tests.hpx.derive.models import family

Q = "model.layers.*.self_attn.{q,k,v,o}_proj.weight"


def layouts(path: Path, mesh: str = "tp=2") -> dict[str, str]:
    plan = hpx.plan(path, mesh)
    done = hpx.run(path, plan, mesh)
    assert [problem for problem in done.problems if problem.level == "error"] == []
    return {param.name: str(param.layout) for param in done.params}


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_a_saved_model_with_its_config_gets_the_heads_of_the_model(
    name: str, tmp_path: Path
) -> None:
    with contextlib.redirect_stderr(io.StringIO()):
        family(name, "cpu").save_pretrained(tmp_path)
    found = layouts(tmp_path)
    attention = "model.layers.1.self_attn"
    assert found["model.embed_tokens.weight"] == "tp:S(0)"
    assert found[f"{attention}.q_proj.weight"] == found[f"{attention}.k_proj.weight"] == "tp:S(0)"
    assert found[f"{attention}.o_proj.weight"] == "tp:S(1)"


def test_experts_of_a_checkpoint_are_stacked_and_cut_on_ep(tmp_path: Path) -> None:
    with contextlib.redirect_stderr(io.StringIO()):
        family("mixtral", "cpu").save_pretrained(tmp_path)
    found = layouts(tmp_path, "dp=1,tp=2,ep=2")
    assert found["model.layers.0.block_sparse_moe.experts.w2"] == "ep:S(0)"


def test_names_alone_do_not_say_how_many_heads_there_are(tmp_path: Path) -> None:
    torch.save(family("llama", "cpu").state_dict(), tmp_path / "model.pt")
    plan = hpx.plan(tmp_path / "model.pt", "tp=2")
    (rule,) = [rule for rule in plan.params if rule.pattern == Q]
    assert str(rule.layout) == "R"
    assert "how many heads it has is not known; names and shapes do not tell" in (rule.reason or "")
    assert "keep the config.json beside the file" in (rule.reason or "")


def test_transposed_layers_of_a_checkpoint_are_cut_on_their_outputs(tmp_path: Path) -> None:
    torch.save(family("gpt2", "cpu").state_dict(), tmp_path / "model.pt")
    found = layouts(tmp_path / "model.pt")
    assert found["transformer.h.0.mlp.c_fc.weight"] == "tp:S(1)"
    assert found["transformer.h.0.mlp.c_fc.bias"] == "tp:S(0)"
    assert found["transformer.h.0.mlp.c_proj.weight"] == "tp:S(0)"
