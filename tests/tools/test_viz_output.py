"""Where the answer of `hpx-viz` goes, and in which format."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.tools.commands import LLAMA, Command


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.txt", b"CausalLM"), ("a.dot", b"digraph"), ("a.svg", b"<?xml"), ("a.png", b"\x89PNG")],
)
def test_the_format_follows_the_suffix(
    hpx_viz: Command, run_file: Path, tmp_path: Path, name: str, start: bytes
) -> None:
    code, out, err = hpx_viz(run_file, "-o", tmp_path / name)
    assert (code, out) == (0, "")
    assert err == f"hpx-viz: wrote {tmp_path / name}\n"
    assert (tmp_path / name).read_bytes().startswith(start)


def test_the_format_can_be_named(hpx_viz: Command, tmp_path: Path) -> None:
    code, _, err = hpx_viz(LLAMA, "-f", "dot", "-o", tmp_path / "picture", "-q")
    assert (code, err) == (0, "")
    assert (tmp_path / "picture").read_text().startswith("digraph")


def test_a_dash_is_stdout(hpx_viz: Command) -> None:
    code, out, _ = hpx_viz(LLAMA, "-f", "dot", "-o", "-")
    assert code == 0
    assert out.startswith("digraph")


def test_verbose_says_how_long_it_took(hpx_viz: Command) -> None:
    assert re.search(r"read in .* s, drawn in .* s", hpx_viz(LLAMA, "-v")[2])


def test_json_and_html_are_written(hpx_viz: Command, run_file: Path, tmp_path: Path) -> None:
    code, out, _ = hpx_viz(run_file, "-f", "json")
    assert (code, json.loads(out)["schema"]) == (0, "hpx.viz/1")
    assert hpx_viz(run_file, "-o", tmp_path / "a.html")[0] == 0
    assert (tmp_path / "a.html").read_text().lower().startswith("<!doctype html>")


def test_the_built_in_engine_needs_no_graphviz(hpx_viz: Command, run_file: Path) -> None:
    code, out, _ = hpx_viz(run_file, "-f", "svg", "--engine", "builtin")
    assert (code, out.startswith("<svg")) == (0, True)


def test_a_failure_leaves_an_existing_output_as_it_was(
    hpx_viz: Command, run_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")
    assert hpx_viz(run_file, "--focus", "no.such", "-o", path)[0] == 2
    assert path.read_text() == "before"


def test_nothing_is_opened_unless_asked_for(
    hpx_viz: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("typer.launch", opened.append)
    path = tmp_path / "a.html"
    assert hpx_viz(LLAMA, "-o", path)[0] == 0
    assert opened == []
    assert hpx_viz(LLAMA, "-o", path, "--open")[0] == 0
    assert opened == [path.as_uri()]
