from __future__ import annotations

import pytest
import torch
from torch import nn

from hpx import bundled
from hpx.errors import UsageError
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode


@pytest.fixture
def graph() -> ModuleGraph:
    return ModuleGraph.from_module(bundled.tiny_llama(tied=True))


@pytest.fixture
def shared() -> ModuleGraph:
    """A block under two names, with a layer under two names inside it."""
    block = nn.Module()
    block.a = nn.Linear(2, 2, bias=False)
    block.b = block.a
    model = nn.Module()
    model.x, model.y = block, block
    return ModuleGraph.from_module(model)


def test_every_path_finds_its_node(graph: ModuleGraph) -> None:
    for node in graph.walk():
        for path in graph.paths(node.id):
            assert graph.find(path) == node.id


def test_the_root_has_the_empty_path(graph: ModuleGraph) -> None:
    assert graph.path(graph.root) == ""
    assert graph.paths(graph.root) == [""]
    assert graph.get("").id == graph.root


def test_a_name_that_is_not_there_is_not_found(graph: ModuleGraph) -> None:
    assert graph.find("model.layers.9") is None
    assert graph.find("model.embed_tokens.weight.more") is None


def test_getting_a_wrong_name_tells_the_nearest_one(graph: ModuleGraph) -> None:
    with pytest.raises(UsageError, match=r"did you mean model\.layers\.0\.self_attn"):
        graph.get("model.layers.0.self_atn")


def test_getting_a_wrong_name_in_the_middle_tells_whole_names(graph: ModuleGraph) -> None:
    with pytest.raises(UsageError, match=r"did you mean .*model\.embed_tokens\.weight"):
        graph.get("model.embed_token.weight")


def test_a_tied_parameter_is_found_by_each_of_its_names(graph: ModuleGraph) -> None:
    assert graph.find("lm_head.weight") == graph.find("model.embed_tokens.weight")


def test_a_shared_module_gives_what_is_below_it_every_combination_of_names(
    shared: ModuleGraph,
) -> None:
    (weight,) = shared.parameters()
    assert shared.paths(weight.id) == [
        "x.a.weight",
        "y.a.weight",
        "x.b.weight",
        "y.b.weight",
    ]


def test_paths_below_a_shared_module_need_no_recursion() -> None:
    model = root = nn.Module()
    for _ in range(3_000):
        model.x = nn.Module()
        model = model.x
    model.weight = nn.Parameter(torch.zeros(1))
    root.again = root.x
    graph = ModuleGraph.from_module(root)
    (weight,) = graph.parameters()
    assert [path[:8] for path in graph.paths(weight.id)] == ["x.x.x.x.", "again.x."]


def test_a_walk_meets_each_node_once_in_preorder(shared: ModuleGraph) -> None:
    assert [node.id for node in shared.walk()] == list(range(len(shared.nodes)))


def test_a_walk_can_start_anywhere(graph: ModuleGraph) -> None:
    start = graph.find("model.layers.1.self_attn")
    assert {graph.path(node.id).rpartition(".")[0] for node in graph.parameters(start)} == {
        f"model.layers.1.self_attn.{part}_proj" for part in "qkvo"
    }


def test_children_include_second_edges(shared: ModuleGraph) -> None:
    assert [child.id for child in shared.children(shared.root)] == [1, 1]


def test_a_tensor_has_no_children(graph: ModuleGraph) -> None:
    assert graph.children(next(graph.parameters()).id) == []


def test_equal_layers_have_one_signature_and_a_different_one_has_its_own() -> None:
    layers = [nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 3)]
    graph = ModuleGraph.from_module(nn.Sequential(*layers))
    first, second, third = (graph.module(child.id).signature for child in graph.children(0))
    assert first == second != third


def test_a_copy_is_equal_and_independent(graph: ModuleGraph) -> None:
    twin = graph.copy()
    assert twin == graph
    del twin.nodes[len(graph.nodes) - 1]
    assert twin != graph


def test_fresh_ids_are_not_in_the_graph(graph: ModuleGraph) -> None:
    first, second = graph.take_id(), graph.take_id()
    assert first != second
    assert not {first, second} & set(graph.nodes)


def test_wrappers_are_not_part_of_canonical_names_at_any_depth() -> None:
    wrapper = nn.Module()
    wrapper.add_module("_fsdp_wrapped_module", nn.Linear(2, 2, bias=False))
    outer = nn.Module()
    outer.add_module("_orig_mod", wrapper)
    graph = ModuleGraph.from_module(nn.ModuleDict({"layer": outer}))
    (weight,) = graph.parameters()
    assert graph.paths(weight.id) == ["layer.weight"]
    assert graph.registered_path(weight.id) == "layer._orig_mod._fsdp_wrapped_module.weight"
    for path in ("layer.weight", "layer._orig_mod.weight", graph.registered_path(weight.id)):
        assert graph.find(path) == weight.id
    layer = graph.get("layer")
    assert isinstance(layer, ModuleNode)
    assert layer.spec.short_cls == "Linear"


def test_networkx_sees_a_tree_of_contains_edges_and_an_alias_edge_for_each_tie(
    graph: ModuleGraph,
) -> None:
    import networkx as nx

    view = graph.to_networkx()
    contains = [(a, b) for a, b, key in view.edges(keys=True) if key == "contains"]
    alias = [(a, b) for a, b, key in view.edges(keys=True) if key == "alias"]
    assert nx.is_arborescence(nx.DiGraph(contains))
    assert alias == [(graph.find("lm_head"), graph.find("model.embed_tokens.weight"))]
    assert view.nodes[graph.get("lm_head").id]["path"] == "lm_head"
    assert view.graph["source"] == graph.source
