"""Bad input is one line and the right exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.commands import MESH, MOE, Command, error_line


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        ("dp=2,tpp=2", "unknown axis 'tpp'"),
        ("dp=2,tp", "is not axis=size"),
        ("tp=2,ep=3", "ep=3 does not divide"),
        ("", "names no axis"),
    ],
)
def test_a_bad_mesh_is_wrong_use(run_hpx: Command, moe_plan: Path, mesh: str, said: str) -> None:
    assert said in error_line(run_hpx("run", MOE, "--mesh", mesh, "--plan", moe_plan), 2)


@pytest.mark.parametrize(
    "text",
    [
        "version: 1\nparms: {}\n",
        "version: 1\nparams: {a: R, a: R}\n",
        "version: 1\nparams:\n  *.weight: R\n",
        "version: 1\nparams:\n  {a,b}.weight: R\n",
        "",
        "[]",
        "version: 2\n",
    ],
)
def test_a_bad_plan_is_wrong_use_with_file_and_line(
    run_hpx: Command, moe_plan: Path, text: str
) -> None:
    moe_plan.write_text(text)
    line = error_line(run_hpx("run", MOE, "--mesh", MESH, "--plan", moe_plan), 2)
    assert str(moe_plan) in line


@pytest.mark.parametrize(
    ("pipeline", "said"),
    [
        ("shard-parms", "there is no pass 'shard-parms'"),
        ("@defualt", "there is no preset @defualt"),
        ("shard-params{uneven=alow}", "did you mean allow?"),
        ("shard-params{unevne=allow}", "did you mean uneven?"),
        ("shard-params{", "column"),
        ("shard-params", "requires"),
    ],
)
def test_a_bad_pipeline_is_wrong_use(
    run_hpx: Command, moe_plan: Path, pipeline: str, said: str
) -> None:
    answer = run_hpx("run", MOE, "--mesh", MESH, "--plan", moe_plan, "-p", pipeline)
    assert answer.code == 2
    assert answer.out == ""
    assert said in answer.err
    assert "Traceback" not in answer.err


def test_a_missing_file_is_wrong_use(run_hpx: Command, moe_plan: Path, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    assert "no plan file" in error_line(run_hpx("run", MOE, "--plan", nothing), 2)
    answer = run_hpx("run", f"{nothing}.safetensors", "--mesh", MESH, "--plan", moe_plan)
    assert "nothing.safetensors" in error_line(answer, 2)
    assert "no such file" in error_line(run_hpx("explain", nothing, "a"), 2)
    assert "no such file" in error_line(run_hpx("diff", nothing, nothing), 2)


def test_what_is_no_run_is_unreadable(run_hpx: Command, moe_plan: Path) -> None:
    assert "is not a saved run" in error_line(run_hpx("explain", moe_plan, "a"), 3)
    assert "is not a saved run" in error_line(run_hpx("diff", moe_plan, moe_plan), 3)


def test_what_is_no_checkpoint_is_unreadable(
    run_hpx: Command, moe_plan: Path, tmp_path: Path
) -> None:
    for name in ("x.safetensors", "x.pt", "config.json"):
        (tmp_path / name).write_text("nonsense")
        error_line(run_hpx("run", tmp_path / name, "--mesh", MESH, "--plan", moe_plan), 3)


def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    run_hpx: Command, moe_plan: Path, tmp_path: Path
) -> None:
    for place in (tmp_path / "no" / "run.json", tmp_path, tmp_path / ("x" * 300)):
        answer = run_hpx("run", "no.such:model", "--mesh", MESH, "--plan", moe_plan, "-o", place)
        assert f"cannot write {place}" in error_line(answer, 2)
