from __future__ import annotations

from typing import TYPE_CHECKING

from hpx.graph import ModuleGraph
from hpx.pipeline.context import Problem
from hpx.render.build import build_view
from hpx.render.subject import Subject
from hpx.render.text import view_to_text
from hpx.render.viewmodel import Row, View

if TYPE_CHECKING:
    from tests.hpx.render.conftest import TreeOf


def view_of(graph: ModuleGraph) -> View:
    return build_view(Subject(graph, "test"))


def row_of(view: View, path: str) -> Row:
    [found] = [row for row in view.rows() if row.path == path]
    return found


def test_a_tie_inside_folded_layers_names_both_ends_of_all_of_them(tree: TreeOf) -> None:
    shapes = {f"layers.{i}.{n}.weight": (4, 4) for i in range(6) for n in ("a", "c", "d")}
    ties = {f"layers.{i}.b.weight": f"layers.{i}.a.weight" for i in range(6)}
    view = view_of(tree(shapes, ties=ties))
    assert row_of(view, "layers.0-5.a.weight").ties == ("layers.{0-5}.b.weight",)
    assert row_of(view, "layers.0-5.b.weight").ties == ("layers.{0-5}.a.weight",)
    assert view.totals.tied == 6


def test_a_tie_across_layers_shows_its_first_end(tree: TreeOf) -> None:
    shapes = {f"layers.{i}.{n}.weight": (4, 4) for i in range(4) for n in ("b", "c", "d")}
    ties = {f"layers.{i}.a.weight": "layers.0.a.weight" for i in range(1, 4)}
    view = view_of(tree({**shapes, "layers.0.a.weight": (4, 4)}, ties=ties))
    assert row_of(view, "layers.0.a.weight").ties == ("layers.{1-3}.a.weight",)
    assert row_of(view, "layers.1-3.a.weight").ties == ("layers.0.a.weight",)


def test_layers_tied_one_by_one_to_those_of_another_list_fold(tree: TreeOf) -> None:
    shapes = {f"{s}.{i}.{n}": (4, 4) for s in ("enc", "dec") for i in range(4) for n in "bc"}
    shapes |= {f"enc.{i}.a": (4, 4) for i in range(4)}
    ties = {f"dec.{i}.a": f"enc.{i}.a" for i in range(4)}
    view = view_of(tree(shapes, ties=ties))
    assert row_of(view, "enc.0-3.a").ties == ("dec.{0-3}.a",)
    assert row_of(view, "dec.0-3.a").ties == ("enc.{0-3}.a",)


def test_a_layer_tied_to_another_number_than_its_own_stays_apart(tree: TreeOf) -> None:
    shapes = {f"{s}.{i}.{n}": (4, 4) for s in ("enc", "dec") for i in range(4) for n in "bc"}
    shapes |= {f"enc.{i}.a": (4, 4) for i in range(4)}
    ties = {f"dec.{i}.a": f"enc.{[0, 1, 3, 2][i]}.a" for i in range(4)}
    view = view_of(tree(shapes, ties=ties))
    assert row_of(view, "enc.2.a").ties == ("dec.3.a",)


def test_a_shared_module_says_its_names_and_its_parameters_count_as_tied() -> None:
    import torch

    shared = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(3, 3))
    model = torch.nn.ModuleDict({"a": shared, "b": shared, "c": torch.nn.Linear(4, 4)})
    view = view_of(ModuleGraph.from_module(model))
    assert "shared: b" in view_to_text(view)
    assert (view.totals.parameters, view.totals.tied) == (6, 4)


def test_a_tie_in_conflict_is_marked_at_its_row(tree: TreeOf) -> None:
    graph = tree({"emb.weight": (4, 4), "x.w": (2,)}, ties={"head.weight": "emb.weight"})
    problem = Problem("error", (graph.get("emb.weight").id,), "two rules for one tensor", "")
    view = build_view(Subject(graph, "test", problems=(problem,)))
    assert row_of(view, "emb.weight").mark == "conflict"
    text = view_to_text(view)
    assert "tied: head.weight  <- conflict" in text
    assert "two rules for one tensor" in text


def test_many_further_names_are_cut_to_a_few(tree: TreeOf) -> None:
    ties = {f"{name}.weight": "emb.weight" for name in ("aa", "bb", "cc", "dd", "ee")}
    text = view_to_text(view_of(tree({"emb.weight": (4, 4)}, ties=ties)))
    assert "tied: aa.weight, bb.weight, cc.weight and 2 more" in text
