"""What `stack-experts` makes of experts."""

from __future__ import annotations

import torch
from torch import nn

from hpx.passes.stack_experts import StackExperts
from hpx.testing import assert_idempotent, assert_pass, check_contract, graph_of, run_pass
from tests.passes.experts import Expert, graph, moe


def test_every_parameter_path_becomes_one_stacked_parameter_of_the_container() -> None:
    before = graph_of(
        {
            "experts.0.up.weight": (6, 8),
            "experts.0.down.weight": (8, 6),
            "experts.1.up.weight": (6, 8),
            "experts.1.down.weight": (8, 6),
        }
    )
    outcome = assert_pass(
        StackExperts(),
        before,
        {
            "experts.0": None,
            "experts.1": None,
            "experts.up": {"shape": (2, 6, 8), "lineage": "stack(experts.{0-1}.up.weight)"},
            "experts.down": {"shape": (2, 8, 6), "lineage": "stack(experts.{0-1}.down.weight)"},
        },
        events=[
            "derive stack(experts.{0-1}.up.weight): experts.up",
            "derive stack(experts.{0-1}.down.weight): experts.down",
            "remove: "
            + ", ".join(
                f"experts.{{0-1}}{name}"
                for name in ("", ".up", ".up.weight", ".down", ".down.weight")
            ),
        ],
    )
    assert outcome.events[0].why == "2 experts, found by name; slot i is expert i"
    assert outcome.events[-1].why == "stacked into up, down"


def test_a_stacked_bias_is_named_after_its_layer() -> None:
    after = run_pass(StackExperts(), graph(moe(2, lambda: Expert(bias=True)))).graph
    shapes = {node.name: node.shape for node in after.parameters() if node.lineage is not None}
    assert shapes == {"up": (2, 6, 8), "up_bias": (2, 6), "down": (2, 8, 6), "down_bias": (2, 8)}


def test_dtype_requires_grad_and_device_are_those_of_the_experts() -> None:
    model = moe(2).to(torch.bfloat16).to("meta").requires_grad_(False)
    after = run_pass(StackExperts(), graph(model)).graph
    specs = [node.spec for node in after.parameters() if node.lineage is not None]
    assert {(spec.dtype, spec.requires_grad, spec.device) for spec in specs} == {
        ("bfloat16", False, "meta")
    }


def test_a_stacked_parameter_is_contiguous_however_its_sources_lie() -> None:
    model = moe(2)
    for index in range(2):
        model.expert(index).up.weight = nn.Parameter(torch.zeros(8, 6).t())
    after = run_pass(StackExperts(), graph(model)).graph
    assert after.tensor(after.find("experts.up") or -1).spec.strides == (48, 8, 1)


def test_experts_with_named_numbers_in_a_dictionary_are_stacked_in_numeric_order() -> None:
    model = nn.Module()
    model.experts = nn.ModuleDict({f"expert_{i}": Expert() for i in (0, 10, 11, *range(1, 10))})
    after = run_pass(StackExperts(), graph(model)).graph
    names = [f"experts.expert_{i}.up.weight" for i in range(12)]
    before = graph(model)
    node = after.tensor(after.find("experts.up") or -1)
    assert [before.path(source.node) for source in node.lineage.parts] == names  # type: ignore[union-attr]


def test_experts_that_are_stacked_already_are_left_and_said_so() -> None:
    before = graph_of({"mlp.experts.gate_up_proj": (4, 8, 6), "mlp.experts.down_proj": (4, 3, 8)})
    outcome = assert_pass(StackExperts(), before, {}, events=["skip: mlp.experts"])
    assert outcome.events[0].why == "its parameters are stacked already"


def test_what_else_stands_in_the_container_stays() -> None:
    model = moe()
    model.experts.register_buffer("load", torch.zeros(4))
    model.experts.act = nn.ReLU()
    model.experts.shared = nn.Linear(8, 8)
    after = run_pass(StackExperts(), graph(model)).graph
    names = list(after.module(after.find("experts") or -1).children)
    assert names == ["load", "act", "shared", "up", "down"]


def test_layers_without_parameters_inside_experts_go_with_them() -> None:
    def expert() -> nn.Module:
        made = Expert()
        made.act = nn.SiLU()
        return made

    after = run_pass(StackExperts(), graph(moe(2, expert))).graph
    assert list(after.module(after.find("experts") or -1).children) == ["up", "down"]


def test_it_keeps_its_contract_and_stacks_once() -> None:
    check_contract(StackExperts(), graph(moe()))
    assert_idempotent(StackExperts(), graph(moe()))
