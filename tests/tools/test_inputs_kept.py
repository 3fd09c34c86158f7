"""What a command reads is never what it writes over."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpx.tools import cli, viz
from tests.tools.commands import LLAMA, LLAMA_PLAN


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("input").write_text(LLAMA_PLAN)
    Path("link").symlink_to("input")


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", LLAMA, "--plan", "input", "-o", "input"],
        ["run", LLAMA, "--plan", "input", "-o", "link"],
        ["run", "./input", "--plan", "plan.yaml", "-o", "input"],
        ["plan", LLAMA, "--mesh", "tp=2", "--check", "input", "-o", "input"],
        ["plan", LLAMA, "--mesh", "tp=2", "--from-tp-plan", "input", "-o", "input"],
        ["plan", "input", "--mesh", "tp=2", "-o", "input"],
        ["check", "input", "--mesh", "tp=2", "-o", "input"],
        ["check", LLAMA, "--plan", "input", "-o", "input"],
    ],
)
def test_hpx_does_not_write_over_what_it_reads(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert "it is what is read. Fix: give -o another name" in capsys.readouterr().err
    assert Path("input").read_text() == LLAMA_PLAN


@pytest.mark.parametrize(
    "arguments",
    [
        ["input", "-f", "svg", "-o", "input"],
        [LLAMA, "--diff", "input", "-f", "json", "-o", "input"],
        [LLAMA, "--plan", "input", "-f", "text", "-o", "link"],
    ],
)
def test_hpx_viz_does_not_write_over_what_it_reads(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert viz.main(arguments) == 2
    assert "it is what is read. Fix: give -o another name" in capsys.readouterr().err
    assert Path("input").read_text() == LLAMA_PLAN


def test_a_picture_of_a_pipeline_is_not_drawn_over_its_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("run.dot").symlink_to("input")
    assert cli.main(["passes", "run.dot", "-o", "run.dot"]) == 2
    assert "it is what is read. Fix: give -o another name" in capsys.readouterr().err
    assert Path("input").read_text() == LLAMA_PLAN
