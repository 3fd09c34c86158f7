"""``hpx run``: model, schedule, layouts and log."""

from __future__ import annotations

import json
from pathlib import Path

from tests.tools.commands import LLAMA, MESH, MOE, MOE_PLAN, Command, error_line


def test_run_prints_model_schedule_layouts_and_log(run_hpx: Command, moe_plan: Path) -> None:
    answer = run_hpx("run", MOE, "--mesh", MESH, "--plan", moe_plan)
    assert answer.code == 0
    assert "65 parameters, 156,992 elements, 613.2 KiB" in answer.out
    assert "   4  shard-params       stack-experts provides experts-stacked" in answer.out
    (row,) = [line for line in answer.out.splitlines() if "experts.gate_proj" in line]
    assert row.split() == [
        *("model.layers.{0-1}.mlp.experts.gate_proj", "2", "[8,", "32,", "64]"),
        *("ep:S(0)", "expert", "[2,", "32,", "64]", "32.0", "KiB", "plan.yaml:7"),
    ]
    assert "log: " in answer.out


def test_run_saves_what_it_prints_as_json(run_hpx: Command, moe_plan: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    answer = run_hpx("run", MOE, "--mesh", MESH, "--plan", moe_plan, "-o", path, "--json")
    assert answer.json == json.loads(path.read_text())
    assert f"hpx: wrote {path}" in answer.err


def test_the_mesh_of_the_plan_is_used_where_none_is_given(run_hpx: Command, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(MOE_PLAN.replace("version: 1", f"version: 1\nmesh: {MESH}"))
    assert run_hpx("run", MOE, "--plan", path, "--json").json["mesh"]["text"] == MESH


def test_no_mesh_at_all_is_a_usage_error(run_hpx: Command, moe_plan: Path) -> None:
    assert "there is no mesh" in error_line(run_hpx("run", MOE, "--plan", moe_plan), 2)


def test_problems_come_first(run_hpx: Command, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("version: 1\nparams:\n  lm_head.weight: {tp: S(0)}\ndefault: replicate\n")
    answer = run_hpx("run", LLAMA, "--mesh", "tp=2,ep=2", "--plan", path)
    assert answer.out.startswith("problems (")


def test_uneven_layouts_list_sizes_and_empty_ranks(run_hpx: Command, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(
        'version: 1\nparams:\n  "**.embed_tokens.weight": {tp: S(1)}\ndefault: replicate\n'
    )
    pipeline = "@default, shard-params{uneven=allow}"
    answer = run_hpx("run", LLAMA, "--mesh", "tp=63", "--plan", path, "-p", pipeline)
    assert "model.embed_tokens.weight [256, 64], tp on dim 1: 2, 2," in answer.out
    assert "empty at tp=32 and tp=33" in answer.out


def test_verbose_prints_every_event(run_hpx: Command, moe_plan: Path) -> None:
    answer = run_hpx("run", MOE, "--mesh", MESH, "--plan", moe_plan, "-v")
    events = [
        line for line in answer.out.splitlines() if line.startswith("  ") and ": set" not in line
    ]
    assert any("update-heads: num_heads: 8 -> 4: " in line for line in events)


def test_verbose_names_the_nodes_of_every_event(run_hpx: Command, moe_plan: Path) -> None:
    answer = run_hpx("run", MOE, "--mesh", MESH, "--plan", moe_plan, "-v")
    lines = answer.out.splitlines()
    (at,) = [i for i, line in enumerate(lines) if "update-heads: num_heads: 8 -> 4: " in line]
    assert lines[at + 1] == "      model.layers.{0-1}.self_attn"


def test_a_step_that_nothing_has_to_precede_says_so(run_hpx: Command, moe_plan: Path) -> None:
    answer = run_hpx("run", MOE, "--mesh", MESH, "--plan", moe_plan)
    assert "   1  tie-weights        nothing has to run before it" in answer.out


def test_the_given_order_is_only_verified(run_hpx: Command, moe_plan: Path) -> None:
    pipeline = "shard-params, stack-experts, tie-weights"
    arguments = ("run", MOE, "--mesh", MESH, "--plan", moe_plan, "-p", pipeline)
    assert run_hpx(*arguments).code == 0
    assert "the given order is wrong" in error_line(run_hpx(*arguments, "--order", "given"), 2)
