"""Wrappers are no part of names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.testing._internal.distributed.fake_pg import FakeStore

from hpx.graph.from_module import graph_from_module
from hpx.graph.graph import ModuleGraph
from tests.hpx.graph.lookups import parameter_names, tensor


@pytest.fixture
def fake_ranks() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def compiled(model: nn.Module) -> nn.Module:
    wrapper = torch.compile(model, backend="eager")
    assert isinstance(wrapper, nn.Module)
    return wrapper


def test_a_compiled_model_has_the_names_of_the_model() -> None:
    graph = graph_from_module(compiled(nn.Sequential(nn.Linear(2, 2))))
    assert parameter_names(graph) == [["0.weight"], ["0.bias"]]
    assert graph.find("_orig_mod.0.weight") == graph.find("0.weight")


def test_the_empty_name_leads_to_what_is_wrapped_as_its_registered_name_does() -> None:
    graph = ModuleGraph.from_module(compiled(nn.Sequential(nn.Linear(2, 2))))
    found = graph.find("")
    assert found is not None
    assert found == graph.find("_orig_mod")
    assert graph.module(found).spec.short_cls == "Sequential"
    assert graph.path(found) == ""


def test_a_compiled_model_gives_the_same_graph_each_time() -> None:
    graphs = [graph_from_module(compiled(nn.Linear(2, 2))) for _ in range(2)]
    assert graphs[0] == graphs[1]


def test_a_checkpointed_layer_has_the_name_of_the_layer() -> None:
    model = nn.Sequential(checkpoint_wrapper(nn.Linear(2, 2)), nn.Linear(2, 2))
    graph = graph_from_module(model)
    assert parameter_names(graph)[0] == ["0.weight"]
    assert graph.find("0._checkpoint_wrapped_module.weight") == graph.find("0.weight")
    registered = graph.registered_path(tensor(graph, "0.weight").id)
    assert model.get_parameter(registered) is next(model.parameters())


@pytest.mark.usefixtures("fake_ranks")
def test_the_prefix_of_data_parallel_models_is_no_part_of_names() -> None:
    class Mine(nn.parallel.DistributedDataParallel):
        pass

    graph = graph_from_module(Mine(nn.Linear(2, 2)))
    assert parameter_names(graph) == [["weight"], ["bias"]]
    assert graph.find("module.weight") == graph.find("weight")


def test_a_module_of_the_name_module_is_kept_if_nothing_wraps_it() -> None:
    model = nn.Module()
    model.add_module("module", nn.Linear(2, 2, bias=False))
    assert parameter_names(graph_from_module(model)) == [["module.weight"]]
