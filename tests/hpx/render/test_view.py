from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpx import bundled
from hpx.graph import GraphBuilder, ModuleGraph, ModuleSpec, TensorSpec
from hpx.graph.edit import set_key
from hpx.mesh import MeshSpec
from hpx.pipeline.context import Problem
from hpx.render.build import build_view
from hpx.render.subject import Decision, Subject
from hpx.render.trim import fit, trim
from hpx.render.viewmodel import Box, Row, View

if TYPE_CHECKING:
    from tests.hpx.render.conftest import TreeOf


def view_of(graph: ModuleGraph, mesh: str | None = None) -> View:
    return build_view(Subject(graph, "test", MeshSpec.parse(mesh) if mesh else None))


def box_of(view: View, path: str) -> Box:
    [found] = [box for box in view.boxes if box.path == path]
    return found


def row_of(view: View, path: str) -> Row:
    [found] = [row for row in view.rows() if row.path == path]
    return found


def test_one_odd_expert_among_58_times_256_stands_out(experts: ModuleGraph) -> None:
    view = view_of(experts, "dp=2,tp=2")
    assert view.num_nodes < 15
    [finding] = view.findings
    assert finding.text == (
        "layers.30.experts.137.w.weight has layout R, not tp:S(0), "
        "unlike the other 255 of layers.30.experts"
    )
    assert row_of(view, "layers.30.experts.137.w.weight").mark == "deviates"


def test_the_minority_is_counted_where_it_is(experts: ModuleGraph) -> None:
    notes = [note for box in view_of(experts).boxes for note in box.notes]
    assert notes == ["2 variants: 57 / 1", "2 variants: 255 / 1"]


def test_what_an_odd_sibling_has_in_common_is_not_drawn_again(tree: TreeOf) -> None:
    names = ("a.w", "b.w", "b.v", "n")
    shapes = {f"layers.{i}.{name}": (2,) for i in range(6) for name in names}
    view = view_of(tree({**shapes, "layers.4.b.v": (3,)}))
    odd = box_of(view, "layers.4")
    assert [row.label for row in odd.rows] == ["b.v"]
    assert (odd.same_as, odd.same) == ("layers.0-3,5", ("a", "b.w", "n"))


def test_a_sibling_of_another_class_is_a_variant_and_no_problem(tree: TreeOf) -> None:
    shapes = {f"layers.{i}.mlp.{name}": (2,) for i in range(6) for name in ("a", "b")}
    view = view_of(tree(shapes, classes={"layers.0.mlp": "Dense"}))
    assert view.findings == ()
    assert any("2 variants: 5 / 1" in note for box in view.boxes for note in box.notes)


def test_a_sibling_that_lacks_a_tensor_is_a_problem(tree: TreeOf) -> None:
    shapes = {f"layers.{i}.{name}": (2,) for i in range(6) for name in ("weight", "bias")}
    del shapes["layers.3.bias"]
    view = view_of(tree(shapes))
    assert view.findings[0].text == "layers.3 has no bias, unlike the other 5 of layers"
    assert row_of(view, "layers.3.weight").mark == "deviates"


def test_a_sibling_that_lacks_a_module_of_tensors_is_a_problem(tree: TreeOf) -> None:
    names = ("gate.weight", "up.weight", "down.weight")
    shapes = {f"experts.{i}.{name}": (2,) for i in range(6) for name in names}
    del shapes["experts.3.up.weight"]
    view = view_of(tree(shapes))
    assert [f.text for f in view.findings] == ["experts.3 has no up, unlike the other 5 of experts"]
    assert box_of(view, "experts.3").mark == "deviates"


def test_a_layer_with_one_expert_more_or_less_is_a_problem(tree: TreeOf) -> None:
    shapes = {
        f"layers.{i}.experts.{n}.up.weight": (2,)
        for i in range(6)
        for n in range({2: 5, 4: 3}.get(i, 4))
    }
    assert [f.text for f in view_of(tree(shapes)).findings] == [
        "layers.2.experts.4.up.weight is there, unlike most (4 of 6) of layers",
        "layers.4.experts has no 3, unlike most (4 of 6) of layers",
    ]


def test_layers_with_other_modules_are_another_kind_and_no_problem(tree: TreeOf) -> None:
    shapes = {f"layers.{i}.mlp.{'b' if i else 'a'}.weight": (2,) for i in range(6)}
    assert view_of(tree(shapes)).findings == ()


def test_two_halves_are_variants_of_which_none_deviates(tree: TreeOf) -> None:
    view = view_of(tree({f"layers.{i}.w": (2 + i % 2,) for i in range(8)}))
    assert view.findings == ()


def test_totals_count_a_tie_once() -> None:
    view = view_of(ModuleGraph.from_module(bundled.tiny_llama(tied=True)))
    assert (view.totals.parameters, view.totals.tied) == (20, 1)
    [link] = [row for row in view.rows() if row.kind == "link"]
    assert (link.label, link.ties) == ("lm_head.weight", ("model.embed_tokens.weight",))
    assert row_of(view, "model.embed_tokens.weight").ties == ("lm_head.weight",)


def test_totals_are_exact_however_the_graph_is_folded(experts: ModuleGraph) -> None:
    subject = Subject(experts, "", MeshSpec.parse("tp=2"))
    totals = [build_view(subject, fold=by).totals for by in ("none", "structure", "layout")]
    assert totals[0] == totals[1] == totals[2]
    assert totals[0].bytes == 2 * (16 * 4 + 58 * 256 * 8 * 4)
    assert totals[0].local_bytes == 2 * (16 * 4 + (58 * 256 + 1) * 8 * 4 // 2)


def test_folding_by_structure_says_where_layouts_are_mixed(tree: TreeOf) -> None:
    graph = tree({"0.w": (2,), "1.w": (2,)}, layouts={"0.w": "R", "1.w": "tp:S(0)"})
    view = build_view(Subject(graph, ""), fold="structure")
    assert row_of(view, "0-1.w").token == "mixed"


def test_a_checkpoint_without_layouts_has_no_tokens(tree: TreeOf) -> None:
    view = view_of(tree({"a.w": (2,)}))
    assert not view.has_layouts
    assert {row.mark for row in view.rows()} == {""}


def test_a_parameter_without_a_layout_among_others_is_marked_and_reported(tree: TreeOf) -> None:
    view = view_of(tree({"a.w": (2,), "b.w": (2,)}, layouts={"a.w": "R"}))
    assert row_of(view, "b.w").mark == "unset"
    assert view.findings[0].text == "1 parameter has no layout: b.w"


def test_local_shapes_are_of_the_rank_that_is_asked_for(tree: TreeOf) -> None:
    graph = tree({"a.w": (5, 4)}, layouts={"a.w": "tp:S(0)"})
    subject = Subject(graph, "", MeshSpec.parse("dp=2,tp=4"))
    shapes = [row_of(build_view(subject, rank=r), "a.w").local_shape for r in (0, 2, 3)]
    assert shapes == [(2, 4), (1, 4), (0, 4)]


def test_m6_an_uneven_cut_lists_every_piece_the_empty_one_too(tree: TreeOf) -> None:
    view = view_of(tree({"a.w": (5, 4)}, layouts={"a.w": "tp:S(0)"}), "tp=4")
    assert row_of(view, "a.w").pieces == (2, 2, 1, 0)


def test_n9_index_ranges_of_a_stacked_parameter_have_every_dim(tree: TreeOf) -> None:
    graph = tree({"experts.w": (8, 2, 2)}, layouts={"experts.w": "ep:S(0)"})
    subject = Subject(graph, "", MeshSpec.parse("dp=2,tp=2,ep=4"))
    row = row_of(build_view(subject, rank=3), "experts.w")
    assert row.ranges == ((6, 8), (0, 2), (0, 2))
    assert row.experts == 8


def test_scalars_empty_and_four_dim_tensors_have_rows(tree: TreeOf) -> None:
    layouts = {"m.s": "R", "m.e": "tp:S(0)", "m.c": "tp:S(1)"}
    shapes: dict[str, tuple[int, ...]] = {"m.s": (), "m.e": (0, 3), "m.c": (8, 4, 3, 3)}
    view = view_of(tree(shapes, layouts=layouts), "tp=2")
    assert [row.local_shape for row in view.rows()] == [(), (0, 3), (8, 2, 3, 3)]


def test_an_axis_of_size_one_keeps_its_token(tree: TreeOf) -> None:
    view = view_of(tree({"a.w": (4, 4)}, layouts={"a.w": "tp:S(0)"}), "dp=8,tp=1")
    row = row_of(view, "a.w")
    assert (row.token, row.local_shape) == ("tp:S(0)", (4, 4))


def test_a_dtensor_brings_its_own_layout() -> None:
    builder = GraphBuilder()
    root = builder.module(-1, "", ModuleSpec("M"))
    placed = (("dp", 2, "R"), ("tp", 4, "S(0)"))
    builder.tensor("parameter", root, "w", TensorSpec((8, 2), "float32", placed=placed))
    row = row_of(view_of(builder.finish()), "w")
    assert (row.token, row.local_shape) == ("tp:S(0)", (2, 2))


def test_attributes_that_a_pass_changed_are_noted() -> None:
    graph = ModuleGraph.from_module(bundled.tiny_llama())
    ids = [graph.get(f"model.layers.{i}.self_attn").id for i in range(2)]
    set_key(graph, ids, "attributes.num_heads", 2)
    assert box_of(view_of(graph), "model.layers.0-1.self_attn").notes == ("num_heads 8 -> 2",)


def test_a_short_name_is_told_though_its_letters_are_in_the_text(tree: TreeOf) -> None:
    graph = tree({"u": (5,), "b.w": (2,)})
    problems = tuple(
        Problem("warning", (graph.get(name).id,), text, "")
        for name, text in (("u", "it is uneven"), ("b.w", "b.w: is known"))
    )
    view = build_view(Subject(graph, "", problems=problems))
    assert [finding.text for finding in view.findings] == ["u: it is uneven", "b.w: is known"]


def test_an_error_of_the_run_marks_its_parameter_and_comes_before_warnings(tree: TreeOf) -> None:
    graph = tree({"a.w": (2,), "b.w": (2,)}, layouts={"a.w": "R", "b.w": "R"})
    bad = graph.get("b.w").id
    problems = (
        Problem("warning", (graph.get("a.w").id,), "look here", ""),
        Problem("error", (bad,), "wrong here", "mend it"),
    )
    view = build_view(Subject(graph, "", problems=problems))
    assert [finding.text for finding in view.findings] == ["b.w: wrong here", "a.w: look here"]
    assert (row_of(view, "b.w").mark, row_of(view, "a.w").warned) == ("conflict", True)


def test_passes_are_counted_with_the_parameters_they_decided(tree: TreeOf) -> None:
    graph = tree({"a.w": (2,), "b.w": (2,)}, layouts={"a.w": "R", "b.w": "R"})
    decisions = {node.id: Decision("shard-params", None) for node in graph.parameters()}
    assert build_view(Subject(graph, "", decisions=decisions)).passes == (("shard-params", 2),)


def test_modules_without_tensors_are_not_drawn(tree: TreeOf) -> None:
    builder = GraphBuilder()
    root = builder.module(-1, "", ModuleSpec("M"))
    builder.tensor("parameter", root, "w", TensorSpec((2,), "float32"))
    builder.module(builder.module(root, "act", ModuleSpec("Sequential")), "0", ModuleSpec("GELU"))
    assert view_of(builder.finish()).num_nodes == 2


def test_chains_of_single_children_are_one_label(tree: TreeOf) -> None:
    view = view_of(tree({f"a.b.c.{i}.{n}.w": (2,) for i in range(3) for n in "xy"}))
    assert [box.label for box in view.boxes] == ["", "a.b.c.0-2"]
    assert [row.label for row in view.rows()] == ["x.w", "y.w"]


def test_cutting_at_a_depth_says_what_is_below(tree: TreeOf) -> None:
    shapes = {f"a.{m}.{n}.{t}": (2,) for m in "xy" for n in "uv" for t in ("s.w", "t.w", "w")}
    view = trim(view_of(tree(shapes)), 1)
    assert [(box.label, box.hidden) for box in view.boxes] == [("", 0), ("a", 6)]
    assert (view.depth, view.full_depth) == (1, 3)


def test_n10_6000_nodes_are_cut_to_the_budget(tree: TreeOf) -> None:
    shapes = {f"m{i}.{n}.w": (i + 1,) for i in range(3000) for n in "ab"}
    view = view_of(tree(shapes))
    assert view.num_nodes > 6000
    cut = fit(view, 200)
    assert 100 <= cut.num_nodes <= 200


def test_the_budget_collapses_the_deepest_level_first(tree: TreeOf) -> None:
    shapes = {f"{a}.r{i}": (2,) for a in "ab" for i in range(9)}
    shapes |= {f"{a}.{b}.{c}.w": (2,) for a in "ab" for b in "cd" for c in "efgh"}
    view = view_of(tree(shapes))
    assert fit(view, view.num_nodes).depth is None
    assert fit(view, view.num_nodes - 1).depth == view.full_depth - 1


def test_what_stands_out_is_kept_when_a_level_is_cut_short(tree: TreeOf) -> None:
    shapes = {f"p{i}": (2,) for i in range(500)}
    layouts = {path: "R" for path in shapes if path != "p499"}
    cut = fit(view_of(tree(shapes, layouts=layouts)), 20)
    assert cut.num_nodes == 20
    assert "p499" in {row.label for row in cut.rows()}
    assert cut.boxes[0].hidden_rows == 481


@pytest.mark.parametrize("budget", [1, 2, 3, 7])
def test_a_budget_too_small_for_the_top_box_and_its_rows_leaves_the_box(
    budget: int, tree: TreeOf
) -> None:
    for shapes in ({f"p{i}": (2,) for i in range(9)}, {"p": (2,), "q": (2,), "a.b.w": (3,)}):
        cut = fit(view_of(tree(shapes)), budget)
        assert cut.boxes[0].depth == 0
        assert 1 <= cut.num_nodes <= budget


def test_n6_1200_nested_modules_make_a_view(tree: TreeOf) -> None:
    view = view_of(tree({".".join(["m"] * depth + ["w"]): (depth,) for depth in range(1, 1201)}))
    assert view.full_depth == 1199
    assert fit(view, 200, 10).depth == 10


def test_where_all_siblings_differ_a_little_only_differences_are_drawn(tree: TreeOf) -> None:
    shapes = {f"layers.{i}.{n}.w": (2, 2) for i in range(5) for n in ("q", "k", "v")}
    shapes |= {f"layers.{i}.up.w": (4 + i, 2) for i in range(5)}
    view = view_of(tree(shapes))
    assert [row.label for row in box_of(view, "layers.3").rows] == ["up.w"]
    assert box_of(view, "layers.3").same == ("q", "k", "v")
    assert box_of(view, "layers.3").same_as == "layers.0"
    assert len(box_of(view, "layers.0").rows) == 4
    assert view.findings == ()


def test_siblings_that_share_little_are_drawn_in_full(tree: TreeOf) -> None:
    shapes: dict[str, tuple[int, ...]] = {
        f"layers.{i}.{n}.w": (2 + i, 2) for i in range(3) for n in ("q", "k", "v")
    }
    shapes |= {f"layers.{i}.norm.w": (2,) for i in range(3)}
    view = view_of(tree(shapes))
    assert [len(box.rows) for box in view.boxes if box.label in "012" and box.label] == [4, 4, 4]


def test_nothing_folded_draws_everything_in_full(tree: TreeOf) -> None:
    shapes = {f"layers.{i}.{n}.w": (2, 2) for i in range(5) for n in ("q", "k", "v", "o")}
    view = build_view(Subject(tree(shapes), ""), fold="none")
    assert sum(1 for _ in view.rows()) == 20
