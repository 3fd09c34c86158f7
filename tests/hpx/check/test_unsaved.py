"""P3: tensors that no state dict has are named at plan time."""

from __future__ import annotations

import torch
from torch import nn

from hpx.check.unsaved import lost_buffers, plain_tensors
from hpx.graph.graph import ModuleGraph
from tests.hpx.check.asking import ask, levels, where


class Rotary(nn.Module):
    """Frequencies that are computed once, when it is made."""

    def __init__(self, *, persistent: bool = False, device: str = "meta") -> None:
        super().__init__()
        frequencies = torch.ones(4, device=device)
        self.register_buffer("inv_freq", frequencies, persistent=persistent)


class Cached(nn.Module):
    """A mask that is a plain attribute."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.mask = torch.ones(4, 4, device=device)


def graph_of_two(first: nn.Module, source: str = "") -> ModuleGraph:
    model = nn.Sequential(first, nn.Linear(4, 4, device="meta"))
    return ModuleGraph.from_module(model, source=source)


def test_p3_a_non_persistent_buffer_on_meta_is_a_warning_that_names_it() -> None:
    graph = graph_of_two(Rotary())
    (problem,) = found = ask(lost_buffers, graph)
    assert (levels(found), where(graph, found)) == (["warning"], [["0.inv_freq"]])
    assert "no state dict has them" in problem.text
    assert "recompute" in problem.hint


def test_p3_of_a_model_that_hpx_built_from_a_config_it_is_a_remark() -> None:
    assert levels(ask(lost_buffers, graph_of_two(Rotary(), "config:config.json"))) == ["info"]


def test_p3_a_buffer_that_a_checkpoint_has_is_silent() -> None:
    assert ask(lost_buffers, graph_of_two(Rotary(persistent=True))) == []


def test_p3_a_buffer_that_has_values_is_silent() -> None:
    assert ask(lost_buffers, graph_of_two(Rotary(device="cpu"))) == []


def test_a_plain_tensor_attribute_is_a_remark() -> None:
    graph = graph_of_two(Cached("cpu"))
    (problem,) = found = ask(plain_tensors, graph)
    assert (levels(found), where(graph, found)) == (["info"], [["0.mask"]])
    assert problem.hint == "register them as buffers"


def test_a_plain_tensor_attribute_on_meta_is_a_warning() -> None:
    assert levels(ask(plain_tensors, graph_of_two(Cached("meta")))) == ["warning"]


def test_a_model_without_plain_tensors_is_silent() -> None:
    assert ask(plain_tensors, graph_of_two(Rotary())) == []
