from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

import hpx
from hpx.run import Run
from hpx.testing import graph_of
from tests.hpx.render.test_formats import HOSTILE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hpx.render.conftest import TreeOf


def run_of(layout: object, name: str = "a.w") -> Run:
    plan = hpx.ShardingPlan({"**": layout})
    return hpx.run(graph_of({name: (4, 2)}), plan, "tp=2", "shard-params")


@pytest.fixture
def no_graphviz(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def test_a_graph_shows_its_folded_picture(tree: TreeOf) -> None:
    shown = tree({f"layers.{i}.w": (2, 2) for i in range(8)})._repr_html_()
    assert "layers.0-7.w" in "".join(ET.fromstring(shown).itertext())


def test_a_run_shows_its_layouts() -> None:
    shown = run_of({"tp": "S(0)"})._repr_html_()
    assert "tp:S(0)" in "".join(ET.fromstring(shown).itertext())


@pytest.mark.usefixtures("no_graphviz")
def test_without_graphviz_the_outline_is_shown(tree: TreeOf) -> None:
    shown = tree({"a.w": (2,)})._repr_html_()
    assert ET.fromstring(shown)[0].get("font-family", "").startswith("DejaVu Sans Mono")


def test_a_difference_is_a_table_with_both_sides_and_reasons() -> None:
    shown = run_of({"tp": "S(0)"}).diff(run_of("replicate"))._repr_html_()
    rows = ["".join(row.itertext()) for row in ET.fromstring(shown)]
    [row] = [row for row in rows if row.startswith("changed")]
    assert "a.w" in row
    assert "layout: tp:S(0) \u2192 R" in row
    assert "a: shard-params" in row


def test_no_difference_says_so() -> None:
    run = run_of("replicate")
    assert run.diff(run)._repr_html_() == "<p>no difference</p>"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_text(tree: TreeOf, name: str) -> None:
    graph = tree({f"{name}.a": (2,), f"{name}.b": (3,)})
    shown = graph._repr_html_()
    assert "not drawn" not in shown
    assert re.search(r"<script|<b>", shown) is None


def test_a_hostile_name_stays_text_in_a_difference() -> None:
    name = '<img src="x" onerror="alert(1)">'
    shown = run_of({"tp": "S(0)"}, f"{name}.w").diff(run_of("replicate", f"{name}.w"))._repr_html_()
    assert "<img" not in shown
    assert "&lt;img" in shown


def test_a_display_that_fails_says_so_and_does_not_raise(
    tree: TreeOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object, **_options: object) -> bytes:
        raise ZeroDivisionError("<no>")

    monkeypatch.setattr("hpx.render.draw", broken)
    shown = tree({"a.w": (2,)})._repr_html_()
    assert shown == "<pre>not drawn: ZeroDivisionError: &lt;no&gt;</pre>"


def test_a_graphviz_that_hangs_leaves_the_outline(
    tree: TreeOf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "dot"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr("hpx.render.notebook._SECONDS", 0.3)
    assert "<svg" in tree({"a.w": (2,)})._repr_html_()
