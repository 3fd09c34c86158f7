"""A folder for the files that a test saves."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is one of the test's own."""
    monkeypatch.chdir(tmp_path)
