"""The command line as a whole: help, version, wrong use, and what a process of it does."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import hpx
from hpx.run import Run
from tests.tools.commands import MOE, PROGRAM, STACKED, Answer, Command, program_of


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["frob"], "no such command 'frob' (see hpx --help)"),
        (["exlpain"], "no such command 'exlpain', did you mean explain? (see hpx --help)"),
        (["explain"], "missing argument RUN (see hpx explain --help)"),
        (["explain", "a"], "missing argument NAME (see hpx explain --help)"),
        (["run", "x"], "missing option --plan (see hpx run --help)"),
        (
            ["run", "x", "--plam", "y"],
            "no such option --plam, did you mean --plan? (see hpx run --help)",
        ),
        (["diff", "a", "b", "c"], "got unexpected extra argument c (see hpx diff --help)"),
        (
            ["run", "x", "--plan", "y", "--order", "z"],
            "invalid value for --order: 'z' is not one of 'auto', 'given' (see hpx run --help)",
        ),
    ],
)
def test_wrong_use_is_one_line_that_says_where_to_read_more(
    run_hpx: Command, arguments: list[str], said: str
) -> None:
    assert run_hpx(*arguments) == Answer(2, "", f"hpx: error: {said}\n")


def test_no_command_at_all_shows_the_help(run_hpx: Command) -> None:
    answer = run_hpx()
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("Usage: hpx [OPTIONS] COMMAND")


def test_the_version(run_hpx: Command) -> None:
    assert run_hpx("--version") == Answer(0, f"hpx {hpx.__version__}\n", "")


@pytest.mark.parametrize("command", ["run", "explain", "diff", "passes", "plan"])
def test_every_command_has_help_and_json(run_hpx: Command, command: str) -> None:
    answer = run_hpx(command, "--help")
    assert answer.code == 0
    assert "--json" in answer.out


LIGHT = """
import sys
from hpx.tools.cli import main
code = main({arguments})
heavy = {heavy} & set(sys.modules)
sys.exit(f"imported {{heavy}}" if heavy else code)
"""
HEAVY = {"torch", "networkx", "yaml", "rich", "transformers"}  # typer itself takes pydantic


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], {*HEAVY, "hpx.errors", "json"}),
        (["passes"], {*HEAVY, "hpx.passes.shard_params"}),
        (["explain", "RUN", STACKED, "--rank", "1"], HEAVY),
        (["explain", "RUN", "model.nrm"], HEAVY),
        (["diff", "RUN", "RUN"], HEAVY),
        (["passes", "shard-params"], {"torch", "transformers"}),
        (["run", MOE, "--plan", "no.yaml"], HEAVY),
        (["run", MOE, "--mesh", "tpp=2", "--plan", "no.yaml"], HEAVY),
    ],
)
def test_a_command_imports_nothing_heavy_that_it_does_not_need(
    saved: Path, arguments: list[str], heavy: set[str]
) -> None:
    given = [str(saved) if argument == "RUN" else argument for argument in arguments]
    command = program_of(LIGHT.format(arguments=given, heavy=heavy))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "imported" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_ends_the_command_quietly(saved: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = program_of(PROGRAM, "explain", saved, STACKED)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_an_interrupt_exits_with_130(
    run_hpx: Command, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "load", interrupted)
    answer = run_hpx("explain", saved, STACKED)
    assert answer.code == 130
    assert "Traceback" not in answer.err


def test_data_goes_to_stdout_alone(saved: Path) -> None:
    command = program_of(PROGRAM, "explain", saved, STACKED, "--json")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["name"] == STACKED
    assert done.stderr == ""
