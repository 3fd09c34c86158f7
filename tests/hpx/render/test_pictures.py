"""What pictures by Graphviz tell: colours, axes, ranges, comparisons, dataflow; how it fails."""

from __future__ import annotations

import itertools
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hpx
from hpx.errors import RenderError, TooLargeError, UsageError
from hpx.graph import ModuleGraph
from hpx.mesh import MeshSpec
from hpx.render import Options, draw, render
from hpx.render.build import build_view
from hpx.render.dot import view_to_dot
from hpx.render.picture import draw_dot
from hpx.render.subject import Subject
from hpx.testing import graph_of
from tests.hpx.render.test_formats import fake_dot

if TYPE_CHECKING:
    from tests.hpx.render.conftest import TreeOf

MESH = MeshSpec.parse("dp=2,tp=2,ep=2")


def dot_of(graph: ModuleGraph, **options: object) -> str:
    return draw(graph, "dot", Options(mesh=MESH, **options)).decode()  # type: ignore[arg-type]


def cell_with(dot: str, text: str) -> str:
    """The attributes of the last cell that has this text, which is that of a row."""
    *_, last = re.finditer(rf"<td ([^>]*)>{re.escape(text)}<", dot)
    return last[1]


def test_what_stands_out_is_marked_without_layouts_too() -> None:
    shapes = {f"layers.{n}.w": (4, 3 if n == 2 else 2) for n in range(5)}
    graph = graph_of(shapes)
    dot = draw(graph, "dot", Options()).decode()
    assert 'border="2" color="#D55E00"' in cell_with(dot, "[4, 3] ")
    assert "[4, 3] <b>deviates</b>" in dot
    other = Options(against=graph_of({**shapes, "new": (7, 7)}))
    assert "[7, 7] <b>added</b>" in draw(graph, "dot", other).decode()


@pytest.fixture
def experts_and_dense(tree: TreeOf) -> ModuleGraph:
    return tree(
        {"e": (4, 2), "q": (4, 2), "o": (4, 8), "n": (2,)},
        layouts={"e": "ep:S(0)", "q": "tp:S(0)", "o": "tp:S(1)", "n": "R"},
    )


# -- what is told --------------------------------------------------------------------------------


def test_the_expert_mesh_is_told_by_a_dashed_border_and_in_the_legend(
    experts_and_dense: ModuleGraph,
) -> None:
    dot = dot_of(experts_and_dense)
    assert 'style="dashed"' in cell_with(dot, "ep:S(0)")
    assert "dashed" not in cell_with(dot, "tp:S(0)")
    assert "dashed: on the expert mesh" in dot


def test_one_axis_is_told_of_alone(experts_and_dense: ModuleGraph) -> None:
    dot = dot_of(experts_and_dense, axis="tp")
    assert "layout on tp" in dot
    assert 'bgcolor="#E69F00"' in cell_with(dot, "S(0)")
    assert 'bgcolor="#FFFFFF"' in cell_with(dot, "(other mesh)")
    assert "tp:S(0)<" not in dot


def test_an_axis_that_the_mesh_does_not_have_is_refused(experts_and_dense: ModuleGraph) -> None:
    with pytest.raises(UsageError, match="no axis 'pt'"):
        dot_of(experts_and_dense, axis="pt")


def test_colours_by_bytes_grow_darker_and_keep_the_token(experts_and_dense: ModuleGraph) -> None:
    dot = dot_of(experts_and_dense, color_by="bytes")
    assert 'bgcolor="#4C93C6"' in cell_with(dot, "tp:S(1)")  # the largest
    assert 'bgcolor="#B3D3EA"' in cell_with(dot, "R")  # a sixteenth of it
    assert "bytes of a row" in dot


def test_colours_by_dtype_work_without_layouts() -> None:
    dot = dot_of(graph_of({"a": (2,), "b": (3,)}), color_by="dtype")
    assert 'bgcolor="#E69F00"' in cell_with(dot, "[2]")


def test_colours_by_pass_name_the_pass_in_the_legend() -> None:
    run = hpx.run(
        graph_of({"a": (4,)}), hpx.ShardingPlan({"a": {"tp": "S(0)"}}), "tp=2", "shard-params"
    )
    dot = draw(run, "dot", Options(color_by="pass")).decode()
    assert 'bgcolor="#E69F00"' in cell_with(dot, "shard-params")
    assert 'bgcolor="#E69F00"' in cell_with(dot, "tp:S(0)")


def test_a_rank_shows_its_index_ranges(experts_and_dense: ModuleGraph) -> None:
    dot = dot_of(experts_and_dense, rank=1)
    assert "-&gt; [0:4, 4:8]" in dot
    assert "-&gt; [0:4, 4:8]" not in dot_of(experts_and_dense)


def test_the_bar_of_a_folded_box_prints_the_layouts_of_its_bytes(tree: TreeOf) -> None:
    shapes = {f"l.{i}.{n}.w{k}": (4, 4) for i in range(4) for n in "ab" for k in range(8)}
    layouts = {path: "tp:S(0)" if ".a." in path else "R" for path in shapes}
    dot = dot_of(tree(shapes, layouts=layouts))
    assert re.search(r'width="100" height="12" bgcolor="#E69F00"[^>]*><font[^>]*>tp:S\(0\)<', dot)


def test_what_a_comparison_changed_is_marked_with_what_it_was() -> None:
    graph, plans = graph_of({"a": (4,)}), ({"tp": "S(0)"}, "replicate")
    old, new = (
        hpx.run(graph, hpx.ShardingPlan({"a": plan}), "tp=2", "shard-params") for plan in plans
    )
    dot = draw(old, "dot", Options(against=new)).decode()
    assert "<b>changed</b>" in dot
    assert 'border="3" color="#0072B2"' in dot
    assert "was layout tp:S(0)" in dot


def test_a_tooltip_tells_the_events_with_rule_and_line() -> None:
    plan = hpx.ShardingPlan.from_text("version: 1\nparams:\n  a: {tp: S(0)}\n", file="plan.yaml")
    run = hpx.run(graph_of({"a": (4,)}), plan, "tp=2", "shard-params")
    svg = draw(run, "svg", Options()).decode()
    [title] = re.findall(r"<title>(a&#10;[^<]*)</title>", svg)
    lines = title.replace("&#45;", "-").split("&#10;")
    assert "layout tp:S(0) on the dense mesh tp=2" in lines
    assert any(
        re.match(r"1 shard-params: layout = tp:S\(0\); plan.yaml:3 ", line) for line in lines
    )


def test_an_svg_links_to_nothing(tree: TreeOf) -> None:
    svg = draw(tree({"a.w": (2,), "b": (3,)}), "svg", Options()).decode()
    assert "href" not in svg
    assert "<a" not in svg


def test_dataflow_is_drawn_between_boxes(tree: TreeOf) -> None:
    graph = tree({f"{m}.{n}{i}.w": (i + 2, 2) for m in "xy" for n in "pq" for i in range(6)})
    x, y = graph.get("x.p0").id, graph.get("y.q1").id
    graph.flow = ((x, ()), (y, (0,)))
    dot = dot_of(graph, dataflow=True)
    assert re.findall(r"n(\d) -> n(\d) \[arrowhead=vee", dot) == [("1", "2")]
    assert "1 of 1 traced edges" in dot
    assert "arrowhead=vee" not in dot_of(graph)


def test_dataflow_that_nobody_traced_is_said(tree: TreeOf) -> None:
    assert "it was not traced" in dot_of(tree({"a.w": (2,)}), dataflow=True)


def test_more_nodes_than_are_drawn_raise_the_depth_of_collapse_and_say_so(tree: TreeOf) -> None:
    places = itertools.product(range(60), "xy", range(8))
    shapes = {f"a{i}.{m}.w{k}": (i + 1, ord(m), k + 1) for i, m, k in places}
    dot = dot_of(tree(shapes))
    assert "cut at depth 1 of 2" in dot
    assert dot.count("[label=<<table") <= 200


# -- the renderer --------------------------------------------------------------------------------


def test_a_pdf_is_written(tree: TreeOf, tmp_path: Path) -> None:
    assert render(tree({"a.w": (2,)}), tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")


def test_a_pdf_has_no_time_in_it() -> None:
    assert b"/CreationDate (D:19700101000000" in draw_dot("digraph {}", "pdf")


def test_a_pygraphviz_that_may_not_be_imported_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Forbids:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "pygraphviz":
                raise ModuleNotFoundError(name)

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [Forbids(), *sys.meta_path])
    with pytest.raises(RenderError, match="there is no Graphviz"):
        draw_dot("digraph {}", "svg")


@pytest.mark.parametrize("picture_format", ["svg", "png", "pdf"])
def test_rubbish_is_no_picture(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, picture_format: str
) -> None:
    monkeypatch.setenv("PATH", fake_dot(tmp_path, "print('all is well')"))
    with pytest.raises(RenderError, match="it wrote 12 bytes of something else") as caught:
        draw_dot("digraph {}", picture_format)  # type: ignore[arg-type]
    assert caught.value.exit_code == 5


def test_half_a_picture_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", fake_dot(tmp_path, 'print(\'<svg width="8pt" height="8pt">\')'))
    with pytest.raises(RenderError, match="wrote no svg"):
        draw_dot("digraph {}", "svg")


def test_a_renderer_that_crashes_is_told_by_its_signal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", fake_dot(tmp_path, "import os; os.kill(os.getpid(), 11)"))
    with pytest.raises(RenderError, match="ended by signal 11"):
        draw_dot("digraph {}", "svg")


def test_a_png_of_too_many_pixels_is_refused_and_not_shrunken() -> None:
    nodes = "".join(f"n{i};" for i in range(2))
    with pytest.raises(TooLargeError, match=r"pixels, 64,000,000 is the most") as caught:
        draw_dot(f"digraph {{ node [shape=box width=90 height=90] {nodes} }}", "png")
    assert caught.value.exit_code == 6


def test_what_a_hanging_renderer_started_is_ended_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    script = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pid)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)"
    )
    monkeypatch.setenv("PATH", fake_dot(tmp_path, script))
    with pytest.raises(TooLargeError):
        draw_dot("digraph {}", "svg", timeout=5)
    child = int(pid.read_text())
    for _ in range(100):
        if not _runs(child):
            return
        time.sleep(0.1)
    raise AssertionError("what the renderer started still runs")


def _runs(pid: int) -> bool:
    """Whether a process is there and no zombie that nobody has collected yet."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_a_conflict_in_a_tie_is_marked_on_its_row(tree: TreeOf) -> None:
    graph = tree({"a.w": (2,), "a.v": (2,)}, ties={"head.w": "a.w"})
    view = build_view(Subject(graph, "test"))
    rows = [replace(r, mark="conflict") if r.label == "a.w" else r for r in view.boxes[0].rows]
    dot = view_to_dot(replace(view, boxes=(replace(view.boxes[0], items=tuple(rows)),)))
    assert "<b>a.w</b>" in dot
