"""``hpx passes -o``: pipelines as pictures."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from hpx.tools.cli import main

PLAN = """
params:
  "**.self_attn.{q,k,v}_proj.weight": {tp: S(0)}
  "**.self_attn.o_proj.weight": {tp: S(1)}
default: replicate
"""


def fail(tmp_path: Path) -> Path:
    """What a run leaves whose heads cannot be divided."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN)
    arguments = ["run", "hpx.bundled:tiny_llama", "--mesh", "dp=2,tp=16", "--plan", str(plan)]
    assert main([*arguments, "-o", str(tmp_path / "run.json")]) == 2
    return tmp_path / "run.failed.json"


def test_a_pipeline_is_drawn_as_svg(tmp_path: Path) -> None:
    place = tmp_path / "p.svg"
    assert main(["passes", "-p", "@default", "-o", str(place)]) == 0
    texts = "\n".join(ET.fromstring(place.read_text()).itertext())
    assert "shard-params" in texts
    assert "provides sharded" in texts


def test_a_pipeline_that_is_not_named_is_the_one_of_hpx_run(tmp_path: Path) -> None:
    named, unnamed = tmp_path / "named.svg", tmp_path / "unnamed.svg"
    assert main(["passes", "-p", "@default", "-o", str(named)]) == 0
    assert main(["passes", "-o", str(unnamed)]) == 0
    assert unnamed.read_bytes() == named.read_bytes()


@pytest.mark.parametrize(("suffix", "head"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_a_pipeline_is_drawn_as(tmp_path: Path, suffix: str, head: bytes) -> None:
    place = tmp_path / f"p.{suffix}"
    assert main(["passes", "-p", "@run", "-o", str(place)]) == 0
    assert place.read_bytes().startswith(head)


def test_a_run_that_fails_says_where_and_leaves_it_drawable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = fail(tmp_path)
    assert f"hpx passes {failed} -o F.svg" in capsys.readouterr().err
    value = json.loads(failed.read_text())
    assert value["schedule"][value["step"] - 1]["pass"] == "update-heads"
    place = failed.with_name("failed.dot")
    assert main(["passes", str(failed), "-o", str(place)]) == 0
    assert "failed at step" in place.read_text()
    assert not failed.with_name("run.json").exists()


def test_a_run_that_is_not_to_be_saved_leaves_nothing(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN)
    main(["run", "hpx.bundled:tiny_llama", "--mesh", "tp=16", "--plan", str(plan)])
    assert list(tmp_path.iterdir()) == [plan]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-p", "@default", "-o", "{}/p.gif"], 2, "end it in .svg, .png, .pdf, .dot"),
        (["-p", "@default", "-o", "{}/no/p.svg"], 2, "there is no folder"),
        (["{}/run.json", "-o", "{}/p.svg"], 2, "no such file"),
        (["-p", "shard-parms", "-o", "{}/p.svg"], 2, "did you mean shard-params"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    assert main(["passes", *(text.format(tmp_path) for text in arguments)]) == code
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_file_that_is_no_run_is_unreadable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "run.json"
    place.write_text("[")
    assert main(["passes", str(place), "-o", str(tmp_path / "p.svg")]) == 3
    assert "is not a saved run" in capsys.readouterr().err
