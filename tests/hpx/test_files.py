"""Files are written whole or not at all, under any name and with any text."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpx._files import write_bytes, write_text
from hpx.errors import UsageError


def test_a_file_of_the_longest_name_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    assert write_text(path, "text").read_text() == "text"


def test_a_name_that_is_too_long_is_an_error_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write .*: File name too long"):
        write_text(tmp_path / ("x" * 256), "text")


def test_an_interrupt_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_text(tmp_path / "run.json", "old")

    def interrupted(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    path = write_text(tmp_path / "run.json", "old")
    path.chmod(0o640)
    write_bytes(path, b"new")
    assert path.stat().st_mode & 0o777 == 0o640


def test_what_is_no_character_is_written_escaped(tmp_path: Path) -> None:
    assert write_text(tmp_path / "a", "\udcff ö").read_text(encoding="utf-8") == "\\udcff ö"
