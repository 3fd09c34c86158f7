from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from hpx.check.module_fields import MODULE_FIELDS
from hpx.errors import HpxError, PassError
from hpx.graph import ModuleGraph, TensorSpec
from hpx.passes.stack_experts import StackExperts
from hpx.plan import ShardingPlan
from hpx.testing import assert_idempotent, assert_pass, check_contract, graph_of, run_pass


class Expert(nn.Module):
    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.width = 6
        self.up = nn.Linear(8, 6, bias=bias)
        self.down = nn.Linear(6, 8, bias=bias)


class Moe(nn.Module):
    def __init__(self, experts: list[nn.Module]) -> None:
        super().__init__()
        self.gate = nn.Linear(8, len(experts), bias=False)
        self.experts = nn.ModuleList(experts)

    def expert(self, index: int) -> Expert:
        found = self.experts[index]
        assert isinstance(found, Expert)
        return found


def moe(count: int = 4, make: Callable[[], nn.Module] = Expert) -> Moe:
    return Moe([make() for _ in range(count)])


def graph(model: nn.Module) -> ModuleGraph:
    return ModuleGraph.from_module(model)


def naming(*patterns: str) -> ShardingPlan:
    return ShardingPlan({}, experts=patterns, default="replicate")


def refused(model: nn.Module | ModuleGraph, plan: ShardingPlan | None = None) -> str:
    before = model if isinstance(model, ModuleGraph) else graph(model)
    with pytest.raises(HpxError) as caught:
        run_pass(StackExperts(), before, plan=plan)
    return str(caught.value)


# -- what it does ------------------------------------------------------------------------------


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


def test_experts_with_named_numbers_in_a_dictionary_are_stacked_in_numeric_order() -> None:
    model = nn.Module()
    model.experts = nn.ModuleDict({f"expert_{i}": Expert() for i in (0, 10, 11, *range(1, 10))})
    after = run_pass(StackExperts(), graph(model)).graph
    names = [f"experts.expert_{i}.up.weight" for i in range(12)]
    before = graph(model)
    node = after.tensor(after.find("experts.up") or -1)
    assert [before.path(source.node) for source in node.lineage.parts] == names  # type: ignore[union-attr]


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


# -- what it refuses ---------------------------------------------------------------------------


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


def test_two_paths_that_give_one_stacked_name_are_refused() -> None:
    before = graph_of({f"experts.{i}.{name}": (2,) for i in range(2) for name in ("a.b", "a_b")})
    assert "cannot stack 'a.b' as 'a_b': 'a_b' exists there already" in refused(before)


def test_a_stacked_name_that_the_container_has_already_is_refused() -> None:
    model = moe()
    model.experts.up = nn.Linear(2, 2)
    assert "'up' exists there already" in refused(model)


def test_a_stacked_name_that_hides_a_method_of_the_container_is_refused() -> None:
    before = graph_of({f"experts.{i}.forward.weight": (2,) for i in range(2)})
    assert "'forward' names a field of every module" in refused(before)


def test_a_stacked_name_made_of_digits_is_refused() -> None:
    model = nn.Module()
    model.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2))
    assert "'0' would be taken for an expert's number" in refused(model)


def test_a_pattern_that_names_no_experts_is_an_error() -> None:
    text = refused(moe(), naming("layers.*.experts"))
    assert "no experts at 'layers.*.experts'" in text
    assert "stack-experts{optional=true}" in text


def test_a_pattern_that_names_no_experts_is_a_note_where_experts_are_optional() -> None:
    outcome = assert_pass(
        StackExperts(optional=True), graph_of({"w": (2,)}), {}, plan=naming("layers.*.experts")
    )
    assert outcome.events[0].why == "no experts at 'layers.*.experts'; optional=true"


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


# -- declarations ------------------------------------------------------------------------------


def test_it_keeps_its_contract_and_stacks_once() -> None:
    check_contract(StackExperts(), graph(moe()))
    assert_idempotent(StackExperts(), graph(moe()))


def test_the_refused_names_are_the_fields_that_torch_has() -> None:
    public = {
        name
        for cls in (nn.Module, nn.ModuleList, nn.ModuleDict)
        for name in dir(cls())
        if not name.startswith("_") and _of_torch(getattr(cls, name, None))
    }
    assert public - MODULE_FIELDS == set()


def _of_torch(field: object) -> bool:
    """Not one that another library, such as transformers, put on torch's class."""
    return getattr(field, "__module__", "torch").startswith("torch")


def test_refusing_is_a_pass_error_with_the_exit_code_of_wrong_use() -> None:
    with pytest.raises(PassError) as caught:
        run_pass(StackExperts(), graph(moe()), plan=naming("nowhere"))
    assert caught.value.exit_code == 2
