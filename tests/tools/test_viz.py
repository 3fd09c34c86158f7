from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from hpx import bundled
from hpx.tools import viz

PLAN = """\
version: 1
mesh: dp=2,tp=4
params:
  "model.embed_tokens.weight": {tp: S(0)}
  "model.layers.*.self_attn.{q,k,v}_proj.weight": {tp: S(0)}
  "model.layers.*.self_attn.o_proj.weight": {tp: S(1)}
  "model.layers.*.mlp.{gate,up}_proj.weight": {tp: S(0)}
  "model.layers.*.mlp.down_proj.weight": {tp: S(1)}
  "model.layers.*.{input,post_attention}_layernorm.weight": replicate
  "model.norm.weight": replicate
  "lm_head.weight": {tp: S(0)}
"""
LLAMA = "hpx.bundled:tiny_llama"

Viz = Callable[..., tuple[int, str, str]]


@pytest.fixture
def hpx_viz(capfdbinary: pytest.CaptureFixture[bytes]) -> Viz:
    """Calls the command in this process: exit code, stdout, stderr."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        code = viz.main([str(argument) for argument in arguments])
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return call


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    return path


@pytest.fixture
def run_file(plan: Path, tmp_path: Path) -> Path:
    from hpx.run import run

    return run(LLAMA, plan, "dp=2,tp=4").save(tmp_path / "run.json")


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


def test_a_model_is_text_on_stdout(hpx_viz: Viz) -> None:
    code, out, err = hpx_viz(LLAMA)
    assert (code, err) == (0, "")
    assert re.search(r"layers\.0-1 x2 +Layer", out)
    assert "tp:S" not in out


def test_a_model_with_a_plan_shows_its_layouts(hpx_viz: Viz, plan: Path) -> None:
    code, out, _ = hpx_viz(LLAMA, "--plan", plan, "--mesh", "dp=2,tp=4")
    assert code == 0
    assert re.search(
        r"q_proj\.weight +\[64, 64\] +f32 +tp:S\(0\) +-> \[16, 64\] +shard-params", out
    )


def test_a_run_has_its_own_mesh_and_plan(hpx_viz: Viz, run_file: Path, plan: Path) -> None:
    code, out, _ = hpx_viz(run_file)
    assert code == 0
    assert "num_heads 8 -> 2" in out
    code, _, err = hpx_viz(run_file, "--plan", plan)
    assert code == 2
    assert "has its own mesh and plan" in err


def test_a_run_is_told_by_its_schema_whatever_its_layout(
    hpx_viz: Viz, run_file: Path, tmp_path: Path
) -> None:
    value = json.loads(run_file.read_text())
    other = tmp_path / "other.json"
    other.write_text(json.dumps(dict(reversed(value.items())), indent=1))
    assert hpx_viz(other)[:2] == hpx_viz(run_file)[:2]


def test_step_0_of_a_run_is_the_model_as_it_came(hpx_viz: Viz, run_file: Path) -> None:
    code, out, _ = hpx_viz(run_file, "--step", "0")
    assert code == 0
    assert "step 0, before the first pass" in out
    assert "num_heads 8 -> 2" not in out


def test_a_step_that_is_not_there_is_wrong_use(hpx_viz: Viz, run_file: Path) -> None:
    code, out, err = hpx_viz(run_file, "--step", "99")
    assert (code, out) == (2, "")
    assert "there is no step 99" in err


def test_a_rank_shows_index_ranges(hpx_viz: Viz, run_file: Path) -> None:
    code, out, _ = hpx_viz(run_file, "--rank", "5")
    assert code == 0
    assert re.search(r"q_proj\.weight.*\[16:32, 0:64\]", out)


def test_a_rank_that_the_mesh_lacks_is_wrong_use(hpx_viz: Viz, run_file: Path) -> None:
    code, _, err = hpx_viz(run_file, "--rank", "8")
    assert code == 2
    assert "0..7" in err


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.txt", b"CausalLM"), ("a.dot", b"digraph"), ("a.svg", b"<?xml"), ("a.png", b"\x89PNG")],
)
def test_the_format_follows_the_suffix(
    hpx_viz: Viz, run_file: Path, tmp_path: Path, name: str, start: bytes
) -> None:
    code, out, err = hpx_viz(run_file, "-o", tmp_path / name)
    assert (code, out) == (0, "")
    assert err == f"hpx-viz: wrote {tmp_path / name}\n"
    assert (tmp_path / name).read_bytes().startswith(start)


def test_the_format_can_be_named(hpx_viz: Viz, tmp_path: Path) -> None:
    code, _, err = hpx_viz(LLAMA, "-f", "dot", "-o", tmp_path / "picture", "-q")
    assert (code, err) == (0, "")
    assert (tmp_path / "picture").read_text().startswith("digraph")


def test_a_dash_is_stdout(hpx_viz: Viz) -> None:
    code, out, _ = hpx_viz(LLAMA, "-f", "dot", "-o", "-")
    assert code == 0
    assert out.startswith("digraph")


@pytest.mark.parametrize("chosen", ["text", "json", "html", "svg", "dot"])
def test_the_same_input_gives_the_same_bytes_in_any_process(run_file: Path, chosen: str) -> None:
    first, second = (
        in_process(run_file, "-q", "-f", chosen, environment={"PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2")
    )
    assert first
    assert first == second


def test_verbose_says_how_long_it_took(hpx_viz: Viz) -> None:
    assert re.search(r"read in .* s, drawn in .* s", hpx_viz(LLAMA, "-v")[2])


def test_a_checkpoint_shows_no_layouts(hpx_viz: Viz, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(bundled.tiny_moe().state_dict(), path)
    code, out, _ = hpx_viz(path)
    assert code == 0
    assert "experts.0-7 x8" in out
    assert "layouts:" not in out


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
        ([LLAMA, "--timeout", "0"], 2, "the time limit is 0 s"),
        ([LLAMA, "--timeout", "nan"], 2, "the time limit is nan s"),
        ([LLAMA, "--timeout", "inf"], 2, "the time limit is inf s"),
        ([], 2, "missing argument MODEL|RUN (see hpx-viz --help)"),
        ([LLAMA, "--steps", "1"], 2, "no such option --steps, did you mean --step?"),
        ([LLAMA, "-f", "gif"], 2, "'gif' is not one of 'text', 'json', 'html', 'svg'"),
    ],
)
def test_wrong_use_is_one_line_on_stderr(
    hpx_viz: Viz, arguments: list[str], code: int, message: str
) -> None:
    found, out, err = hpx_viz(*arguments)
    assert (found, out) == (code, "")
    assert message in err
    assert err.startswith("hpx-viz: error: ")
    assert err.count("\n") == 1


def test_a_file_that_is_no_model_is_unreadable(hpx_viz: Viz, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\xff" * 100)
    code, out, err = hpx_viz(path)
    assert (code, out) == (3, "")
    assert "Traceback" not in err


def test_a_damaged_run_is_unreadable(hpx_viz: Viz, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"schema": "hpx.run/1"}')
    code, _, err = hpx_viz(path)
    assert code == 3
    assert "damaged run" in err


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
    assert (tmp_path / "a.dot").read_text().startswith("digraph")


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


def test_colour_is_for_terminals(hpx_viz: Viz, run_file: Path) -> None:
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


def test_patterns_kinds_and_columns_reach_the_view(hpx_viz: Viz, run_file: Path) -> None:
    code, out, _ = hpx_viz(
        *(run_file, "--focus", "model.layers.*", "--ignore", "**.mlp", "--only", "unsharded,unset"),
        *("--columns", "shape,bytes", "--sort", "name"),
    )
    assert code == 0
    assert "shown       4 of 21 parameters: --focus model.layers.* --ignore **.mlp" in out
    assert re.search(r"input_layernorm\.weight +\[64\] +512 bytes\n", out)


def test_one_focused_parameter_shows_who_holds_what(
    hpx_viz: Viz, run_file: Path, tmp_path: Path
) -> None:
    code, out, _ = hpx_viz(run_file, "--focus", "lm_head.weight", "--rank", "5")
    assert code == 0
    assert re.search(r"> tp=1 +\[64:128, 0:64\] +\[64, 64\] +1, 5", out)
    assert hpx_viz(run_file, "--focus", "lm_head.weight", "-o", tmp_path / "who.svg")[0] == 0
    assert "tp=1" in (tmp_path / "who.svg").read_text()


def test_fail_on_is_exit_1_with_the_output_written(
    hpx_viz: Viz, run_file: Path, tmp_path: Path
) -> None:
    code, _, err = hpx_viz(run_file, "--fail-on", "unset,replicated>3", "-o", tmp_path / "a.txt")
    assert code == 1
    assert "hpx-viz: --fail-on: replicated>3: 5 parameters" in err
    assert (tmp_path / "a.txt").read_text().startswith("CausalLM")


def test_fail_on_looks_beyond_only(hpx_viz: Viz, run_file: Path) -> None:
    arguments = (run_file, "--only", "replicated", "--fail-on", "unsharded>5%")
    assert hpx_viz(*arguments)[0] == 0


def test_fail_on_is_met_by_what_is_focused_alone(hpx_viz: Viz, run_file: Path) -> None:
    arguments = (run_file, "--focus", "**.mlp", "--fail-on", "unsharded")
    assert hpx_viz(*arguments)[0] == 0


def test_a_difference_is_exit_1_and_none_is_0(hpx_viz: Viz, run_file: Path, tmp_path: Path) -> None:
    assert hpx_viz(run_file, "--diff", run_file)[0] == 0
    code, out, err = hpx_viz(LLAMA, "--diff", "hpx.bundled:tiny_moe")
    assert code == 1
    assert "Differences (a is the old side, b the new one)" in out
    assert "50 added, 6 removed" in err
    code, _, _ = hpx_viz(run_file, "--step", "0", "--diff", run_file, "-o", tmp_path / "a.svg")
    assert code == 1
    assert (tmp_path / "a.svg").exists()


def test_json_and_html_are_written(hpx_viz: Viz, run_file: Path, tmp_path: Path) -> None:
    code, out, _ = hpx_viz(run_file, "-f", "json")
    assert (code, json.loads(out)["schema"]) == (0, "hpx.viz/1")
    assert hpx_viz(run_file, "-o", tmp_path / "a.html")[0] == 0
    assert (tmp_path / "a.html").read_text().lower().startswith("<!doctype html>")


def test_the_built_in_engine_needs_no_graphviz(hpx_viz: Viz, run_file: Path) -> None:
    code, out, _ = hpx_viz(run_file, "-f", "svg", "--engine", "builtin")
    assert (code, out.startswith("<svg")) == (0, True)


def test_a_failure_leaves_an_existing_output_as_it_was(
    hpx_viz: Viz, run_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")
    assert hpx_viz(run_file, "--focus", "no.such", "-o", path)[0] == 2
    assert path.read_text() == "before"


def test_nothing_is_opened_unless_asked_for(
    hpx_viz: Viz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("typer.launch", opened.append)
    path = tmp_path / "a.html"
    assert hpx_viz(LLAMA, "-o", path)[0] == 0
    assert opened == []
    assert hpx_viz(LLAMA, "-o", path, "--open")[0] == 0
    assert opened == [path.as_uri()]


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
    hpx_viz: Viz,
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


def test_json_nested_without_end_is_an_error(hpx_viz: Viz, tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    code, out, err = hpx_viz(tmp_path / "deep.json")
    assert (code, out) == (3, "")
    assert "deep.json is no JSON" in err


def test_a_link_that_leads_nowhere_is_not_advised(hpx_viz: Viz, tmp_path: Path) -> None:
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


def test_an_evil_pickle_is_drawn_reported_and_not_run(hpx_viz: Viz, tmp_path: Path) -> None:
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
