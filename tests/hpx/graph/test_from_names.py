from __future__ import annotations

import pytest

from hpx.errors import InputError
from hpx.graph.from_names import NamedTensor, graph_from_names
from hpx.graph.graph import ModuleGraph


def graph_of(*names: str, dtype: str = "float32") -> ModuleGraph:
    return graph_from_names([NamedTensor(name, (2, 2), dtype) for name in names], source="test")


def canonical(graph: ModuleGraph) -> list[str]:
    return [graph.path(node.id) for node in graph.parameters()]


def test_names_become_a_tree_without_classes() -> None:
    graph = graph_of("model.norm.weight", "lm_head.weight")
    assert canonical(graph) == ["model.norm.weight", "lm_head.weight"]
    assert not graph.has_structure
    assert {node.spec.cls for node in graph.modules()} == {""}


def test_names_without_a_dot_are_parameters_of_the_root() -> None:
    graph = graph_of("weight", "bias")
    assert canonical(graph) == ["weight", "bias"]
    assert list(graph.module(graph.root).children) == ["weight", "bias"]


def test_ids_are_preorder_numbers_whatever_the_order_of_names() -> None:
    graph = graph_of("a.x.w", "b.w", "a.w", "w")
    assert [node.id for node in graph.walk()] == list(range(len(graph.nodes)))
    assert canonical(graph) == ["w", "a.w", "a.x.w", "b.w"]


def test_numbered_siblings_stand_in_numeric_order() -> None:
    names = sorted(f"experts.{index}.w" for index in range(12))
    graph = graph_of(*names)
    assert canonical(graph) == [f"experts.{index}.w" for index in range(12)]


def test_other_siblings_stand_as_they_first_appear() -> None:
    assert canonical(graph_of("z.w", "a.w", "2.w", "z.v")) == ["z.w", "z.v", "a.w", "2.w"]


def test_floating_tensors_are_parameters_and_others_buffers() -> None:
    tensors = [
        NamedTensor("w", (1,), "bfloat16"),
        NamedTensor("steps", (), "int64"),
        NamedTensor("mask", (1,), "bool"),
        NamedTensor("scale", (1,), "float8_e4m3fn"),
    ]
    graph = graph_from_names(tensors, source="test")
    assert [(graph.path(node.id), node.kind) for node in graph.walk()][1:] == [
        ("w", "parameter"),
        ("steps", "buffer"),
        ("mask", "buffer"),
        ("scale", "parameter"),
    ]


def test_parameters_are_trainable_and_buffers_are_not() -> None:
    graph = graph_from_names(
        [NamedTensor("w", (1,), "float32"), NamedTensor("n", (1,), "int64")], source="test"
    )
    assert [node.spec.requires_grad for node in graph.parameters()] == [True]
    assert [node.spec.requires_grad for node in graph.buffers()] == [False]


def test_names_of_one_tensor_are_names_of_one_node() -> None:
    head = NamedTensor("head.weight", (2,), "float32", same_as="model.embed.weight")
    tensors = [NamedTensor("model.embed.weight", (2,), "float32"), head]
    graph = graph_from_names(tensors, source="test")
    (node,) = graph.parameters()
    assert graph.paths(node.id) == ["model.embed.weight", "head.weight"]


def test_the_first_name_in_the_tree_owns_a_tied_tensor() -> None:
    tensors = [
        NamedTensor("a.x.deep.w", (2,), "float32"),
        NamedTensor("a.w", (2,), "float32", same_as="a.x.deep.w"),
    ]
    graph = graph_from_names(tensors, source="test")
    (node,) = graph.parameters()
    assert graph.paths(node.id) == ["a.w", "a.x.deep.w"]
    assert [node.id for node in graph.walk()] == list(range(len(graph.nodes)))


def test_a_prefix_module_of_every_name_is_dropped_and_accepted() -> None:
    graph = graph_of("module.a.w", "module.b.w")
    assert canonical(graph) == ["a.w", "b.w"]
    assert graph.find("module.a.w") == graph.find("a.w")


def test_a_prefix_module_of_some_names_is_kept() -> None:
    assert canonical(graph_of("module.a.w", "b.w")) == ["module.a.w", "b.w"]
    assert canonical(graph_of("x.module.w")) == ["x.module.w"]


@pytest.mark.parametrize(
    "name",
    [
        "_orig_mod.a.w",
        "module._orig_mod.a.w",
        "_orig_mod.module.a.w",
        "a._checkpoint_wrapped_module.w",
        "_fsdp_wrapped_module.a._fsdp_wrapped_module.w",
    ],
)
def test_prefixes_of_wrappers_are_dropped_and_accepted(name: str) -> None:
    graph = graph_of(name)
    assert canonical(graph) == ["a.w"]
    assert graph.find(name) == graph.find("a.w")
    assert graph.registered_path(next(graph.parameters()).id) == name


@pytest.mark.parametrize("names", [("a.b", "a.b.c.d"), ("a.b.c.d", "a.b")])
def test_a_tensor_that_is_also_a_prefix_is_refused_with_both_names(names: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=r"'a\.b' is a tensor and also the beginning of 'a\.b\.c"):
        graph_of(*names)


def test_a_name_that_occurs_twice_is_refused() -> None:
    with pytest.raises(InputError, match=r"'a\.b' occurs twice"):
        graph_of("a.b", "a.b")


@pytest.mark.parametrize("name", ["", ".a", "a.", "a..b"])
def test_a_name_with_an_empty_part_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="has an empty part"):
        graph_of(name)


def test_a_name_of_thousands_of_parts_is_a_name() -> None:
    name = "x." * 5_000 + "w"
    assert canonical(graph_of(name)) == [name]
