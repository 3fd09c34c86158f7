"""Cases of apply and restore that need several ranks: uneven, ties, DTensors, stages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

import hpx
from hpx import bundled
from hpx.bundled_modules import CausalLM, DecoderConfig
from hpx.errors import HpxError, NotRunnableError
from hpx.numeric.pool import Pool
from tests.hpx.runtime.snapshot import bits

UNEVEN: Final = "@default,shard-params{uneven=allow}"


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    odd = [] if list(found) == list(expected) else ["other names or another order"]
    for name in found.keys() & expected.keys():
        a, b = found[name], expected[name]
        if a.dtype != b.dtype or a.shape != b.shape or bits(a) != bits(b):
            odd.append(name)
    return odd


def message(model: nn.Module, *args: Any, **kwargs: Any) -> str:
    try:
        hpx.apply(model, *args, **kwargs)
    except HpxError as error:
        return str(error)
    return ""


# -- one model with everything odd ----------------------------------------------------------------


def odd_model() -> Any:
    """Uneven, empty on some ranks, without dimensions, frozen, mixed dtypes, shared, turned."""
    model: Any = nn.Module()
    model.scale = nn.Parameter(torch.tensor(-0.0))
    model.uneven = nn.Parameter(torch.randn(5, 3))
    model.columns = nn.Parameter(torch.randn(4, 10))
    model.single = nn.Parameter(torch.randn(1, 4, 4))
    model.none = nn.Parameter(torch.randn(0, 4))
    model.short = nn.Parameter(torch.randn(8, 2, dtype=torch.bfloat16), requires_grad=False)
    model.long = nn.Parameter(torch.randn(8, dtype=torch.float64))
    model.counts = nn.Parameter(torch.arange(8), requires_grad=False)
    model.turned = nn.Parameter(torch.randn(4, 8).t())
    model.spread = nn.Parameter(torch.randn(8, 8)[:, ::2])
    model.complex = nn.Parameter(torch.randn(8, 2, dtype=torch.complex64))
    model.inner = model.again = nn.Linear(8, 8)
    model.register_buffer("kept", torch.arange(3))
    model.register_buffer("unsaved", torch.arange(2.0), persistent=False)
    with torch.no_grad():
        model.uneven[0, 0] = float("nan")
    model.uneven.tag = "uneven"
    return model


def odd_comes_back(donate: bool) -> list[str]:
    model = odd_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    zero = [name for name in before if name.startswith(("uneven", "single", "short", "long"))]
    zero += ["none", "counts", "turned", "spread", "complex", "inner.weight"]
    rules: dict[str, Any] = {name: {"tp": "S(0)"} for name in zero}
    rules["columns"] = {"tp": "S(-1)"}
    plan = hpx.ShardingPlan(params=rules, default="replicate")
    buffers = dict(model.named_buffers())
    applied = hpx.apply(
        model, plan, "tp=4", UNEVEN, donate=donate, verify="fast" if donate else "full"
    )
    rank = dist.get_rank()
    faults: list[str] = []
    for name, dim in [*((name, 0) for name in zero), ("columns", 1)]:
        found: Any = model.get_parameter(name)
        pieces = before[name].chunk(4, dim)
        empty = before[name].narrow(dim, 0, 0)
        expected = pieces[rank] if rank < len(pieces) else empty
        if found.shape != before[name].shape or bits(found.to_local()) != bits(expected):
            faults.append(f"{name} is not its slice")
    if model.again is not model.inner or model.get_parameter("uneven").tag != "uneven":
        faults.append("a shared module or an attribute is lost")
    if any(dict(model.named_buffers())[name] is not buffer for name, buffer in buffers.items()):
        faults.append("a buffer was replaced")
    if trained != [name for name, p in model.named_parameters() if p.requires_grad]:
        faults.append("flags differ")
    faults += differences(hpx.state_dict(model), before)
    faults += [] if hpx.apply(model, plan, "tp=4", UNEVEN) is applied else ["twice is no no-op"]
    hpx.restore(model)
    faults += differences(dict(model.state_dict()), before)
    if trained != [name for name, p in model.named_parameters() if p.requires_grad]:
        faults.append("flags differ after restore")
    if model.again is not model.inner or model.get_parameter("uneven").tag != "uneven":
        faults.append("a shared module or an attribute is lost by restore")
    return faults


@pytest.mark.parametrize("donate", [False, True])
def test_a_model_with_everything_odd_is_cut_and_comes_back(donate: bool, gloo: Pool) -> None:
    assert gloo.run(odd_comes_back, 4, donate) == [[]] * 4


# -- experts --------------------------------------------------------------------------------------


def four_experts(number: int) -> tuple[list[str], list[str], list[int]]:
    config = DecoderConfig(
        hidden_size=8,
        intermediate_size=8,
        num_layers=1,
        num_heads=2,
        num_key_value_heads=2,
        head_dim=4,
        vocab_size=8,
        num_experts=number,
    )
    model = CausalLM(config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for index, expert in enumerate(model.get_submodule("model.layers.0.mlp.experts").children()):
        for parameter in expert.parameters():
            parameter.tag = index  # type: ignore[attr-defined]
    plan = hpx.ShardingPlan(params={"**.experts.*": {"ep": "S(0)"}}, default="replicate")
    hpx.apply(model, plan, "tp=2,ep=2", "@default,shard-params{nothing=allow}")
    state = hpx.state_dict(model)
    odd = differences(state, before)
    hpx.restore(model)
    odd += differences(dict(model.state_dict()), before)
    tags = [
        expert.up_proj.weight.tag  # type: ignore[union-attr]
        for expert in model.get_submodule("model.layers.0.mlp.experts").children()
    ]
    return odd, [name for name in state if "experts" in name], tags  # type: ignore[return-value]


def test_experts_of_two_ranks_are_saved_under_their_original_names(gloo: Pool) -> None:  # E3
    for odd, names, _ in gloo.run(four_experts, 2, 4):
        assert odd == []
        assert len(names) == 12
        assert {int(name.split(".")[5]) for name in names} == {0, 1, 2, 3}


def test_twelve_experts_come_back_in_numeric_order_with_their_own_attributes(gloo: Pool) -> None:
    for odd, _, tags in gloo.run(four_experts, 2, 12):  # E1
        assert odd == []
        assert tags == list(range(12))


def router_and_expert() -> str:
    model = bundled.tiny_moe()
    plan = hpx.ShardingPlan(params={"**.experts.*": {"ep": "S(0)"}}, default="replicate")
    hpx.apply(model, plan, "tp=2,ep=2", "@run,shard-params{nothing=allow}")
    try:
        model(torch.zeros(1, 4, dtype=torch.int64))
    except NotRunnableError as error:
        return str(error)
    return ""


def test_experts_that_are_spread_refuse_to_compute(gloo: Pool) -> None:
    for text in gloo.run(router_and_expert, 2):
        assert "experts" in text
        assert "dispatch" in text


# -- ties -----------------------------------------------------------------------------------------


def declared_tie() -> tuple[bool, list[str], bool]:
    model: Any = bundled.tiny_llama()
    with torch.no_grad():
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plan = hpx.ShardingPlan(
        params={"model.embed_tokens.weight": {"tp": "S(0)"}},
        tied=(("model.embed_tokens.weight", "lm_head.weight"),),
        default="replicate",
    )
    old = model.lm_head.weight
    applied = hpx.apply(model, plan, "tp=2")
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    tied = tied and applied.old_to_new[old] is model.lm_head.weight
    odd = differences(hpx.state_dict(model), before)
    hpx.restore(model)
    odd += differences(dict(model.state_dict()), before)
    apart = model.lm_head.weight is not model.model.embed_tokens.weight
    return tied, odd, apart


def test_a_declared_tie_is_one_parameter_and_two_again(gloo: Pool) -> None:
    assert gloo.run(declared_tie, 2) == [(True, [], True)] * 2


def storage_tie(mesh: str) -> tuple[bool, list[str]]:
    model = bundled.tiny_llama()
    model.lm_head.weight = nn.Parameter(model.model.embed_tokens.weight.data)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rules = {"model.embed_tokens.weight": {"tp": "S(0)"}}
    hpx.apply(model, hpx.ShardingPlan(params=rules, default="replicate"), mesh)
    one = model.lm_head.weight is model.model.embed_tokens.weight
    odd = differences(hpx.state_dict(model), before)
    hpx.restore(model)
    return one, odd + differences(dict(model.state_dict()), before)


@pytest.mark.parametrize("mesh", ["tp=2", "dp=2,tp=1"])
def test_two_parameters_of_one_storage_become_one(mesh: str, gloo: Pool) -> None:  # P4, P7
    assert gloo.run(storage_tie, 2, mesh) == [(True, [])] * 2


# -- DTensors that are there already --------------------------------------------------------------


def placed_before(dim: int) -> tuple[str, list[str]]:
    spec = hpx.MeshSpec.parse("tp=2")
    meshes = spec.build("cpu")
    spec = hpx.MeshSpec.from_mesh(meshes.dense)
    model = nn.Linear(4, 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    placed = distribute_tensor(
        model.weight.detach(), meshes.sub("tp"), [Shard(dim)], src_data_rank=None
    )
    model.weight = nn.Parameter(placed)
    plan = hpx.ShardingPlan(params={"weight": {"tp": "S(0)"}}, default="replicate")
    said = message(model, plan, spec)
    return said, [] if said else differences(hpx.state_dict(model), before)


def test_a_dtensor_that_is_placed_already_is_taken_or_refused(gloo: Pool) -> None:
    assert gloo.run(placed_before, 2, 0) == [("", [])] * 2
    for said, _ in gloo.run(placed_before, 2, 1):
        assert "weight" in said
        assert "expected tp=2:S(0), found tp=2:S(1)" in said


# -- a part of a model ----------------------------------------------------------------------------


def stage_of_two() -> list[str]:
    """Each pipeline stage holds one layer; the plan is worked out on the whole."""
    whole = bundled.tiny_llama(tied=True)
    before = {name: value.clone() for name, value in whole.state_dict().items()}
    full = hpx.run(bundled.tiny_llama(tied=True), stage_plan(), "pp=2,tp=2")
    stage: Any = bundled.tiny_llama(tied=True)
    first = dist.get_rank() < 2
    if first:
        stage.model.layers = nn.ModuleDict({"0": stage.model.layers[0]})
        stage.model.norm = stage.lm_head = None
    else:
        stage.model.layers = nn.ModuleDict({"1": stage.model.layers[1]})
        stage.model.embed_tokens = None
    own = {name: before[name] for name in stage.state_dict()}
    hpx.apply(stage, run=full, verify="full")
    faults = []
    name = "model.embed_tokens.weight" if first else "lm_head.weight"
    local = stage.get_parameter(name).to_local()
    if bits(local) != bits(before[name].chunk(2)[dist.get_rank() % 2]):
        faults.append(f"{name} is not its slice")
    faults += differences(hpx.state_dict(stage), own)
    hpx.restore(stage)
    return faults + differences(dict(stage.state_dict()), own)


def stage_plan(more: Mapping[str, Any] = MappingProxyType({})) -> hpx.ShardingPlan:
    rules: dict[str, Any] = {
        **more,
        "model.embed_tokens.weight": {"tp": "S(0)"},
        "**.{q,k,v}_proj.weight": {"tp": "S(0)"},
        "**.o_proj.weight": {"tp": "S(1)"},
    }
    return hpx.ShardingPlan(params=rules, default="replicate")


def test_two_stages_are_cut_as_in_the_whole_and_come_back(gloo: Pool) -> None:
    assert gloo.run(stage_of_two, 4) == [[]] * 4
