"""``hpx explain`` and ``hpx diff``: questions to saved runs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.tools.commands import MESH, MOE, MOE_PLAN, STACKED, Answer, Command, error_line


def test_explain_answers_from_a_saved_run(run_hpx: Command, saved: Path) -> None:
    answer = run_hpx("explain", saved, STACKED, "--rank", 3)
    assert answer.code == 0
    assert answer.err == ""
    assert "from stack(model.layers.0.mlp.experts.{0-7}.gate_proj.weight)" in answer.out
    assert "experts 6..7 of 8" in answer.out


def test_explain_json_is_one_entry_with_events_and_tried(run_hpx: Command, saved: Path) -> None:
    record = run_hpx("explain", saved, STACKED, "--json").json
    (param,) = [p for p in json.loads(saved.read_text())["params"] if p["name"] == STACKED]
    assert {**param, "events": record["events"]}.items() <= record.items()
    assert record["tried"]


def test_explain_why_not(run_hpx: Command, saved: Path) -> None:
    answer = run_hpx("explain", saved, "model.norm.weight", "--why-not", "stack-experts")
    assert answer.out.startswith("stack-experts did nothing to model.norm.weight\n")


def test_explain_of_a_misspelt_name(run_hpx: Command, saved: Path) -> None:
    line = error_line(run_hpx("explain", saved, "model.nrm.weight"), 2)
    assert "did you mean model.norm.weight?" in line


def test_a_name_of_any_length_is_told_by_its_ends(run_hpx: Command, saved: Path) -> None:
    line = error_line(run_hpx("explain", saved, f"begin.{'x.' * 50_000}end"), 2)
    assert "'begin.x.x" in line
    assert "characters" in line
    assert "x.end' in" in line
    assert len(line) < 4100


def test_explain_takes_a_rank_or_a_pass(run_hpx: Command, saved: Path) -> None:
    answer = run_hpx("explain", saved, STACKED, "--rank", 0, "--why-not", "localize")
    assert "ask different things" in error_line(answer, 2)


def test_diff_of_equal_runs_exits_with_0(run_hpx: Command, saved: Path) -> None:
    assert run_hpx("diff", saved, saved) == Answer(0, "no difference\n", "")


def test_diff_of_different_runs_exits_with_1(
    run_hpx: Command, saved: Path, moe_plan: Path, tmp_path: Path
) -> None:
    moe_plan.write_text(
        MOE_PLAN.replace('"lm_head.weight": {tp: S(0)}', '"lm_head.weight": replicate')
    )
    other = tmp_path / "other.json"
    run_hpx("run", MOE, "--mesh", MESH, "--plan", moe_plan, "-o", other)
    answer = run_hpx("diff", saved, other)
    assert answer.code == 1
    assert "  layout: tp:S(0) -> R; rule: " in answer.out
    assert run_hpx("diff", saved, other, "--json").json["differs"]
