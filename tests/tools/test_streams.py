"""What becomes of the answers of a command whose streams are full, closed or of few characters."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.tools.commands import LLAMA, PROGRAM, program_of

VIZ = "import sys; from hpx.tools.viz import main; sys.exit(main())"

PLAN = """\
version: 1
default: replicate
params:
  "größe": {tp: S(0)}
"""
FACTORY = """\
from torch import nn

def make():
    model = nn.Module()
    model.register_parameter("größe", nn.Parameter(nn.Linear(4, 4).weight))
    return model
"""


def shell(command: list[str], redirection: str) -> subprocess.CompletedProcess[str]:
    line = ["bash", "-c", f'"$@" {redirection}', "bash", *command]
    return subprocess.run(line, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "command"),
    [("hpx", program_of(PROGRAM, "passes")), ("hpx-viz", program_of(VIZ, LLAMA))],
)
def test_an_answer_that_cannot_be_written_is_one_line(name: str, command: list[str]) -> None:
    done = shell(command, "> /dev/full")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"{name}: error: cannot write to stdout: No space left on device"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [program_of(PROGRAM, "passes"), program_of(VIZ, LLAMA)])
def test_a_closed_stdout_is_one_that_nobody_reads(command: list[str]) -> None:
    done = shell(command, ">&-")
    assert done.returncode == 0
    assert "Error" not in done.stderr


@pytest.mark.parametrize("redirection", ["2>&-", "2> /dev/full"])
def test_an_error_that_nobody_can_read_keeps_its_exit_code(redirection: str) -> None:
    done = shell(program_of(PROGRAM, "passes", "no-such-pass"), redirection)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("form", [[], ["--json"], ["-v"]])
def test_names_of_any_characters_are_printed_on_any_terminal(
    tmp_path: Path, form: list[str]
) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN, encoding="utf-8")
    (tmp_path / "umlaut.py").write_text(FACTORY, encoding="utf-8")
    command = program_of(PROGRAM, "run", "umlaut:make", "--mesh", "tp=2", "--plan", "plan.yaml")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [*command, *form],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if form == ["--json"]:
        assert json.loads(done.stdout)["params"][0]["name"] == "größe"
    else:
        assert r"gr\xf6\xdfe" in done.stdout


def test_a_file_name_that_is_no_text_is_an_error_in_one_line() -> None:
    done = subprocess.run(
        [*program_of(PROGRAM, "explain"), b"\xff\xfe.json", "a"], capture_output=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == b"hpx: error: no such file: \\udcff\\udcfe.json\n"


HOSTILE = """\
from torch import nn

def make():
    model = nn.Module()
    model.register_parameter("a\\x1b[31m\\nb\\u202e", nn.Parameter(nn.Linear(4, 4).weight))
    return model
"""


def test_no_name_moves_the_cursor_or_ends_a_line(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN.replace("größe", "**"), encoding="utf-8")
    (tmp_path / "hostile.py").write_text(HOSTILE, encoding="utf-8")

    def hpx(*arguments: str) -> str:
        done = subprocess.run(
            program_of(PROGRAM, *arguments),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    name = r"a\x1b[31m\nb\u202e"
    run = ("run", "hostile:make", "--mesh", "tp=2", "--plan", "plan.yaml", "-o", "run.json", "-v")
    outputs = [hpx(*run), hpx("explain", "run.json", "x")]
    assert any(line.startswith(f"{name}  ") for line in outputs[0].splitlines())
    assert set("".join(outputs)) & set("\x1b\u202e") == set()
