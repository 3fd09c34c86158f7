"""``hpx run --dataflow``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hpx
from hpx import bundled
from hpx.tools import viz
from hpx.tools.cli import main

PLAN = str(Path(__file__).parents[2] / "docs" / "examples" / "tiny-llama" / "plan.yaml")


def test_a_run_has_the_edges_and_says_how_they_were_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "run.json")
    arguments = ["hpx.bundled:tiny_llama", "--plan", PLAN, "--dataflow", "-o", path]
    assert main(["run", *arguments]) == 0
    assert "36 dataflow edges by torch.export" in capsys.readouterr().err
    assert len(hpx.Run.load(path).graph.feeds) == 36


def test_a_checkpoint_has_nothing_to_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.pt"
    torch.save(bundled.tiny_llama().state_dict(), path)
    assert main(["run", str(path), "--plan", PLAN, "--dataflow"]) == 2
    assert "has no code to trace" in capsys.readouterr().err


def test_hpx_viz_traces_what_it_draws(tmp_path: Path) -> None:
    path = tmp_path / "flow.dot"
    assert viz.main(["hpx.bundled:tiny_llama", "--dataflow", "-o", str(path)]) == 0
    assert path.read_text().count("tooltip=dataflow") == 7


def test_hpx_viz_says_that_a_run_was_not_traced(tmp_path: Path) -> None:
    run, path = str(tmp_path / "run.json"), tmp_path / "flow.dot"
    assert main(["run", "hpx.bundled:tiny_llama", "--plan", PLAN, "-o", run]) == 0
    assert viz.main([run, "--dataflow", "-o", str(path)]) == 0
    assert "it was not traced" in path.read_text()
