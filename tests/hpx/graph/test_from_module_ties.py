"""What stands on one memory is one node, or refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hpx.errors import InputError
from hpx.graph.from_module import graph_from_module
from hpx.graph.graph import ModuleGraph
from tests.hpx.graph.lookups import module, parameter_names, tensor


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)


def test_one_parameter_object_under_two_names_is_one_node() -> None:
    model = Tied()
    model.head.weight = model.embed.weight
    assert parameter_names(graph_from_module(model)) == [["embed.weight", "head.weight"]]


def test_one_storage_under_two_names_is_one_node() -> None:
    model = Tied()
    model.head.weight = nn.Parameter(model.embed.weight.data)
    assert parameter_names(graph_from_module(model)) == [["embed.weight", "head.weight"]]


@pytest.mark.parametrize("share", [True, False])
def test_meta_tensors_are_tied_only_if_they_share_a_storage(share: bool) -> None:
    with torch.device("meta"):
        model = Tied()
    if share:
        model.head.weight = nn.Parameter(model.embed.weight.data)
    names = parameter_names(graph_from_module(model))
    assert names == (
        [["embed.weight", "head.weight"]] if share else [["embed.weight"], ["head.weight"]]
    )


def test_a_tied_group_has_one_node_that_both_owners_hold() -> None:
    model = Tied()
    model.head.weight = model.embed.weight
    graph = graph_from_module(model)
    embed, head = module(graph, "embed"), module(graph, "head")
    assert embed.children["weight"] == head.children["weight"]
    assert len(list(graph.parameters())) == 1


@pytest.mark.parametrize("first_is_trained", [True, False])
def test_two_of_one_storage_that_differ_in_requires_grad_are_refused_by_name(
    first_is_trained: bool,
) -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    first, second = tuple(model.parameters())
    second.data = first.data
    first.requires_grad_(first_is_trained)
    second.requires_grad_(not first_is_trained)
    trained, frozen = ("0", "1") if first_is_trained else ("1", "0")
    said = f"'{trained}.weight' and '{frozen}.weight' share one memory, and only the first is"
    with pytest.raises(InputError, match=said):
        ModuleGraph.from_module(model)


def test_two_frozen_parameters_of_one_storage_are_one_node() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    first, second = tuple(model.parameters())
    second.data = first.data
    model.requires_grad_(False)
    graph = ModuleGraph.from_module(model)
    assert parameter_names(graph) == [["0.weight", "1.weight"]]
    assert not tensor(graph, "0.weight").spec.requires_grad


def test_a_transposed_view_of_the_same_storage_is_refused() -> None:
    model = nn.Module()
    model.a = nn.Linear(4, 6, bias=False)
    model.b = nn.Linear(6, 4, bias=False)
    model.b.weight = nn.Parameter(model.a.weight.data.t())
    with pytest.raises(InputError, match=r"'b\.weight' \[4, 6\] overlaps a part of 'a\.weight'"):
        graph_from_module(model)


def test_a_parameter_that_is_a_part_of_another_is_refused() -> None:
    model = nn.Module()
    model.whole = nn.Parameter(torch.zeros(4, 2))
    model.part = nn.Parameter(model.whole.data[1:3])
    with pytest.raises(InputError, match=r"bytes 8\.\.24 and 0\.\.32 of one storage"):
        graph_from_module(model)


def test_the_columns_of_one_matrix_are_parameters_of_their_own() -> None:
    model = nn.Module()
    fused = torch.zeros(4, 6)
    model.left, model.right = nn.Parameter(fused[:, :3]), nn.Parameter(fused[:, 3:])
    assert parameter_names(graph_from_module(model)) == [["left"], ["right"]]
