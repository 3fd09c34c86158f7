"""Experts that `stack-experts` refuses, and whom it names."""

from __future__ import annotations

import torch
from torch import nn

from hpx.graph import TensorSpec
from hpx.testing import graph_of
from tests.passes.experts import Expert, graph, moe, refused


def test_a_missing_index_is_refused_and_named() -> None:
    model = nn.Module()
    model.experts = nn.ModuleDict({str(i): Expert() for i in (0, 1, 3)})
    assert "its 3 experts are not numbered 0..2: missing: 2" in refused(model)


def test_an_index_that_occurs_twice_is_refused_and_named() -> None:
    model = nn.Module()
    model.experts = nn.ModuleDict({"0": Expert(), "1": Expert(), "expert_1": Expert()})
    assert "twice: 1" in refused(model)


def test_an_expert_of_another_shape_is_refused_by_its_number() -> None:
    model = moe()
    model.expert(2).up = nn.Linear(8, 7, bias=False)
    text = refused(model)
    assert "experts: expert 2 of 4 differs from the others" in text
    assert "up.weight has shape (7, 8), not (6, 8)" in text


def test_an_expert_of_another_dtype_is_refused_by_its_number() -> None:
    model = moe()
    model.expert(3).to(torch.bfloat16)
    text = refused(model)
    assert "expert 3 of 4 differs from the others" in text
    assert "up.weight has dtype bfloat16, not float32" in text


def test_a_frozen_expert_among_trained_ones_is_refused_by_its_number() -> None:
    model = moe()
    model.expert(1).requires_grad_(False)
    assert "up.weight has requires_grad False, not True" in refused(model)


def test_experts_that_differ_in_the_same_way_are_named_together() -> None:
    model = moe(6)
    for index in (1, 2, 4):
        model.expert(index).requires_grad_(False)
    model.expert(5).requires_grad_(False)
    text = refused(model)
    assert "expert 0,3 of 6 differs from the others" in text


def test_an_expert_with_a_further_parameter_is_refused_by_its_number() -> None:
    model = moe()
    model.expert(1).scale = nn.Parameter(torch.ones(1))
    text = refused(model)
    assert "expert 1 of 4 differs from the others: it also has scale" in text


def test_experts_that_differ_in_an_integer_are_refused_with_both_values() -> None:
    model = moe(3)
    model.expert(2).up.in_features = 9
    model.expert(1).width = 5
    text = refused(model)
    assert "width is 5, not 6" in text
    assert "up.in_features is 9, not 8" in text


def test_a_buffer_in_an_expert_is_refused_by_name() -> None:
    model = moe()
    model.expert(0).register_buffer("seen", torch.zeros(1))
    assert "experts.0.seen: expert 0 has a buffer" in refused(model)


def test_a_plain_tensor_in_an_expert_is_refused_by_name() -> None:
    model = moe()
    for index in range(4):
        model.expert(index).table = torch.zeros(2)
    assert "experts.0.table: expert 0 has a tensor attribute" in refused(model)


def test_a_hook_on_an_expert_is_refused_by_name() -> None:
    model = moe()
    model.expert(1).register_forward_hook(lambda *_: None)
    assert "experts.1: expert 1 has hooks (forward)" in refused(model)


def test_a_parametrised_expert_is_refused_by_name() -> None:
    model = moe()
    nn.utils.parametrizations.weight_norm(model.expert(2).up)
    assert "experts.2.up: expert 2 is parametrised" in refused(model)


def test_a_parameter_shared_between_experts_is_refused_by_name() -> None:
    model = moe()
    model.expert(1).up.weight = model.expert(0).up.weight
    text = refused(model)
    assert "experts.0.up.weight: expert 0 shares a parameter" in text
    assert "experts.0.up.weight, experts.1.up.weight" in text


def test_one_module_as_two_experts_is_refused() -> None:
    expert = Expert()
    model = nn.Module()
    model.experts = nn.ModuleList([expert, expert])
    assert "expert 0 shares a module" in refused(model)


def test_a_wrapped_expert_is_refused_by_name() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = moe(2, lambda: checkpoint_wrapper(Expert()))
    assert "expert 0 is wrapped by CheckpointWrapper" in refused(model)


def test_an_expert_of_an_unknown_tensor_type_is_refused() -> None:
    spec = TensorSpec((6, 8), "uint8", cls="torchao.dtypes.AffineQuantizedTensor")
    before = graph_of({f"experts.{i}.weight": spec for i in range(2)})
    assert "expert 0 has a tensor of type AffineQuantizedTensor" in refused(before)


def test_an_expert_that_is_a_dtensor_already_is_refused() -> None:
    placed = (("tp", 2, "S(0)"),)
    spec = TensorSpec((6, 8), "float32", cls="torch.distributed.tensor.DTensor", placed=placed)
    before = graph_of({f"experts.{i}.weight": spec for i in range(2)})
    assert "expert 0 has a DTensor already (tp:S(0))" in refused(before)


def test_all_problems_are_told_together_and_nothing_is_stacked() -> None:
    layers = [moe(), moe(), moe()]
    layers[1].expert(0).requires_grad_(False)
    layers[2].expert(1).requires_grad_(False)
    model = nn.Module()
    model.layers = nn.ModuleList(layers)
    before = graph(model)
    nodes = dict(before.nodes)
    text = refused(before)
    assert "2 problems with experts; nothing was changed" in text
    assert before.nodes == nodes
