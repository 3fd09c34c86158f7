"""Case N5 of the collected cases: a whole module in a file, for a run and for the viewer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from hpx.tools import cli, viz

PLAN = "mesh: tp=2\nparams:\n  '**': replicate\n"


class Noisy(nn.Linear):
    """A module that leaves a trace where it is loaded."""

    def __setstate__(self, state: dict[str, object]) -> None:
        Path("ran").touch()
        super().__setstate__(state)  # type: ignore[no-untyped-call]


@pytest.fixture(autouse=True)
def _pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.yaml").write_text(PLAN)
    torch.save(nn.Sequential(Noisy(2, 3)), "model.pt")
    Path("ran").unlink(missing_ok=True)


def test_n5_a_run_refuses_a_pickled_module_in_one_line_with_the_way_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["run", "model.pt", "--plan", "plan.yaml"]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert "refused model.pt: it needs torch.nn.modules.container.Sequential" in line
    assert "save model.state_dict() instead, or give package.module:factory" in line
    assert not Path("ran").exists()


def test_n5_the_viewer_reads_a_pickled_module_and_runs_nothing_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert viz.main(["model.pt", "--strict"]) == 0
    text = capsys.readouterr().out
    assert "Sequential" in text
    assert "[3, 2]" in text
    assert not Path("ran").exists()


def test_n5_the_viewer_loads_a_pickled_module_only_where_it_is_trusted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert viz.main(["model.pt", "--trust-pickle"]) == 0
    assert "Sequential" in capsys.readouterr().out
    assert Path("ran").exists()
