from __future__ import annotations

from collections.abc import Mapping

from hpx.graph import GraphBuilder, ModuleGraph, ModuleSpec, TensorSpec
from hpx.graph.edit import set_key
from hpx.graph.fold import FoldedGraph, fold_graph
from hpx.layout import Layout


def tree(
    shapes: Mapping[str, tuple[int, ...]],
    *,
    classes: Mapping[str, str] | None = None,
    ties: Mapping[str, str] | None = None,
) -> ModuleGraph:
    builder = GraphBuilder()
    ids: dict[str, int] = {}

    def module(path: str) -> int:
        if path not in ids:
            parent, _, name = path.rpartition(".")
            above = module(parent) if path else -1
            ids[path] = builder.module(above, name, ModuleSpec((classes or {}).get(path, "M")))
        return ids[path]

    module("")
    for path, shape in shapes.items():
        parent, _, name = path.rpartition(".")
        ids[path] = builder.tensor("parameter", module(parent), name, TensorSpec(shape, "float32"))
    for path, first in (ties or {}).items():
        parent, _, name = path.rpartition(".")
        builder.link(module(parent), name, ids[first])
    return builder.finish()


def layers(count: int, odd: Mapping[int, tuple[int, ...]] | None = None) -> ModuleGraph:
    return tree({f"layers.{i}.w": (odd or {}).get(i, (4, 2)) for i in range(count)})


def set_layout(graph: ModuleGraph, path: str, text: str) -> None:
    set_key(graph, [graph.get(path).id], "layout", Layout.parse(text))


def names(folded: FoldedGraph) -> list[str]:
    return [folded.path(group.index) for group in folded.groups]


def test_equal_numbered_siblings_are_one_group() -> None:
    folded = layers(12).fold()
    assert names(folded) == ["", "layers", "layers.0-11", "layers.0-11.w"]
    assert [group.count for group in folded.groups] == [1, 1, 12, 12]


def test_siblings_fold_over_one_that_differs() -> None:
    folded = layers(58, {30: (4, 3)}).fold()
    assert names(folded)[2:] == [
        "layers.0-29,31-57",
        "layers.0-29,31-57.w",
        "layers.30",
        "layers.30.w",
    ]


def test_a_family_lists_its_largest_variant_first() -> None:
    folded = layers(5, {0: (9,)}).fold()
    [(parent, family)] = folded.families()
    assert folded.path(parent) == "layers"
    assert [len(folded.groups[index].members) for index in family] == [4, 1]


def test_siblings_that_all_differ_are_no_family() -> None:
    assert list(layers(2, {0: (9,)}).fold().families()) == []


def test_names_that_are_no_plain_number_do_not_fold() -> None:
    folded = tree({"a.w": (2,), "b.w": (2,), "00.w": (2,), "01.w": (2,)}).fold()
    assert names(folded)[1:] == ["a", "a.w", "b", "b.w", "00", "00.w", "01", "01.w"]


def test_a_class_tells_siblings_apart() -> None:
    graph = tree({"0.w": (2,), "1.w": (2,)}, classes={"1": "Other"})
    assert names(graph.fold())[1::2] == ["0", "1"]


def test_integer_attributes_such_as_a_layer_index_do_not_tell_siblings_apart() -> None:
    builder = GraphBuilder()
    root = builder.module(-1, "", ModuleSpec("M"))
    for index in range(3):
        spec = ModuleSpec("Layer", attributes=(("layer_idx", index),))
        builder.tensor(
            "parameter", builder.module(root, str(index), spec), "w", TensorSpec((2,), "float32")
        )
    assert names(builder.finish().fold()) == ["", "0-2", "0-2.w"]


def test_structure_folds_what_layouts_tell_apart() -> None:
    graph = layers(4)
    set_layout(graph, "layers.2.w", "tp:S(0)")
    assert "layers.0-3" in names(graph.fold("structure"))
    assert "layers.0-1,3" in names(graph.fold("layout"))


def test_the_deciding_pass_tells_siblings_apart_by_layout() -> None:
    graph = layers(3)
    odd = graph.get("layers.1.w").id
    decided = {node.id: "b" if node.id == odd else "a" for node in graph.parameters()}
    assert "layers.0,2" in names(fold_graph(graph, "layout", decided=decided))


def test_layers_that_are_each_tied_within_themselves_are_equal() -> None:
    graph = tree(
        {f"layers.{i}.a.w": (2,) for i in range(3)},
        ties={f"layers.{i}.b.w": f"layers.{i}.a.w" for i in range(3)},
    )
    assert "layers.0-2" in names(graph.fold())


def test_a_layer_that_is_tied_to_something_else_stays_apart() -> None:
    shapes = {"embed.w": (2,), **{f"layers.{i}.w": (2,) for i in range(3)}}
    graph = tree(shapes, ties={"layers.3.w": "embed.w"})
    assert "layers.0-2" in names(graph.fold())
    assert "layers.3" in names(graph.fold())


def test_layers_that_share_the_weight_of_the_first_are_equal_to_each_other() -> None:
    graph = tree({"layers.0.w": (2,)}, ties={f"layers.{i}.w": "layers.0.w" for i in range(1, 6)})
    folded = graph.fold()
    assert {"layers.0", "layers.1-5"} <= set(names(folded))
    assert [g.link for g in folded.groups if folded.path(g.index) == "layers.1-5.w"] == [True]


def test_every_node_belongs_to_one_group_and_the_counts_add_up() -> None:
    shapes = {
        f"layers.{i}.experts.{j}.w": (3 if (i, j) == (2, 5) else 2,)
        for i in range(4)
        for j in range(8)
    }
    graph = tree(shapes)
    folded = graph.fold()
    owner = folded.owner_of()
    assert owner.keys() == graph.nodes.keys()
    counted: dict[int, int] = {}
    for group in owner.values():
        counted[group] = counted.get(group, 0) + 1
    assert counted == {group.index: group.count for group in folded.groups}


def test_nothing_folds_if_nothing_is_to_fold() -> None:
    graph = layers(4)
    assert len(fold_graph(graph, "none").groups) == len(graph.nodes)


def test_n6_1200_nested_modules_fold_without_recursion() -> None:
    graph = tree({".".join(["inner"] * depth + ["w"]): (depth,) for depth in range(1, 1201)})
    folded = graph.fold()
    assert len(folded.groups) == len(graph.nodes)
    assert folded.path(len(folded.groups) - 1).count("inner") == 1200


def test_n8_32_equal_blocks_fold_and_the_one_that_differs_stands_alone() -> None:
    graph = layers(32)
    for index in range(32):
        set_layout(graph, f"layers.{index}.w", "R" if index == 7 else "tp:S(0)")
    assert {"layers.0-6,8-31", "layers.7"} <= set(names(graph.fold("layout")))


def test_folding_leaves_the_graph_as_it_is() -> None:
    graph = layers(6)
    before = graph.copy()
    graph.fold("layout")
    assert graph == before


def test_folding_can_begin_below_the_root() -> None:
    graph = layers(3)
    folded = fold_graph(graph, start=graph.get("layers").id)
    assert [group.name for group in folded.groups] == ["layers", "0-2", "w"]
