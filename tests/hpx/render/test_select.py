from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpx.errors import PlanError, UsageError
from hpx.graph import ModuleGraph
from hpx.mesh import MeshSpec
from hpx.render import Options, view
from hpx.render.select import keep
from hpx.render.viewmodel import Row, View

if TYPE_CHECKING:
    from tests.hpx.render.conftest import TreeOf


def shown(graph: ModuleGraph, **options: object) -> View:
    return view(graph, Options(**options), picture=False)  # type: ignore[arg-type]


def paths(made: View) -> list[str]:
    return [row.path for row in made.rows() if row.kind == "parameter"]


def row_of(made: View, path: str) -> Row:
    [found] = [row for row in made.rows() if row.path == path]
    return found


@pytest.fixture
def layers(tree: TreeOf) -> ModuleGraph:
    shapes = {f"layers.{i}.{n}.weight": (4, 4) for i in range(6) for n in ("a", "b")}
    return tree({**shapes, "head.weight": (4, 8)})


def test_focus_keeps_what_a_pattern_names_and_the_modules_above(layers: ModuleGraph) -> None:
    made = shown(layers, focus=("layers.*.a.weight",))
    assert paths(made) == ["layers.0-5.a.weight"]
    assert made.totals.parameters == 6


def test_a_pattern_of_a_module_stands_for_all_below_it(layers: ModuleGraph) -> None:
    assert paths(shown(layers, focus="layers.[2-3]")) == [
        "layers.2-3.a.weight",
        "layers.2-3.b.weight",
    ]


def test_several_patterns_add_up(layers: ModuleGraph) -> None:
    made = shown(layers, focus=("head.weight", "layers.0.a"))
    assert paths(made) == ["layers.0.a.weight", "head.weight"]


def test_ignore_leaves_out_what_a_pattern_names(layers: ModuleGraph) -> None:
    made = shown(layers, ignore=("**.b.weight", "head"))
    assert paths(made) == ["layers.0-5.a.weight"]


def test_the_header_says_what_is_shown_of_how_many(layers: ModuleGraph) -> None:
    made = shown(layers, focus=("layers.*.a",), ignore=("layers.0.a",))
    assert made.extra == (("shown", "5 of 13 parameters: --focus layers.*.a --ignore layers.0.a"),)


@pytest.mark.parametrize(
    ("option", "pattern", "near"),
    [
        ("focus", "layers.*.c.weight", "layers.*.a.weight"),
        ("focus", "layer.0", "layers"),
        ("ignore", "haed.weight", "head.weight"),
        ("expand", "layrs", "layers"),
    ],
)
def test_a_pattern_that_matches_nothing_has_the_nearest_names(
    layers: ModuleGraph, option: str, pattern: str, near: str
) -> None:
    with pytest.raises(UsageError, match=f"--{option} '.*' matches nothing") as caught:
        shown(layers, **{option: (pattern,)})
    assert near in str(caught.value)


def test_a_malformed_pattern_is_refused(layers: ModuleGraph) -> None:
    with pytest.raises(PlanError):
        shown(layers, focus=("layers.{0",))


def test_a_tied_parameter_is_kept_under_all_of_its_names(tree: TreeOf) -> None:
    graph = tree({"emb.weight": (4, 4), "x.weight": (2,)}, ties={"head.weight": "emb.weight"})
    made = shown(graph, focus=("head.weight",))
    assert [row.path for row in made.rows()] == ["emb.weight", "head.weight"]
    assert made.totals.parameters == 1


def test_a_tied_parameter_is_left_out_by_any_of_its_names(tree: TreeOf) -> None:
    graph = tree({"emb.weight": (4, 4), "x.weight": (2,)}, ties={"head.weight": "emb.weight"})
    assert paths(shown(graph, ignore=("head.weight",))) == ["x.weight"]


def test_a_shared_module_that_holds_itself_ends() -> None:
    import torch

    shared = torch.nn.Linear(2, 2)
    model = torch.nn.ModuleDict({"a": shared, "b": shared})
    made = shown(ModuleGraph.from_module(model), focus=("b.weight",))
    assert paths(made) == ["a.weight"]


def test_a_focus_keeps_the_deviation_that_the_whole_model_shows(experts: ModuleGraph) -> None:
    made = shown(experts, focus=("layers.30.experts.137",), mesh=MeshSpec.parse("tp=2"))
    assert [finding.level for finding in made.findings] == ["deviation"]
    assert [row.mark for row in made.rows()] == ["deviates"]


def test_a_focus_elsewhere_has_no_deviation(experts: ModuleGraph) -> None:
    assert shown(experts, focus=("layers.3",)).findings == ()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("unsharded", ["r.w", "u.w"]),
        ("replicated", ["r.w"]),
        ("unset", ["u.w"]),
        ("tied", ["t.w"]),
        ("experts", ["experts.0-1.w"]),
    ],
)
def test_only_keeps_parameters_of_a_kind(tree: TreeOf, kind: str, expected: list[str]) -> None:
    shapes = dict.fromkeys(("s.w", "r.w", "u.w", "t.w", "experts.0.w", "experts.1.w"), (4, 4))
    cut = dict.fromkeys(("s.w", "t.w", "experts.0.w", "experts.1.w"), "tp:S(0)")
    graph = tree(shapes, layouts={**cut, "r.w": "R"}, ties={"x.w": "t.w"})
    assert paths(shown(graph, only=(kind,))) == expected


def test_kinds_add_up(tree: TreeOf) -> None:
    graph = tree({"s.w": (4,), "r.w": (4,), "u.w": (4,)}, layouts={"s.w": "tp:S(0)", "r.w": "R"})
    assert paths(shown(graph, only=("replicated", "unset"))) == ["r.w", "u.w"]


def test_only_without_any_is_an_empty_view(tree: TreeOf) -> None:
    made = shown(tree({"s.w": (4,)}, layouts={"s.w": "R"}), only=("tied",))
    assert (paths(made), made.num_nodes) == ([], 1)


def test_kinds_that_take_layouts_are_refused_where_there_are_none(layers: ModuleGraph) -> None:
    with pytest.raises(UsageError, match="--only unset asks for layouts"):
        shown(layers, only=("unset",))


def test_changed_is_refused_where_there_is_nothing_to_compare_with(layers: ModuleGraph) -> None:
    with pytest.raises(UsageError, match="nothing to compare with"):
        shown(layers, only=("changed",))


def test_expand_takes_one_sibling_out_of_its_fold(layers: ModuleGraph) -> None:
    made = shown(layers, expand=("layers.3",))
    assert [box.path for box in made.boxes][-2:] == ["layers.0-2,4-5", "layers.3"]
    assert row_of(made, "layers.3.a.weight").count == 1


def test_expand_of_the_module_around_takes_all_apart(layers: ModuleGraph) -> None:
    made = shown(layers, expand=("layers",))
    assert sum(row.path.endswith(".a.weight") for row in made.rows()) == 6


def test_expand_inside_folded_layers_keeps_the_layers_folded(tree: TreeOf) -> None:
    shapes = {f"layers.{i}.experts.{j}.{n}": (2,) for i in range(3) for j in range(4) for n in "ab"}
    made = shown(tree(shapes), expand=("layers.*.experts.1",))
    assert paths(made) == [
        "layers.0-2.experts.0,2-3.a",
        "layers.0-2.experts.0,2-3.b",
        "layers.0-2.experts.1.a",
        "layers.0-2.experts.1.b",
    ]


def test_what_is_expanded_is_drawn_in_full_though_it_equals_its_siblings(
    layers: ModuleGraph,
) -> None:
    made = shown(layers, expand=("layers.3",))
    assert not any(box.same for box in made.boxes)


def test_an_unknown_axis_has_the_nearest(tree: TreeOf) -> None:
    graph = tree({"a.w": (4,)}, layouts={"a.w": "R"})
    with pytest.raises(UsageError, match="did you mean tp"):
        shown(graph, axis="tpp", mesh=MeshSpec.parse("dp=2,tp=2"))


def test_the_biggest_siblings_come_first(tree: TreeOf) -> None:
    graph = tree({"a.x": (1,), "b.x": (9,), "b.y": (3,), "b.z": (5,)})
    made = shown(graph, sort="bytes")
    assert paths(made) == ["b.x", "b.z", "b.y", "a.x"]


def test_numbers_in_names_are_sorted_by_value(tree: TreeOf) -> None:
    shapes = {f"m{i}.{n}": (i + 1,) for i in (0, 10, 2) for n in "yx"}
    assert paths(shown(tree(shapes), sort="name")) == [
        *("m0.x", "m0.y", "m2.x", "m2.y", "m10.x", "m10.y"),
    ]


def test_traced_dataflow_is_kept_where_a_focus_leaves_both_ends(layers: ModuleGraph) -> None:
    graph = layers.copy()
    first, second, third = (graph.get(f"layers.{i}").id for i in range(3))
    graph.flow = ((first, ()), (second, (0,)), (third, (1,)))
    cut = keep(graph, [node.id for node in graph.parameters()])
    assert cut.feeds == graph.feeds
    fewer = keep(graph, [graph.get(f"layers.{i}.a.weight").id for i in (0, 1)])
    assert fewer.feeds == ((first, second),)
