"""The programs under docs/examples that train, started as their reader starts them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SECONDS = 120
LIMIT = 1e-9
"""Of a deviation from the unsharded step, in float64."""


def torchrun(script: Path, folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Start 4 ranks; nothing of them is left after the time is over."""
    # A port of its own: the tutorial's reader starts one program at a time, the tests may not.
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    with subprocess.Popen(
        [*launcher, "--nproc-per-node", "4", str(script), *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        try:
            output, errors = started.communicate(timeout=SECONDS)
        finally:
            started.terminate()  # the launcher ends its ranks, which are in sessions of their own
    return started.returncode, output, errors


def without_deviations(text: str) -> str:
    return re.sub(r"off by \S+", "off by ...", text).strip()


@pytest.mark.slow
@pytest.mark.distributed
def test_the_step_of_the_tutorial_prints_what_it_shows_and_equals_the_unsharded_one(
    tmp_path: Path,
) -> None:
    code, output, errors = torchrun(DOCS / "examples" / "torchrun_step.py", tmp_path)
    assert code == 0, errors
    assert "Warning" not in errors
    off = [float(number) for number in re.findall(r"off by (\S+?),?(?:\s|$)", output)]
    assert len(off) == 3
    assert max(off) <= LIMIT
    shown = re.search(
        r"^\$ torchrun --nproc-per-node 4 torchrun_step.py\n(.*?)^```",
        (DOCS / "tutorial.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert shown is not None
    assert without_deviations(output) == without_deviations(shown[1])
    assert [path.name for path in tmp_path.iterdir()] == ["trained.pt"]


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("options", [("--compile",), ("--mesh", "tp=4", "--bf16")])
def test_the_loss_curves_of_the_training_example_are_equal(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    script = DOCS / "examples" / "train.py"
    code, output, errors = torchrun(script, tmp_path, "--steps", "4", "-o", "out.pt", *options)
    assert code == 0, errors
    assert "Warning" not in errors
    losses = [float(number) for number in re.findall(r"loss (\S+)  unsharded", output)]
    assert len(losses) == 4
    assert losses[-1] < losses[0] - 0.5  # it learns: equal curves of nothing would show nothing
    assert "loss and gradient norm are equal" in output
    assert [path.name for path in tmp_path.iterdir()] == ["out.pt"]
