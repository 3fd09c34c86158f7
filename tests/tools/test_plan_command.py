"""``hpx plan``: a derived or translated plan as a file, and a plan beside the derived one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpx import Run, ShardingPlan
from tests.tools.commands import MESH, MOE, Command


def test_a_derived_plan_is_printed_with_the_command_that_made_it(run_hpx: Command) -> None:
    code, out, _ = run_hpx("plan", MOE, "--mesh", MESH)
    assert code == 0
    assert out.startswith(f"# hpx plan {MOE} --mesh {MESH}\nversion: 1\nmesh: {MESH}\n")
    assert ShardingPlan.from_text(out).mesh == MESH


def test_a_written_plan_runs_as_it_is(run_hpx: Command, tmp_path: Path) -> None:
    plan, run = tmp_path / "plan.yaml", tmp_path / "run.json"
    assert run_hpx("plan", MOE, "--mesh", MESH, "-o", plan)[:2] == (0, "")
    assert run_hpx("run", MOE, "--plan", plan, "-p", "@run", "-o", run)[0] == 0
    text = str(Run.load(run).explain("model.layers.0.mlp.experts.gate_proj"))
    assert "2 of 8 experts per rank (from structure)" in text
    assert f"{plan}:" in text


def test_json_is_the_plan_with_the_source_of_every_rule(run_hpx: Command) -> None:
    _, out, _ = run_hpx("plan", MOE, "--mesh", MESH, "--json")
    assert {rule["source"] for rule in json.loads(out)["params"]} == {"structure", "names"}


def test_a_plan_without_a_mesh_is_wrong_use(run_hpx: Command) -> None:
    code, out, err = run_hpx("plan", MOE)
    assert (code, out) == (2, "")
    assert "there is no mesh" in err


def test_a_plan_that_cuts_nothing_says_so_and_runs(
    run_hpx: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    code = "from torch import nn\ndef norms(): return nn.Sequential(nn.LayerNorm(8))\n"
    (tmp_path / "nothing_to_cut.py").write_text(code)
    plan = tmp_path / "plan.yaml"
    model = "nothing_to_cut:norms"
    code_, _, err = run_hpx("plan", model, "--mesh", "tp=2", "-o", plan)
    assert code_ == 0
    assert f"warning: nothing of {model} is cut on tp=2: each rule says why" in err
    code_, out, _ = run_hpx("run", model, "--plan", plan)
    assert code_ == 0
    assert "0 of 2 parameters sharded, and tp is 2: rules say of all that they are whole" in out


def test_a_plan_that_cuts_something_has_no_warning(run_hpx: Command) -> None:
    assert "warning" not in run_hpx("plan", MOE, "--mesh", MESH)[2]


def test_a_dictionary_of_parallelize_module_is_translated(run_hpx: Command, tmp_path: Path) -> None:
    given = tmp_path / "styles.json"
    styles = {f"layers.*.self_attn.{name}_proj": "ColwiseParallel" for name in ("q", "k", "v")} | {
        "layers.*.self_attn.o_proj": "RowwiseParallel"
    }
    given.write_text(json.dumps(styles))
    code, out, _ = run_hpx("plan", MOE, "--mesh", MESH, "--from-tp-plan", given)
    assert code == 0
    assert '"model.layers.*.self_attn.{q,k,v}_proj.weight":\n    layout: {tp: S(0)}' in out


def test_a_model_that_ships_a_tp_plan_is_translated(run_hpx: Command, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama", **sizes, **heads}))
    code, out, _ = run_hpx("plan", config, "--mesh", "tp=2", "--from-tp-plan", config)
    assert code == 0
    assert "reason: rowwise (in the given plan)" in out


def test_a_model_that_ships_none_is_wrong_use(run_hpx: Command) -> None:
    code, _, err = run_hpx("plan", MOE, "--mesh", MESH, "--from-tp-plan", MOE)
    assert code == 2
    assert "ships no tp plan" in err


def test_a_check_says_where_a_plan_differs_from_the_derived_one(
    run_hpx: Command, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.yaml"
    run_hpx("plan", MOE, "--mesh", MESH, "-o", plan)
    _, out, _ = run_hpx("plan", MOE, "--check", plan)
    assert "other than the derived plan" not in out
    text = plan.read_text()
    start = text.index('"lm_head.weight"')
    plan.write_text(text[:start] + text[start:].replace("{tp: S(0)}", "replicate", 1))
    _, out, _ = run_hpx("plan", MOE, "--check", plan)
    assert "other than the derived plan (1)" in out
    assert "info: lm_head.weight: the plan says R, the derived one tp:S(0): vocab parallel" in out


@pytest.mark.parametrize("more", [["--all"], ["--filter", "**"]])
def test_options_of_the_table_need_a_check(more: list[str], run_hpx: Command) -> None:
    code, _, err = run_hpx("plan", MOE, "--mesh", MESH, *more)
    assert code == 2
    assert "--filter and --all are for the table" in err
