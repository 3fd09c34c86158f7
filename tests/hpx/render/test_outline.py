from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hpx.errors import TooLargeError
from hpx.graph import ModuleGraph
from hpx.mesh import MeshSpec
from hpx.render import render
from hpx.render.build import build_view
from hpx.render.outline import view_to_svg
from hpx.render.subject import Subject
from tests.hpx.render.test_formats import HOSTILE

if TYPE_CHECKING:
    from tests.hpx.render.conftest import TreeOf

_SVG = "{http://www.w3.org/2000/svg}"


def outline(graph: ModuleGraph, mesh: str | None = None, **options: object) -> str:
    subject = Subject(graph, "test", MeshSpec.parse(mesh) if mesh else None)
    return view_to_svg(build_view(subject), **options)  # type: ignore[arg-type]


def test_an_outline_prints_every_row_with_shape_layout_and_local_shape(tree: TreeOf) -> None:
    graph = tree({"a.w": (8, 4), "b": (3,)}, layouts={"a.w": "tp:S(0)", "b": "R"})
    texts = [element.text for element in ET.fromstring(outline(graph, "tp=2")).iter(f"{_SVG}text")]
    place = texts.index("a.w")
    assert texts[place : place + 4] == ["a.w", "[8, 4]", "tp:S(0)", "-> [4, 4]"]
    place = texts.index("b")
    assert texts[place : place + 3] == ["b", "[3]", "R"]


def test_an_outline_needs_no_graphviz(tree: TreeOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert outline(tree({"a.w": (2,)})).startswith("<svg")


def test_an_outline_of_hostile_names_is_valid_and_says_them(tree: TreeOf) -> None:
    shapes = {f"{name}.{part}.{name}": (4, 4) for name in HOSTILE for part in ("a", "b")}
    texts = "\n".join(ET.fromstring(outline(tree(shapes))).itertext())
    for part in ("<b>", "x&y;", 'quo"te', "\\slash\\N\\", "</script>", "new\\nline"):
        assert part in texts


def test_what_stands_out_has_the_border_for_it(experts: ModuleGraph) -> None:
    svg = outline(experts)
    assert len(re.findall(r'stroke="#D55E00" stroke-width="2.5"', svg)) == 1
    assert "deviation: layers.30.experts.137.w.weight" in svg


def test_the_expert_mesh_is_told_by_a_dashed_border(tree: TreeOf) -> None:
    graph = tree({"e": (4, 2), "q": (4, 2)}, layouts={"e": "ep:S(0)", "q": "tp:S(0)"})
    rows = outline(graph, "tp=2,ep=2").split("\n")
    [expert] = [row for row in rows if ">ep:S(0)</text>" in row and "[4, 2]" in row]
    [dense] = [row for row in rows if ">tp:S(0)</text>" in row and "[4, 2]" in row]
    assert ("stroke-dasharray" in expert, "stroke-dasharray" in dense) == (True, False)


def test_no_two_texts_of_a_long_outline_overlap(tree: TreeOf) -> None:
    shapes = {f"module_{i}.{'x' * (i % 40)}.weight{i}": (i + 1, 1000) for i in range(300)}
    places: dict[float, list[tuple[float, float]]] = {}
    for element in ET.fromstring(outline(tree(shapes))).iter(f"{_SVG}text"):
        if element.get("font-size") is None and element.get("text-anchor") is None:
            left = float(element.get("x", "0"))
            right = left + 6.6 * len(element.text or "")
            places.setdefault(float(element.get("y", "0")), []).append((left, right))
    pairs = [
        (one, other)
        for line in places.values()
        for one, other in zip(sorted(line), sorted(line)[1:], strict=False)
    ]
    assert len(pairs) > 300
    assert [pair for pair in pairs if pair[0][1] > pair[1][0]] == []


def test_an_outline_of_thousands_of_rows_is_shaped_like_a_screen(tree: TreeOf) -> None:
    root = ET.fromstring(outline(tree({f"w{i}": (i + 1,) for i in range(6000)})))
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    assert 1 < width / height < 3


def test_an_outline_without_end_is_refused(tree: TreeOf) -> None:
    with pytest.raises(TooLargeError, match="60,001 lines"):
        outline(tree({f"w{i}": (i + 1,) for i in range(60_000)}))


def test_a_file_of_an_outline_without_end_is_refused_in_the_same_words(
    tree: TreeOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpx.render.outline._MOST_LINES", 5)
    with pytest.raises(TooLargeError, match="would have 7 lines"):
        render(tree({f"w{i}": (i + 1,) for i in range(6)}), tmp_path / "a.svg", engine="builtin")
    assert list(tmp_path.iterdir()) == []
