"""Which line of the model's code failed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from hpx.numeric.failing import ModuleFailedError, attempt

PROGRAM = """
from torch import nn

class Broken(nn.Module):
    def forward(self, x):
        return x.view(7)
"""


def failing_line(place: Path) -> str | None:
    """The line that is told of a model whose code lies there."""
    values: dict[str, type[nn.Module]] = {}
    exec(compile(PROGRAM, str(place), "exec"), values)
    model = values["Broken"]()
    with pytest.raises(ModuleFailedError) as caught:
        attempt("unsharded", model, lambda: model(torch.zeros(2)))
    return caught.value.line


def test_a_file_below_the_current_folder_is_named_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert failing_line(tmp_path / "mine.py") == "mine.py:6"


def test_a_file_elsewhere_is_named_by_its_last_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert failing_line(Path("/a/b/c/models/mine.py")) == "c/models/mine.py:6"
