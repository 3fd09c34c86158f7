"""What `hpx-viz` shows of models and runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch

from hpx import bundled
from tests.tools.commands import LLAMA, Command


def test_a_model_is_text_on_stdout(hpx_viz: Command) -> None:
    code, out, err = hpx_viz(LLAMA)
    assert (code, err) == (0, "")
    assert re.search(r"layers\.0-1 x2 +Layer", out)
    assert "tp:S" not in out


def test_a_model_with_a_plan_shows_its_layouts(hpx_viz: Command, llama_plan: Path) -> None:
    code, out, _ = hpx_viz(LLAMA, "--plan", llama_plan, "--mesh", "dp=2,tp=4")
    assert code == 0
    assert re.search(
        r"q_proj\.weight +\[64, 64\] +f32 +tp:S\(0\) +-> \[16, 64\] +shard-params", out
    )


def test_a_run_has_its_own_mesh_and_plan(
    hpx_viz: Command, run_file: Path, llama_plan: Path
) -> None:
    code, out, _ = hpx_viz(run_file)
    assert code == 0
    assert "num_heads 8 -> 2" in out
    code, _, err = hpx_viz(run_file, "--plan", llama_plan)
    assert code == 2
    assert "has its own mesh and plan" in err


def test_a_run_is_told_by_its_schema_whatever_its_layout(
    hpx_viz: Command, run_file: Path, tmp_path: Path
) -> None:
    value = json.loads(run_file.read_text())
    other = tmp_path / "other.json"
    other.write_text(json.dumps(dict(reversed(value.items())), indent=1))
    assert hpx_viz(other)[:2] == hpx_viz(run_file)[:2]


def test_step_0_of_a_run_is_the_model_as_it_came(hpx_viz: Command, run_file: Path) -> None:
    code, out, _ = hpx_viz(run_file, "--step", "0")
    assert code == 0
    assert "step 0, before the first pass" in out
    assert "num_heads 8 -> 2" not in out


def test_a_rank_shows_index_ranges(hpx_viz: Command, run_file: Path) -> None:
    code, out, _ = hpx_viz(run_file, "--rank", "5")
    assert code == 0
    assert re.search(r"q_proj\.weight.*\[16:32, 0:64\]", out)


def test_a_checkpoint_shows_no_layouts(hpx_viz: Command, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(bundled.tiny_moe().state_dict(), path)
    code, out, _ = hpx_viz(path)
    assert code == 0
    assert "experts.0-7 x8" in out
    assert "layouts:" not in out


def test_patterns_kinds_and_columns_reach_the_view(hpx_viz: Command, run_file: Path) -> None:
    code, out, _ = hpx_viz(
        *(run_file, "--focus", "model.layers.*", "--ignore", "**.mlp", "--only", "unsharded,unset"),
        *("--columns", "shape,bytes", "--sort", "name"),
    )
    assert code == 0
    assert "shown       4 of 21 parameters: --focus model.layers.* --ignore **.mlp" in out
    assert re.search(r"input_layernorm\.weight +\[64\] +512 bytes\n", out)


def test_one_focused_parameter_shows_who_holds_what(
    hpx_viz: Command, run_file: Path, tmp_path: Path
) -> None:
    code, out, _ = hpx_viz(run_file, "--focus", "lm_head.weight", "--rank", "5")
    assert code == 0
    assert re.search(r"> tp=1 +\[64:128, 0:64\] +\[64, 64\] +1, 5", out)
    assert hpx_viz(run_file, "--focus", "lm_head.weight", "-o", tmp_path / "who.svg")[0] == 0
    assert "tp=1" in (tmp_path / "who.svg").read_text()


def test_fail_on_is_exit_1_with_the_output_written(
    hpx_viz: Command, run_file: Path, tmp_path: Path
) -> None:
    code, _, err = hpx_viz(run_file, "--fail-on", "unset,replicated>3", "-o", tmp_path / "a.txt")
    assert code == 1
    assert "hpx-viz: --fail-on: replicated>3: 5 parameters" in err
    assert (tmp_path / "a.txt").read_text().startswith("CausalLM")


def test_fail_on_looks_beyond_only(hpx_viz: Command, run_file: Path) -> None:
    arguments = (run_file, "--only", "replicated", "--fail-on", "unsharded>5%")
    assert hpx_viz(*arguments)[0] == 0


def test_fail_on_is_met_by_what_is_focused_alone(hpx_viz: Command, run_file: Path) -> None:
    arguments = (run_file, "--focus", "**.mlp", "--fail-on", "unsharded")
    assert hpx_viz(*arguments)[0] == 0


def test_a_difference_is_exit_1_and_none_is_0(
    hpx_viz: Command, run_file: Path, tmp_path: Path
) -> None:
    assert hpx_viz(run_file, "--diff", run_file)[0] == 0
    code, out, err = hpx_viz(LLAMA, "--diff", "hpx.bundled:tiny_moe")
    assert code == 1
    assert "Differences (a is the old side, b the new one)" in out
    assert "50 added, 6 removed" in err
    code, _, _ = hpx_viz(run_file, "--step", "0", "--diff", run_file, "-o", tmp_path / "a.svg")
    assert code == 1
    assert (tmp_path / "a.svg").exists()
