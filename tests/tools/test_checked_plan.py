"""What ``hpx plan --check`` says beside the table: sums, problems, the shape proof."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from hpx.tools.cli import main

PLAN = """\
version: 1
mesh: dp=2,tp=4
params:
  "**.{q,k,v}.weight": {tp: S(0)}
  "**.o.weight": {tp: S(1)}
default: replicate
"""
CODE = """\
import torch
from tests.hpx.prove.models import ByAttribute, HeadSize, Model

def wrong():
    return Model(ByAttribute())

def right():
    return Model(HeadSize()), (torch.zeros(1, 5, dtype=torch.int64),)

def unknown():
    class Two(Model):
        def forward(self, ids, more):
            return super().forward(ids)
    return Two(HeadSize())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "plan.yaml").write_text(PLAN)
    (tmp_path / "proved_models.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    sys.modules.pop("proved_models", None)


def checked(capsys: pytest.CaptureFixture[str], name: str, *options: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["plan", f"proved_models:{name}", "--check", "plan.yaml", *options])
    return code, capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], name: str, *options: str) -> Any:
    return json.loads(checked(capsys, name, "--json", *options)[1])


@pytest.mark.usefixtures("folder")
def test_a_plan_that_fits_is_proved_and_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = checked(capsys, "right")
    assert code == 0
    assert "shapes proved: 1 of 1 distinct regions (1 in all) ran" in out
    (row,) = [line for line in out.splitlines() if line.startswith("with FSDP over dp 2")]
    assert len(row.removeprefix("with FSDP over dp 2").split()) == 5 * 2
    assert "a token: forward, 1 all-reduce over tp" in out
    assert "needs gradient all-reduce over tp: no: 1 parameter: embed.weight" in out


@pytest.mark.usefixtures("folder")
def test_h2_a_count_that_nobody_divided_is_a_problem_and_exits_with_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out = checked(capsys, "wrong")
    assert code == 1
    assert "it reads n = 8, which nobody divided" in out
    assert 'hint: declare it under heads: in the plan: "layers.0": [n]' in out
    assert "the plan has problems" in out


@pytest.mark.usefixtures("folder")
def test_a_proof_can_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    record = as_json(capsys, "wrong", "--no-prove")
    assert record["proof"] is None
    assert "error" not in [problem["level"] for problem in record["problems"]]


@pytest.mark.usefixtures("folder")
def test_what_is_unproven_is_said_and_no_problem(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = checked(capsys, "unknown")
    assert code == 0
    assert "shapes unproven: 0 of 1 distinct regions" in out
    assert "its forward takes ids, more" in out


@pytest.mark.usefixtures("folder")
def test_the_sums_are_in_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    record = as_json(capsys, "right")
    assert record["memory"]["fsdp"]["data"] == {"dense": 2}
    assert record["communication"]["reductions"] == 1
    assert record["gradients"] == [{"names": ["embed.weight"], "count": 1, "needed": False}]
    assert record["proof"]["status"] == "proved"


@pytest.mark.usefixtures("folder")
def test_a_part_of_the_table_is_not_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    _, out = checked(capsys, "right", "--filter", "**.q.weight")
    assert "a rank holds" not in out


def test_a_checkpoint_is_checked_without_torch(folder: Path) -> None:
    tensors = {f"attn.{name}.weight": torch.zeros(32, 32) for name in "qkvo"}
    save_file(tensors, folder / "model.safetensors")
    program = (
        "import sys; from hpx.tools.cli import main;"
        "main(['plan', 'model.safetensors', '--check', 'plan.yaml']);"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True
    )
    assert (done.returncode, "a rank holds" in done.stdout) == (0, True), done.stderr


def test_a_checkpoint_has_no_code_and_its_shapes_are_unproven(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = {f"attn.{name}.weight": torch.zeros(32, 32) for name in "qkvo"}
    save_file(tensors, folder / "model.safetensors")
    capsys.readouterr()
    main(["plan", "model.safetensors", "--check", "plan.yaml"])
    said = "shapes unproven: it was read from files, and has no code to run"
    assert said in capsys.readouterr().out
    main(["plan", "model.safetensors", "--check", "plan.yaml", "--no-prove"])
    out = capsys.readouterr().out
    assert "a rank holds" in out
    assert "shapes unproven" not in out


def test_problems_as_json_have_a_check_and_numbers(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = as_json(capsys, "wrong")["problems"]
    shapes = next(problem for problem in problems if problem["check"] == "shapes")
    assert shapes["numbers"] == {"n": 8}
    assert all(set(p) >= {"level", "check", "text", "hint", "names", "numbers"} for p in problems)
