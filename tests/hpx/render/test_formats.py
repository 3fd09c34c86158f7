from __future__ import annotations

import os
import re
import stat
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hpx.errors import RenderError, TooLargeError, UsageError
from hpx.graph import ModuleGraph
from hpx.mesh import MeshSpec
from hpx.render import Options, draw, render
from hpx.render.picture import draw_dot

if TYPE_CHECKING:
    from tests.hpx.render.conftest import TreeOf

HOSTILE = [
    "<b>",
    "a>b",
    "x&y;",
    'quo"te',
    "pi|pe",
    "{brace}",
    "back\\slash\\N\\",
    "</script>",
    "new\nline",
    "rocket \U0001f680",
    "bell\x07\x1b[31m",
    "turn\u202eaway",
    "lone\ud800surrogate",
    "n" * 300,
    " ",
]


@pytest.fixture
def hostile(tree: TreeOf) -> ModuleGraph:
    shapes = {f"{name}.{part}.{name}": (4, 4) for name in HOSTILE for part in ("a", "b")}
    odd = f"{HOSTILE[0]}.a.{HOSTILE[0]}"
    layouts = {path: "tp:S(0)" for path in shapes if path != odd}
    return tree(shapes, layouts=layouts, cls='<C "x" & \\N>')


def text_of(graph: ModuleGraph, **options: object) -> str:
    return draw(graph, "text", Options(**options)).decode()  # type: ignore[arg-type]


def fake_dot(folder: Path, script: str) -> str:
    """A program called dot that does what a test needs; the PATH that finds it alone."""
    program = folder / "dot"
    program.write_text(f"#!{sys.executable}\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(folder)


# -- text ----------------------------------------------------------------------------------------


def test_a_row_of_text_says_shape_dtype_layout_and_local_shape(tree: TreeOf) -> None:
    graph = tree({"q_proj.weight": (8192, 8192)}, layouts={"q_proj.weight": "tp:S(0)"})
    [line] = [
        line for line in text_of(graph, mesh=MeshSpec.parse("tp=8")).splitlines() if "q_" in line
    ]
    assert line.split("  ") == [
        *("", "q_proj.weight", "[8192, 8192]", "bf16", "tp:S(0)", "-> [1024, 8192]"),
    ]


def test_text_without_layouts_has_no_layout_columns(tree: TreeOf) -> None:
    text = text_of(tree({"a.w": (2, 2)}))
    assert "  a.w  [2, 2]  bf16\n" in text
    assert "layouts:" not in text


def test_problems_come_before_the_tree(experts: ModuleGraph) -> None:
    text = text_of(experts)
    assert text.index("Problems (1)") < text.index("embed.weight")


def test_text_says_how_many_nodes_stand_for_how_many_parameters(experts: ModuleGraph) -> None:
    assert re.search(r"^\d nodes for 14,849 parameters", text_of(experts), re.MULTILINE)


def test_m6_text_lists_uneven_pieces(tree: TreeOf) -> None:
    graph = tree({"a.w": (5, 4)}, layouts={"a.w": "tp:S(0)"})
    assert "uneven: 2 x2, 1, 0" in text_of(graph, mesh=MeshSpec.parse("tp=4"))


def test_text_for_a_rank_has_its_index_ranges(tree: TreeOf) -> None:
    graph = tree({"a.w": (8, 2, 2)}, layouts={"a.w": "tp:S(0)"})
    text = text_of(graph, mesh=MeshSpec.parse("dp=2,cp=2,tp=4"), rank=7)
    assert "[6:8, 0:2, 0:2]" in text


def test_a_rank_without_a_mesh_is_refused(tree: TreeOf) -> None:
    with pytest.raises(UsageError, match="there is no mesh"):
        text_of(tree({"a.w": (2,)}), rank=0)


def test_text_is_plain_unless_colour_is_asked_for(experts: ModuleGraph) -> None:
    assert "\x1b" not in text_of(experts)
    assert "\x1b[38;5;214mtp:S(0)" in text_of(experts, color=True)


def test_hostile_names_stay_on_their_line_of_text(hostile: ModuleGraph) -> None:
    text = text_of(hostile)
    assert "\x1b" not in text
    assert "\\x1b[31m" in text
    assert "new\\nline" in text
    assert text.isprintable() or set(filter(lambda c: not c.isprintable(), text)) == {"\n"}


# -- dot -----------------------------------------------------------------------------------------


def test_dot_names_its_nodes_by_number_alone(hostile: ModuleGraph) -> None:
    dot = hostile.to_dot()
    assert set(re.findall(r"^\t(\S+) \[label=<<table", dot, re.MULTILINE)) <= {
        f"n{i}" for i in range(100)
    }


def test_dot_escapes_what_has_a_meaning(hostile: ModuleGraph) -> None:
    dot = hostile.to_dot()
    assert "&lt;b&gt;" in dot
    assert "<b>.a" not in dot
    assert "back\\\\slash\\\\N\\\\" in dot
    assert dot.encode()


def test_dot_colours_layouts_and_prints_their_tokens(tree: TreeOf) -> None:
    graph = tree({"a.w": (4, 4), "b.w": (4, 4)}, layouts={"a.w": "tp:S(0)", "b.w": "R"})
    dot = graph.to_dot()
    assert re.search(r'bgcolor="#E69F00">tp:S\(0\)<', dot)
    assert re.search(r'bgcolor="#FFFFFF">R<', dot)


def test_dot_shows_the_number_of_stacked_experts(tree: TreeOf) -> None:
    graph = tree({"experts.w": (256, 2, 2)}, layouts={"experts.w": "ep:S(0)"})
    assert "<b>E=256</b>" in graph.to_dot()


def test_a_tie_is_a_dashed_line_between_two_rows(tree: TreeOf) -> None:
    shapes = {f"a.{name}.w": (2, size) for size, name in enumerate("bcdefgh")}
    graph = tree(shapes, ties={"head.w": "a.b.w"})
    dot = graph.to_dot()
    assert len(re.findall(r"n1:b1r\d:w -> n0:b0r\d:w \[.*style=dashed", dot)) == 1
    assert "tied to head.w" in dot
    assert "tied to a.b.w" in dot


def test_a_tie_within_one_box_is_told_by_its_rows_and_no_line(tree: TreeOf) -> None:
    dot = tree({"a.w": (2,), "a.v": (2,)}, ties={"head.w": "a.w"}).to_dot()
    assert "style=dashed" not in dot
    assert ("tied to head.w" in dot, "tied to a.w" in dot) == (True, True)


def test_the_way_to_what_stands_out_is_drawn_in_its_colour(experts: ModuleGraph) -> None:
    assert re.search(r'n\d -> n\d \[color="#D55E00" penwidth=2\]', experts.to_dot())


def test_the_same_graph_gives_the_same_dot(experts: ModuleGraph) -> None:
    assert experts.to_dot() == experts.copy().to_dot()


def test_n10_dot_of_6000_nodes_needs_no_graphviz(
    tree: TreeOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    dot = tree({f"m{i}.w{i}": (i + 1,) for i in range(6000)}).to_dot()
    assert "200 nodes for 6,000 parameters; cut short at 200 (--max-nodes)" in dot


def test_n6_dot_of_1200_nested_modules_is_cut_to_a_depth(tree: TreeOf) -> None:
    dot = tree({".".join(["m"] * d + ["w"]): (d,) for d in range(1, 1201)}).to_dot()
    assert "cut at depth 10 of 1199" in dot


# -- pictures ------------------------------------------------------------------------------------


def test_hostile_names_make_a_valid_svg(hostile: ModuleGraph) -> None:
    svg = draw(hostile, "svg", Options())
    texts = "\n".join(ET.fromstring(svg).itertext())
    for part in ("<b>", "x&y;", 'quo"te', "pi|pe", "{brace}", "\\slash\\N\\", "</script>", "🚀"):
        assert part in texts


def test_an_svg_has_tooltips_with_the_whole_name(tree: TreeOf) -> None:
    name = "long" * 50
    svg = draw(tree({f"a.{name}": (2,), "a.b": (2,)}), "svg", Options()).decode()
    titles = re.findall(r"<title>([^<]*)</title>", svg)
    assert any(f"a.{name}" in title for title in titles)


def test_the_same_graph_gives_the_same_svg(experts: ModuleGraph) -> None:
    assert draw(experts, "svg", Options()) == draw(experts.copy(), "svg", Options())


def test_a_png_is_written(tree: TreeOf, tmp_path: Path) -> None:
    path = render(tree({"a.w": (2,)}), tmp_path / "a.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_any_graphviz_the_error_says_what_to_install(
    tree: TreeOf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RenderError, match="pip install pygraphviz") as caught:
        draw(tree({"a.w": (2,)}), "svg", Options())
    assert caught.value.exit_code == 5


def test_a_renderer_that_fails_is_an_error_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", fake_dot(tmp_path, "import sys; sys.exit('no fonts here')"))
    with pytest.raises(RenderError, match="no fonts here"):
        draw_dot("digraph {}", "svg")


def test_dot_that_is_none_is_an_error() -> None:
    with pytest.raises(RenderError, match="Graphviz failed"):
        draw_dot("digraph {", "svg")


def test_a_renderer_that_hangs_is_ended_and_the_dot_is_kept(
    tree: TreeOf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    script = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    monkeypatch.setenv("PATH", fake_dot(tmp_path, script))
    own = tmp_path / "a.dot"
    own.write_text("my own")
    started = time.monotonic()
    with pytest.raises(TooLargeError, match=r"the DOT text is in .*a\.svg\.dot") as caught:
        render(tree({"a.w": (2,)}), tmp_path / "a.svg", timeout=2)
    assert time.monotonic() - started < 60
    assert caught.value.exit_code == 6
    assert (tmp_path / "a.svg.dot").read_text().startswith("digraph")
    assert own.read_text() == "my own"
    assert not (tmp_path / "a.svg").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_picture_over_the_limit_of_its_format_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = "import sys; print('x'); print('bitmaps too large. Scaling', file=sys.stderr)"
    monkeypatch.setenv("PATH", fake_dot(tmp_path, script))
    with pytest.raises(TooLargeError, match="write svg"):
        draw_dot("digraph {}", "png")


def test_a_failure_leaves_the_old_picture(
    tree: TreeOf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = tmp_path / "a.svg"
    old.write_text("old")
    monkeypatch.setenv("PATH", fake_dot(tmp_path, "raise SystemExit(1)"))
    with pytest.raises(RenderError):
        render(tree({"a.w": (2,)}), old)
    assert old.read_text() == "old"


# -- options -------------------------------------------------------------------------------------


def test_an_unknown_suffix_is_refused_with_those_there_are(tree: TreeOf, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.txt, .*\.svg"):
        render(tree({"a.w": (2,)}), tmp_path / "a.jpeg")


def test_an_unknown_way_to_fold_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean layout"):
        Options(fold="layuot")  # type: ignore[arg-type]


def test_a_root_that_is_not_there_is_refused_with_the_nearest(tree: TreeOf) -> None:
    with pytest.raises(UsageError, match="did you mean layers"):
        text_of(tree({"layers.0.w": (2,)}), root="layer")


def test_a_root_draws_what_is_below_it(tree: TreeOf) -> None:
    text = text_of(tree({"a.x.w": (2,), "a.y.w": (3,), "b.w": (4,)}), root="a")
    assert "x.w" in text
    assert "b.w" not in text


def test_a_depth_limits_text_too(tree: TreeOf) -> None:
    text = text_of(tree({f"a.{n}.{m}.w": (2,) for n in "xy" for m in "uv"}), depth=1)
    assert "... 2 modules below" in text
    assert "cut at depth 1 of 2" in text


def test_a_step_of_a_graph_is_refused(tree: TreeOf) -> None:
    with pytest.raises(UsageError, match="a model has no steps"):
        text_of(tree({"a.w": (2,)}), step=1)


def test_letters_are_a_little_smaller_than_graphviz_reckons_as_browsers_set_them_wider(
    tree: TreeOf,
) -> None:
    svg = draw(tree({"a.w": (2,)}), "svg", Options()).decode()
    assert set(re.findall(r'font-size="([^"]*)"', svg)) == {"9.50", "8.55", "15.20"}
