"""Which modules `stack-experts` takes for experts: by name, by structure, by the plan."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from hpx.errors import PassError
from hpx.passes.stack_experts import StackExperts
from hpx.plan import ShardingPlan
from hpx.testing import assert_pass, graph_of, run_pass
from tests.passes.experts import Expert, graph, moe, naming, refused


def test_experts_are_found_by_structure_beside_a_router() -> None:
    block = nn.Module()
    block.router = nn.Linear(8, 4, bias=False)
    block.branches = nn.ModuleList(Expert() for _ in range(4))
    model = nn.Module()
    model.block = block
    outcome = run_pass(StackExperts(), graph(model))
    assert outcome.events[0].why == "4 experts, found by structure; slot i is expert i"
    assert outcome.graph.find("block.branches.up") is not None


def test_decoder_layers_beside_a_matrix_with_a_row_a_layer_are_no_experts() -> None:
    model = nn.Module()
    model.scales = nn.Parameter(torch.zeros(4, 8))
    layers = [nn.ModuleDict({"q_proj": nn.Linear(8, 8)}) for _ in range(4)]
    model.layers = nn.ModuleList(layers)
    assert_pass(StackExperts(), graph(model), {}, events=["note"])


def routed(name: str, router: nn.Module, make: Callable[[], nn.Module] = Expert) -> nn.Module:
    block = nn.Module()
    block.add_module("ffns", nn.ModuleList(make() for _ in range(4)))
    block.add_module(name, router)
    return block


@pytest.mark.parametrize("name", ["gate", "router", "wg", "gating", "switch", "routing"])
def test_a_module_named_as_a_router_tells_experts(name: str) -> None:
    outcome = run_pass(StackExperts(), graph(routed(name, nn.Linear(8, 4))))
    assert outcome.graph.find("ffns.up") is not None


def test_a_matrix_nested_in_a_router_tells_experts() -> None:
    router = nn.ModuleDict({"inner": nn.ModuleDict({"lin": nn.Linear(8, 4)})})
    outcome = run_pass(StackExperts(), graph(routed("router", router)))
    assert outcome.graph.find("ffns.up") is not None


@pytest.mark.parametrize("name", ["head", "fc", "classifier", "lm_head", "gate_proj"])
def test_layers_beside_a_classifier_with_a_row_a_layer_are_never_stacked(name: str) -> None:
    model = routed(name, nn.Linear(8, 4), lambda: nn.Linear(8, 8))
    outcome = run_pass(StackExperts(), graph(model))
    assert outcome.graph.find("ffns.3.weight") is not None
    (problem,) = outcome.problems
    assert problem.level == "info"
    assert problem.text == "4 numbered modules beside a matrix of 4 rows, and not stacked: ffns"
    assert problem.hint == "if they are experts, name the container under experts: in the plan"


def test_unequal_modules_beside_a_matrix_are_not_refused() -> None:
    model = nn.Module()
    model.add_module("blk", nn.ModuleDict({"0": nn.Linear(8, 8), "1": nn.Linear(8, 4)}))
    model.add_module("0", nn.Linear(8, 2))
    outcome = run_pass(StackExperts(), graph(model))
    assert outcome.graph.find("blk.1.weight") is not None


def test_a_list_named_as_experts_with_other_names_is_reported_on_expert_ranks() -> None:
    model = nn.Module()
    model.layers = nn.ModuleList([moe()])
    mtp = nn.Module()
    mtp.add_module("experts", nn.ModuleDict({f"e{i}": Expert() for i in range(4)}))
    model.mtp = mtp
    plan = ShardingPlan({"layers.*.experts.*": {"ep": "S(0)"}}, default="replicate")
    outcome = run_pass(StackExperts(), graph(model), plan=plan, mesh="dp=4,ep=4")
    (problem,) = outcome.problems
    assert problem.level == "warning"
    assert problem.text == (
        "4 modules named as experts are, and not stacked: whole on every ep rank: mtp.experts"
    )


def test_a_list_equal_to_experts_without_a_router_is_reported_on_expert_ranks() -> None:
    model = nn.Module()
    model.layers = nn.ModuleList([moe()])
    model.mtp = nn.ModuleDict({"ffns": nn.ModuleList(Expert() for _ in range(4))})
    outcome = run_pass(StackExperts(), graph(model), mesh="dp=4,ep=4")
    (problem,) = outcome.problems
    assert problem.level == "warning"
    assert problem.text.startswith("4 numbered modules equal to experts, and not stacked")


def test_a_list_of_layers_without_a_router_is_no_container() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    outcome = assert_pass(StackExperts(), graph(model), {}, events=["note"])
    assert outcome.events[0].why == "the model has no expert containers: nothing to stack"


def test_a_second_list_of_experts_in_other_layers_is_stacked_too() -> None:
    model = nn.Module()
    model.layers = nn.ModuleList([moe()])
    model.mtp = nn.Module()
    model.mtp.add_module("layers", nn.ModuleList([moe()]))
    after = run_pass(StackExperts(), graph(model)).graph
    assert after.find("layers.0.experts.up") is not None
    assert after.find("mtp.layers.0.experts.up") is not None


def test_experts_nested_one_deeper_are_found() -> None:
    outer = nn.Module()
    outer.inner = nn.ModuleList(Expert() for _ in range(2))
    model = nn.Module()
    model.experts = outer
    assert run_pass(StackExperts(), graph(model)).graph.find("experts.inner.up") is not None


def test_a_container_that_the_plan_does_not_name_is_pointed_out() -> None:
    model = nn.Module()
    model.layers = nn.ModuleList([moe()])
    model.mtp = nn.ModuleList([moe()])
    outcome = run_pass(StackExperts(), graph(model), plan=naming("layers.*.experts"))
    assert outcome.graph.find("mtp.0.experts.0") is not None
    assert [problem.text for problem in outcome.problems] == [
        "experts that the plan does not name stay separate: mtp.0.experts"
    ]


def test_an_empty_list_of_containers_stacks_nothing() -> None:
    outcome = assert_pass(StackExperts(), graph(moe()), {}, plan=naming())
    assert outcome.problems == ()


def test_a_pattern_that_names_no_experts_is_an_error() -> None:
    text = refused(moe(), naming("layers.*.experts"))
    assert "no experts at 'layers.*.experts'" in text
    assert "stack-experts{optional=true}" in text


def test_a_pattern_that_names_no_experts_is_a_note_where_experts_are_optional() -> None:
    outcome = assert_pass(
        StackExperts(optional=True), graph_of({"w": (2,)}), {}, plan=naming("layers.*.experts")
    )
    assert outcome.events[0].why == "no experts at 'layers.*.experts'; optional=true"


def test_refusing_is_a_pass_error_with_the_exit_code_of_wrong_use() -> None:
    with pytest.raises(PassError) as caught:
        run_pass(StackExperts(), graph(moe()), plan=naming("nowhere"))
    assert caught.value.exit_code == 2
