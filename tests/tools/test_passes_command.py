"""``hpx passes``: all, one, and a pipeline in its order."""

from __future__ import annotations

from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from hpx.pipeline import PRESETS, PassRegistry, registry
from hpx.pipeline.registry import installed_entry_points
from tests.tools.commands import Command, error_line


def test_passes_lists_all_of_the_default_pipeline(run_hpx: Command) -> None:
    found = run_hpx("passes", "--json").json
    assert set(PRESETS["default"]) <= {entry["name"] for entry in found}
    assert run_hpx("passes").out.splitlines()[0].split() == ["pass", "defined", "in", "from"]


class Claimed(NamedTuple):
    name: str
    version: str = "1.0"


@pytest.fixture
def clash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another distribution claims the name localize as well."""

    class Other(EntryPoint):
        dist = cast("Distribution", Claimed("other-passes"))

    entries = [*installed_entry_points(), Other("localize", "other:Localize", "hpx.passes")]
    monkeypatch.setattr(registry, "DEFAULT", PassRegistry(lambda: entries))
    for name in ("get", "names", "describe"):
        monkeypatch.setattr(registry, name, getattr(registry.DEFAULT, name))


@pytest.mark.usefixtures("clash")
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_name_that_is_claimed_twice_does_not_hide_the_others(
    run_hpx: Command, form: list[str]
) -> None:
    answer = run_hpx("passes", *form)
    others = set(PRESETS["default"]) - {"localize"}
    assert {name for name in others if name in answer.out} == others
    assert "hpx.passes.localize" not in answer.out
    assert answer.code == 2
    assert answer.err.startswith("hpx: error: the pass name 'localize' is claimed 2 times")
    assert len(answer.err.splitlines()) == 1


def test_a_pass_tells_its_docstring_options_facts_and_writes(run_hpx: Command) -> None:
    out = run_hpx("passes", "shard-params").out
    assert "Give every parameter the layout that its plan rule names." in out
    assert "uneven   error or allow  error" in out
    assert "requires:    experts-stacked, tied" in out
    assert "writes:      layout, mesh" in out


def test_a_pipeline_is_shown_in_order_with_reasons(run_hpx: Command) -> None:
    answer = run_hpx("passes", "-p", "localize, @default", "--json").json
    assert [step["pass"] for step in answer["schedule"]] == list(PRESETS["default"])
    assert answer["schedule"][1]["because"] == ["tie-weights provides tied"]


def test_facts_that_nobody_provides_are_assumed_of_the_model(run_hpx: Command) -> None:
    out = run_hpx("passes", "-p", "update-heads").out
    assert "assumed of the model: sharded" in out


def test_an_unknown_pass_is_an_error_with_the_nearest(run_hpx: Command) -> None:
    assert "did you mean shard-params" in error_line(run_hpx("passes", "shard-parms"), 2)


def test_a_pipeline_in_place_of_a_name_is_told_the_option(run_hpx: Command) -> None:
    line = error_line(run_hpx("passes", "@run"), 2)
    assert "'@run' is a pipeline, not the name of a pass. Fix: -p '@run'" in line


def test_a_file_in_place_of_a_name_is_told_that_it_is_drawn(
    run_hpx: Command, tmp_path: Path
) -> None:
    (tmp_path / "run.json").touch()
    line = error_line(run_hpx("passes", tmp_path / "run.json"), 2)
    assert "is a file, not the name of a pass. Fix: -o F.svg draws the pipeline of a run" in line
