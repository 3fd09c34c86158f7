from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET

import pytest

from hpx.errors import LayoutError, MeshError
from hpx.layout import Layout, index_range
from hpx.mesh import MeshSpec
from hpx.render.ranks import Holding, ranks_label, ranks_text
from hpx.render.ranks_svg import ranks_svg

BIG = MeshSpec.parse("dp=2048,tp=8")
CUTS = [
    ("dp=2,tp=4", "tp:S(0),dp:S(0)", (16, 16)),
    ("dp=4,tp=2,ep=4", "ep:S(0)", (8, 2, 2)),
    ("dp=4,tp=2,ep=4", "ep:S(0),edp:S(1)", (8, 2, 2)),
    ("dp=2,tp=4", "tp:S(0)", (5, 4)),
    ("dp=4,cp=2,tp=4", "tp:S(0),dp:S(1),cp:S(2)", (8, 8, 8)),
    ("pp=2,dp=2,tp=2", "tp:S(1)", (3, 4)),
    ("tp=1", "tp:S(0)", (4,)),
    ("dp=2,tp=2", "R", (4,)),
    ("dp=2,tp=2", "R", ()),
]


def cut(text: str) -> Layout:
    return Layout.parse(text)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter() if "text" in element.tag]


@pytest.mark.parametrize(("mesh", "layout", "shape"), CUTS)
def test_every_rank_is_listed_once_with_what_it_holds(
    mesh: str, layout: str, shape: tuple[int, ...]
) -> None:
    spec, how = MeshSpec.parse(mesh), cut(layout)
    holding = Holding(shape, how, spec)
    seen = {rank: piece.ranges for piece in holding.pieces() for rank in piece.ranks}
    view = spec.view_of(how)
    assert seen == {
        rank: index_range(shape, how, view.sizes, view.coordinate(rank))
        for rank in range(spec.world_size)
    }
    assert sum(len(piece.ranks) for piece in holding.pieces()) == spec.world_size


@pytest.mark.parametrize(("mesh", "layout", "shape"), CUTS)
def test_the_pieces_of_a_tensor_are_all_of_it_once(
    mesh: str, layout: str, shape: tuple[int, ...]
) -> None:
    holding = Holding(shape, cut(layout), MeshSpec.parse(mesh))
    held = [
        index
        for piece in holding.pieces()
        for index in itertools.product(*(range(a, b) for a, b in piece.ranges))
    ]
    assert sorted(held) == list(itertools.product(*map(range, shape)))


def test_m5_a_cut_by_tp_and_then_by_fsdp_shows_the_rows_of_every_rank() -> None:
    text = ranks_text((16, 16), cut("tp:S(0)").then("dp", 0), MeshSpec.parse("dp=2,tp=4"))
    rows = [line.split("  ") for line in text.splitlines()[3:]]
    assert [(row[1], row[2].strip(), row[-1]) for row in rows] == [
        (f"tp={tp} dp={dp}", f"[{tp * 4 + dp * 2}:{tp * 4 + dp * 2 + 2}, 0:16]", str(dp * 4 + tp))
        for tp in range(4)
        for dp in range(2)
    ]


def test_n9_a_stacked_parameter_shows_the_ranges_of_all_its_dims() -> None:
    text = ranks_text((8, 2, 2), cut("ep:S(0)"), MeshSpec.parse("dp=4,tp=2,ep=4"))
    assert "ep=3  [6:8, 0:2, 0:2]  [2, 2, 2]  3, 7" in text


def test_m6_the_rank_of_an_uneven_cut_that_holds_nothing_is_named() -> None:
    mesh = MeshSpec.parse("dp=2,tp=4")
    text = ranks_text((5, 4), cut("tp:S(0)"), mesh, rank=3)
    assert "2 ranks hold nothing: 3, 7" in text
    assert "> tp=3  [5:5, 0:4]  nothing" in text
    assert "rank 3 holds nothing, at dp=0, tp=3" in text
    assert "ranks 3, 7: none" in texts(ranks_svg((5, 4), cut("tp:S(0)"), mesh))


def test_16384_ranks_that_hold_8_pieces_are_8_lines() -> None:
    lines = ranks_text((16384, 7168), cut("tp:S(0)"), BIG).splitlines()
    assert len(lines) == 3 + 8
    assert lines[-1].endswith("7, 15, ..., 16383  (2,048 ranks)")


def test_of_16384_pieces_those_left_out_are_counted_and_a_rank_is_shown() -> None:
    how = cut("tp:S(0)").then("dp", 0)
    lines = ranks_text((16384, 8), how, BIG, rank=777).splitlines()
    assert "  ... 2,130 more pieces" in lines
    assert any(line.startswith("> tp=1 dp=97 ") for line in lines)
    assert len(lines) < 25
    svg = ranks_svg((16384, 8), how, BIG, rank=777)
    assert "... 2,134 more pieces" in texts(svg)
    assert len(svg) < 20_000


def test_what_nothing_cuts_is_whole_on_each_rank() -> None:
    assert "whole on each of 16,384 ranks" in ranks_text((7168,), cut("R"), BIG)
    assert "ranks 0-16383" in texts(ranks_svg((7168,), cut("R"), BIG))


@pytest.mark.parametrize(("mesh", "layout", "shape"), CUTS)
def test_the_picture_has_a_cell_for_every_piece(
    mesh: str, layout: str, shape: tuple[int, ...]
) -> None:
    holding = Holding(shape, cut(layout), MeshSpec.parse(mesh))
    found = texts(ranks_svg(shape, cut(layout), MeshSpec.parse(mesh)))
    cells = [text for text in found if text.startswith(("rank ", "ranks ")) and "hold" not in text]
    word = {1: "rank"}
    assert sorted(cells) == sorted(
        f"{word.get(len(piece.ranks), 'ranks')} {ranks_label(piece.ranks)}"
        + (": none" if piece.is_empty else "")
        for piece in holding.pieces()
    )


def test_the_picture_escapes_a_hostile_name() -> None:
    name = '</svg><script>"&\x1b'
    svg = ranks_svg((4,), cut("tp:S(0)"), MeshSpec.parse("tp=2"), name=name)
    assert "<script" not in svg
    assert any("</svg><script>" in text for text in texts(svg))


def test_a_rank_that_is_not_there_is_refused() -> None:
    with pytest.raises(MeshError, match="no rank 9"):
        ranks_text((4,), cut("tp:S(0)"), MeshSpec.parse("tp=2"), rank=9)


def test_a_dim_that_is_not_there_is_refused() -> None:
    with pytest.raises(LayoutError, match="cuts dim 1 of a tensor of 1 dim"):
        ranks_svg((4,), cut("tp:S(1)"), MeshSpec.parse("tp=2"))
