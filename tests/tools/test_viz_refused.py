"""What `hpx-viz` refuses or reports: one line and the right exit code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.tools.commands import LLAMA, Command


def test_a_step_that_is_not_there_is_wrong_use(hpx_viz: Command, run_file: Path) -> None:
    code, out, err = hpx_viz(run_file, "--step", "99")
    assert (code, out) == (2, "")
    assert "there is no step 99" in err


def test_a_rank_that_the_mesh_lacks_is_wrong_use(hpx_viz: Command, run_file: Path) -> None:
    code, _, err = hpx_viz(run_file, "--rank", "8")
    assert code == 2
    assert "0..7" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["no-such-file.pt"], 2, "there is no file or folder"),
        (["no.such:factory"], 2, "no"),
        ([LLAMA, "-o", "a.jpeg"], 2, "does not say its format"),
        ([LLAMA, "-o", "no/such/folder/a.svg"], 2, "there is no folder"),
        ([LLAMA, "--mesh", "tp=4"], 2, "--mesh needs a plan"),
        ([LLAMA, "--plan", "no.yaml", "--mesh", "tp=4"], 2, "no.yaml"),
        ([LLAMA, "--root", "model.layer"], 2, "did you mean model.layers"),
        ([LLAMA, "--rank", "0"], 2, "there is no mesh"),
        ([LLAMA, "--step", "1"], 2, "a model has no steps"),
        ([LLAMA, "--depth", "-1"], 2, "the depth is -1"),
        ([LLAMA, "--max-nodes", "0"], 2, "the number of nodes is 0"),
        ([LLAMA, "-o", "/"], 2, "error: / does not say its format: it has no suffix"),
        ([LLAMA, "--timeout", "0"], 2, "the time limit is 0 s"),
        ([LLAMA, "--timeout", "nan"], 2, "the time limit is nan s"),
        ([LLAMA, "--timeout", "inf"], 2, "the time limit is inf s"),
        ([], 2, "missing argument MODEL|RUN (see hpx-viz --help)"),
        ([LLAMA, "--steps", "1"], 2, "no such option --steps, did you mean --step?"),
        ([LLAMA, "-f", "gif"], 2, "'gif' is not one of 'text', 'json', 'html', 'svg'"),
    ],
)
def test_wrong_use_is_one_line_on_stderr(
    hpx_viz: Command, arguments: list[str], code: int, message: str
) -> None:
    found, out, err = hpx_viz(*arguments)
    assert (found, out) == (code, "")
    assert message in err
    assert err.startswith("hpx-viz: error: ")
    assert err.count("\n") == 1


def test_a_file_that_is_no_model_is_unreadable(hpx_viz: Command, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\xff" * 100)
    code, out, err = hpx_viz(path)
    assert (code, out) == (3, "")
    assert "Traceback" not in err


def test_a_damaged_run_is_unreadable(hpx_viz: Command, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"schema": "hpx.run/1"}')
    code, _, err = hpx_viz(path)
    assert code == 3
    assert "damaged run" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--open"], "--open needs a file"),
        (["--only", "unsharded,foo"], "only is 'foo'"),
        (["--columns", "shape,nam"], "did you mean name"),
        (["--fail-on", "unste"], "did you mean unset"),
        (["--axis", "tp"], "there is no mesh"),
        (["--engine", "builtin", "-f", "png", "-o", "a.png"], "the built-in outline is svg"),
        (["--diff", "no-such.pt"], "there is no file or folder"),
        (["--focus", "model.layers.{0"], "model.layers.{0"),
    ],
)
def test_wrong_use_of_an_option_is_one_line(
    hpx_viz: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = hpx_viz(LLAMA, "-q", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_json_nested_without_end_is_an_error(hpx_viz: Command, tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    code, out, err = hpx_viz(tmp_path / "deep.json")
    assert (code, out) == (3, "")
    assert "deep.json is no JSON" in err


def test_a_link_that_leads_nowhere_is_not_advised(hpx_viz: Command, tmp_path: Path) -> None:
    (tmp_path / "loop.pt").symlink_to(tmp_path / "loop.pt")
    code, _, err = hpx_viz(tmp_path / "loop.pt")
    assert code == 2
    assert "did you mean" not in err


class Evil:
    """Would make a file if it were loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def test_an_evil_pickle_is_drawn_reported_and_not_run(hpx_viz: Command, tmp_path: Path) -> None:
    torch.save({"a.w": torch.zeros(2, 3), "e": Evil(tmp_path / "made")}, tmp_path / "evil.pt")
    code, out, err = hpx_viz(tmp_path / "evil.pt")
    assert code == 0
    assert "a.w  [2, 3]" in out
    assert "1 foreign name, which could run code: posix.system" in err
    assert hpx_viz(tmp_path / "evil.pt", "--strict")[0] == 4
    torch.save({"a.w": torch.zeros(2, 3)}, tmp_path / "good.pt")
    _, _, err = hpx_viz(tmp_path / "good.pt", "--diff", tmp_path / "evil.pt")
    assert "evil.pt: the file holds 1 foreign name, which could run code: posix.system" in err
    assert not (tmp_path / "made").exists()
