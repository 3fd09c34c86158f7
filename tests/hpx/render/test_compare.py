from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from hpx.errors import InputError, UsageError
from hpx.graph import ModuleGraph
from hpx.render import Options, draw, view
from hpx.render.conditions import failing, parse_conditions
from hpx.render.prepare import without_only
from hpx.render.viewmodel import Row, View
from hpx.run import Run, run

if TYPE_CHECKING:
    from tests.hpx.conftest import GraphOf, RunOf
    from tests.hpx.render.conftest import TreeOf

MESH = "dp=2,tp=2,ep=4"


def compared(old: Run | ModuleGraph, new: Run | ModuleGraph, **options: object) -> View:
    made = Options(against=new, **options)  # type: ignore[arg-type]
    return view(old, made, picture=False)


def row_of(made: View, path: str) -> Row:
    [found] = [row for row in made.rows() if row.path == path]
    return found


def text_of(old: Run | ModuleGraph, new: Run | ModuleGraph) -> str:
    return draw(old, "text", Options(against=new)).decode()


def fact(made: View, word: str) -> str:
    return dict(made.extra)[word]


def test_the_new_side_is_drawn_with_what_it_lacks_of_the_old_one(tree: TreeOf) -> None:
    made = compared(tree({"a.w": (2,), "b.w": (3,)}), tree({"a.w": (2,), "c.w": (4,)}))
    marks = {row.path: row.mark for row in made.rows()}
    assert marks == {"a.w": "", "b.w": "removed", "c.w": "added"}
    assert fact(made, "compared") == "1 added, 1 removed"


def test_what_was_removed_counts_in_no_sum(tree: TreeOf) -> None:
    made = compared(tree({"a.w": (2,), "b.w": (3,)}), tree({"a.w": (2,)}))
    assert (made.totals.parameters, made.totals.elements) == (1, 2)
    assert made.boxes[0].parameters == 1


def test_what_changed_says_what_it_was(tree: TreeOf) -> None:
    old = tree({"a.w": (2, 3)}, layouts={"a.w": "tp:S(0)"})
    new = tree({"a.w": (2, 4)}, layouts={"a.w": "tp:S(1)"})
    row = row_of(compared(old, new), "a.w")
    assert (row.mark, row.shape, row.token) == ("changed", (2, 4), "tp:S(1)")
    assert row.was == "shape [2, 3]; layout tp:S(0)"


def test_equal_models_do_not_differ(tree: TreeOf) -> None:
    made = compared(tree({"a.w": (2,)}), tree({"a.w": (2,)}))
    assert fact(made, "compared") == "every parameter is the same"
    assert made.changes == ()


def test_layouts_that_one_side_does_not_know_are_not_compared(tree: TreeOf) -> None:
    made = compared(tree({"a.w": (2,)}), tree({"a.w": (2,)}, layouts={"a.w": "tp:S(0)"}))
    assert made.changes == ()


def test_a_tie_that_is_gone_is_a_change(tree: TreeOf) -> None:
    old = tree({"a.w": (2,)}, ties={"b.w": "a.w"})
    made = compared(old, tree({"a.w": (2,), "b.w": (2,)}))
    assert row_of(made, "a.w").was == "names a.w, b.w"


def test_two_that_are_tied_now_say_what_both_were(tree: TreeOf) -> None:
    new = tree({"a.w": (2,)}, ties={"b.w": "a.w"})
    made = compared(tree({"a.w": (2,), "b.w": (2,)}), new)
    assert row_of(made, "a.w").was == "names a.w; names b.w"


def test_equal_changes_of_many_layers_fold(tree: TreeOf) -> None:
    old = tree({f"layers.{i}.{n}.w": (2,) for i in range(30) for n in "ab"})
    shapes = {f"layers.{i}.{n}.w": (2,) for i in range(30) for n in "ab"}
    shapes["layers.7.a.w"] = (5,)
    made = compared(old, tree(shapes))
    assert row_of(made, "layers.7.a.w").mark == "changed"
    assert made.num_nodes < 10


def test_an_expert_that_was_removed_stands_where_it_stood(tree: TreeOf) -> None:
    shapes = {f"layers.{i}.experts.{j}.w": (2, 2) for i in range(2) for j in range(8)}
    fewer = {path: shape for path, shape in shapes.items() if path != "layers.1.experts.3.w"}
    made = compared(tree(shapes), tree(fewer))
    assert row_of(made, "layers.1.experts.3.w").mark == "removed"


def test_a_run_against_the_model_as_it_came_shows_what_stacking_replaced(moe: Run) -> None:
    made = compared(moe, moe, step=0)
    assert row_of(made, "model.layers.0-1.mlp.experts.gate_proj").mark == "added"
    assert row_of(made, "model.layers.0-1.mlp.experts.0-7.gate_proj.weight").mark == "removed"
    assert "step 0" in made.source


def test_the_events_that_explain_a_difference_are_told(moe: Run) -> None:
    text = draw(moe, "text", Options(against=moe, step=0)).decode()
    assert "stacked into model.layers.{0-1}.mlp.experts.gate_proj by stack-experts" in text
    assert "b: shard-params (step " in text


def test_a_checkpoint_against_a_run_is_compared_by_names_and_shapes(moe: Run) -> None:
    checkpoint = ModuleGraph(dict(moe.entry.nodes), source="ckpt", has_structure=False)
    made = compared(checkpoint, moe)
    assert fact(made, "compared") == "6 added, 48 removed"
    assert row_of(made, "lm_head.weight").mark == ""


def test_a_buffer_of_a_checkpoint_is_not_missing_in_a_model(graph_of: GraphOf) -> None:
    model = graph_of({"bn.weight": (4,)}, buffers={"bn.running_mean": (4,)})
    names = graph_of({"bn.weight": (4,), "bn.running_mean": (4,)})
    names.has_structure = False
    assert compared(names, model).changes == ()
    assert compared(model, names).changes == ()


@pytest.mark.parametrize("name", ["nothing", "model.layers.0"])
def test_a_run_whose_parameters_are_not_in_its_graph_is_refused(moe_run: Run, name: str) -> None:
    value = json.loads(json.dumps(moe_run.to_json()))
    value["params"][3]["name"] = name
    with pytest.raises(InputError, match=f"it lists a parameter '{name}', and its graph has none"):
        compared(Run.from_json(value), moe_run)


def test_two_runs_differ_in_a_layout(graph_of: GraphOf, run_of: RunOf) -> None:
    graph = graph_of({f"layers.{i}.up.weight": (8, 8) for i in range(30)})
    a = run_of(graph, {"layers.*.up.weight": {"tp": "S(0)"}})
    b = run_of(graph, {"layers.*.up.weight": {"tp": "S(1)"}})
    row = row_of(compared(a, b), "layers.0-29.up.weight")
    assert (row.token, row.was, row.mark) == ("tp:S(1)", "layout tp:S(0)", "changed")


def test_only_changed_leaves_what_differs(tree: TreeOf) -> None:
    old, new = tree({"a.w": (2,), "b.w": (3,)}), tree({"a.w": (2,), "b.w": (4,)})
    made = compared(old, new, only=("changed",))
    assert [row.path for row in made.rows()] == ["b.w"]


def test_what_was_removed_is_no_parameter_without_a_layout(tree: TreeOf) -> None:
    old = tree({"a.w": (30,), "b.w": (90,)}, layouts={"a.w": "R", "b.w": "tp:S(0)"})
    new = tree({"a.w": (30,)}, layouts={"a.w": "R"})
    options = Options(against=new, only=("unset", "unsharded"))
    assert [row.path for row in view(old, options, picture=False).rows()] == ["a.w"]
    subject = without_only(old, Options(against=new))
    assert failing(subject, parse_conditions("unset,experts")) == []
    [line] = failing(subject, parse_conditions("unsharded"))
    assert "1 parameter, 60 bytes, 100.0% of the bytes: a.w" in line
    assert len(failing(subject, parse_conditions("changed"))) == 1


def test_a_step_of_a_model_is_refused(tree: TreeOf) -> None:
    graph = tree({"a.w": (2,)})
    with pytest.raises(UsageError, match="a model has no steps"):
        compared(graph, graph, step=1)


def test_hostile_names_of_a_comparison_stay_on_their_line(tree: TreeOf) -> None:
    name = "a\n\x1b[31m</script>.w"
    text = text_of(tree({name: (2,), "b.w": (2,)}), tree({"b.w": (3,)}))
    assert "\x1b" not in text
    assert not any(line.startswith("\x1b") for line in text.splitlines())
    assert "removed" in text


def test_ids_of_what_is_put_back_are_fresh(moe: Run, moe_graph: ModuleGraph) -> None:
    apart = run(moe_graph, moe.plan, MESH, "tie-weights")
    made = compared(apart, moe)
    ids = [row.node for row in made.rows() if row.kind == "parameter"]
    assert len(ids) == len(set(ids))


def test_what_runs_were_asked_for_differently_is_told(graph_of: GraphOf, run_of: RunOf) -> None:
    one = run_of(graph_of({"a.w": (8, 8)}), {"a.w": {"tp": "S(0)"}})
    other = run(one.entry, one.plan, one.mesh, "tie-weights, shard-params")
    assert fact(compared(one, other), "compared").endswith("; other pipeline, schedule")


def test_what_a_wrapped_module_lost_is_put_back_inside_it(graph_of: GraphOf) -> None:
    wrappers = {"inner": "_orig_mod"}
    shapes = {"inner._orig_mod.a.w": (2,), "inner._orig_mod.b.w": (2,)}
    old = graph_of(shapes, wrappers=wrappers)
    new = graph_of({"inner._orig_mod.a.w": (2,)}, wrappers=wrappers)
    assert row_of(compared(old, new), "inner.b.w").mark == "removed"
