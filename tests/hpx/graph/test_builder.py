from __future__ import annotations

import pytest

from hpx.errors import InputError
from hpx.graph.builder import GraphBuilder
from hpx.graph.nodes import ModuleSpec, TensorSpec

BLOCK = ModuleSpec("Block")
WEIGHT = TensorSpec((2, 2), "float32")


def test_ids_are_given_in_the_order_of_the_calls() -> None:
    builder = GraphBuilder()
    root = builder.module(-1, "", BLOCK)
    weight = builder.tensor("parameter", root, "weight", WEIGHT)
    assert (root, weight) == (0, 1)
    assert builder.finish().find("weight") == 1


def test_equal_specifications_become_one_object() -> None:
    builder = GraphBuilder()
    root = builder.module(-1, "", BLOCK)
    for name in ("a", "b"):
        builder.tensor("parameter", root, name, TensorSpec((2, 2), "float32"))
    first, second = builder.finish().parameters()
    assert first.spec is second.spec


def test_a_link_is_one_more_name_for_a_node() -> None:
    builder = GraphBuilder()
    root = builder.module(-1, "", BLOCK)
    weight = builder.tensor("parameter", root, "a", WEIGHT)
    builder.link(root, "b", weight)
    graph = builder.finish()
    assert graph.paths(weight) == ["a", "b"]
    assert graph.nodes[weight].more == ((root, "b"),)


def test_a_link_can_stand_between_children() -> None:
    builder = GraphBuilder()
    root = builder.module(-1, "", BLOCK)
    first = builder.tensor("parameter", root, "a", WEIGHT)
    builder.tensor("parameter", root, "c", WEIGHT)
    builder.link(root, "b", first, place=1)
    assert list(builder.finish().module(root).children) == ["a", "b", "c"]


def test_a_name_that_is_given_twice_in_one_module_is_refused() -> None:
    builder = GraphBuilder()
    root = builder.module(-1, "", BLOCK)
    builder.tensor("parameter", root, "weight", WEIGHT)
    with pytest.raises(InputError, match="'weight' occurs twice"):
        builder.module(root, "weight", BLOCK)


def test_signatures_tell_an_owned_child_from_a_shared_one() -> None:
    builder = GraphBuilder()
    root = builder.module(-1, "", BLOCK)
    owner = builder.module(root, "owner", BLOCK)
    weight = builder.tensor("parameter", owner, "weight", WEIGHT)
    other = builder.module(root, "other", BLOCK)
    builder.link(other, "weight", weight)
    graph = builder.finish()
    assert graph.module(owner).signature != graph.module(other).signature


def test_signatures_tell_a_parameter_from_a_buffer() -> None:
    builder = GraphBuilder()
    root = builder.module(-1, "", BLOCK)
    for name, kind in (("a", "parameter"), ("b", "buffer")):
        block = builder.module(root, name, BLOCK)
        builder.tensor("parameter" if kind == "parameter" else "buffer", block, "x", WEIGHT)
    graph = builder.finish()
    first, second = (graph.module(child.id).signature for child in graph.children(root))
    assert first != second


def test_what_is_being_built_can_be_named() -> None:
    builder = GraphBuilder()
    root = builder.module(-1, "", BLOCK)
    layer = builder.module(root, "layer", BLOCK)
    weight = builder.tensor("parameter", layer, "weight", WEIGHT)
    assert builder.path(weight) == "layer.weight"
    assert builder.path(root) == ""
    assert list(builder.above(weight)) == [weight, layer, root]


def test_a_finished_graph_keeps_its_source_and_hints() -> None:
    builder = GraphBuilder()
    builder.module(-1, "", BLOCK)
    graph = builder.finish(source="mine", hints={"tied": []}, has_structure=False)
    assert (graph.source, graph.hints, graph.has_structure) == ("mine", {"tied": []}, False)
