"""`hpx-viz` as a process: programs that it lacks, pipes, terminals, imports."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.tools.commands import LLAMA, Command


def in_process(
    *arguments: str | Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "hpx.tools.viz", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **(environment or {})},
    )


@pytest.mark.parametrize("chosen", ["text", "json", "html", "svg", "dot"])
def test_the_same_input_gives_the_same_bytes_in_any_process(run_file: Path, chosen: str) -> None:
    first, second = (
        in_process(run_file, "-q", "-f", chosen, environment={"PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2")
    )
    assert first
    assert first == second


def test_no_graphviz_is_exit_5_and_dot_still_works(tmp_path: Path) -> None:
    (tmp_path / "pygraphviz.py").write_text("raise ImportError('not here')")
    gone = {"PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    done = in_process(LLAMA, "-q", "-o", tmp_path / "a.svg", environment=gone)
    assert done.returncode == 5
    assert done.stderr.count("\n") == 1
    assert "pip install pygraphviz" in done.stderr
    assert not (tmp_path / "a.svg").exists()
    assert in_process(LLAMA, "-o", tmp_path / "a.dot", environment=gone).returncode == 0


def test_a_renderer_that_hangs_is_exit_6_with_the_dot_kept(tmp_path: Path) -> None:
    program = tmp_path / "dot"
    program.write_text(f"#!{sys.executable}\nimport time; time.sleep(600)\n")
    program.chmod(0o755)
    done = in_process(
        *(LLAMA, "-o", tmp_path / "a.svg", "--timeout", "1"),
        environment={"PATH": str(tmp_path)},
    )
    assert done.returncode == 6
    assert "--timeout" in done.stderr
    assert (tmp_path / "a.svg.dot").read_text().startswith("digraph")


def test_a_closed_pipe_ends_quietly(run_file: Path) -> None:
    command = f"{sys.executable} -P -m hpx.tools.viz {run_file} --fold none | head -1"
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "CausalLM\n", "")


def test_drawing_a_saved_run_does_not_import_torch(run_file: Path) -> None:
    code = (
        "import sys; from hpx.tools.viz import main; "
        f"main([{str(run_file)!r}]); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0


def test_colour_is_for_terminals(hpx_viz: Command, run_file: Path) -> None:
    assert "\x1b" not in hpx_viz(run_file)[1]


@pytest.mark.parametrize(
    ("variable", "option", "coloured"),
    [("HPX_UNUSED", (), True), ("NO_COLOR", (), False), ("HPX_UNUSED", ("--no-color",), False)],
)
def test_colour_on_a_terminal_can_be_switched_off(
    run_file: Path, variable: str, option: tuple[str, ...], coloured: bool
) -> None:
    leader, follower = os.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    environment |= {"TERM": "xterm", variable: "1"}
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "hpx.tools.viz", str(run_file), *option],
        stdout=follower,
        env=environment,
    ) as child:
        os.close(follower)
        data = b""
        try:
            while chunk := os.read(leader, 65536):
                data += chunk
        except OSError:  # how a terminal says that the other side is gone
            pass
        finally:
            os.close(leader)
    assert child.returncode == 0
    assert (b"\x1b[38;5;214m" in data) is coloured
