"""Apply on one rank of a fake group: what is kept."""

from __future__ import annotations

import copy
import gc
import weakref
from contextlib import nullcontext
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.tensor import DTensor, Shard

import hpx
from hpx.bundled import tiny_llama, tiny_moe
from hpx.errors import HpxError
from tests.hpx.runtime.conftest import FakeGroup
from tests.hpx.runtime.snapshot import assert_same, bits, snapshot

PLAN: Final = hpx.ShardingPlan(
    params={
        "model.embed_tokens.weight": {"tp": "S(0)"},
        "**.{q,k,v}_proj.weight": {"tp": "S(0)"},
        "**.o_proj.weight": {"tp": "S(1)"},
    },
    default="replicate",
)
MOE: Final = hpx.ShardingPlan(params={"**.experts.*": {"ep": "S(0)"}}, default="replicate")


NOTHING: Final = "@default,shard-params{nothing=allow}"


def _plan(**params: str) -> hpx.ShardingPlan:
    """Cuts by parameter name, ``__`` for a dot; the rest replicated."""
    rules = {name.replace("__", "."): {"tp": text} for name, text in params.items()}
    return hpx.ShardingPlan(params=rules, default="replicate")


@pytest.fixture(autouse=True)
def _second_of_two(fake_group: FakeGroup) -> None:
    fake_group(1, 2)


def _local(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.to_local()


# -- what is kept ---------------------------------------------------------------------------------


def test_attributes_of_a_parameter_are_kept_private_ones_too() -> None:
    model = nn.Linear(4, 4)
    model.weight.tag = {"decay": 0.0}  # type: ignore[attr-defined]
    model.weight._is_loaded = True  # type: ignore[attr-defined]
    hpx.apply(model, _plan(weight="S(0)"), "tp=2")
    kept: Any = model.weight
    assert kept.tag == {"decay": 0.0}
    assert kept._is_loaded is True


def test_a_parameter_with_hooks_of_its_own_is_refused() -> None:
    model = nn.Linear(4, 4)
    model.weight.register_hook(lambda grad: grad * 2)  # type: ignore[no-untyped-call]
    before = snapshot(model)
    with pytest.raises(HpxError, match=r"weight.*hook.*after hpx.apply"):
        hpx.apply(model, _plan(weight="S(0)"), "tp=2")
    assert_same(before, model)


def test_a_frozen_parameter_stays_frozen() -> None:  # P1
    model = nn.Linear(4, 4)
    model.weight.requires_grad_(False)
    hpx.apply(model, _plan(weight="S(0)"), "tp=2")
    assert not model.weight.requires_grad
    assert model.bias.requires_grad


def test_each_parameter_keeps_its_dtype() -> None:
    model = nn.Sequential(nn.Linear(4, 4).bfloat16(), nn.Linear(4, 4), nn.Linear(4, 4).double())
    before = [p.detach().clone() for p in model.parameters()]
    hpx.apply(model, _plan(**{"0__weight": "S(0)", "1__weight": "S(1)"}), "tp=2")
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert parameter.dtype == old.dtype
    assert bits(_local(model.get_parameter("0.weight"))) == bits(before[0][2:])
    assert bits(_local(model.get_parameter("1.weight"))) == bits(before[2][:, 2:])


def test_buffers_are_the_same_objects_persistent_or_not() -> None:
    model = nn.BatchNorm1d(4)
    model.register_buffer("table", torch.arange(3.0), persistent=False)
    before = dict(model.named_buffers())
    hpx.apply(model, _plan(weight="S(0)"), "tp=2")
    after = dict(model.named_buffers())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    assert "table" not in hpx.state_dict(model)


def test_a_shard_owns_its_memory_and_lets_the_original_go() -> None:
    model = nn.Linear(64, 64)
    old = weakref.ref(model.weight)
    applied = hpx.apply(model, _plan(weight="S(0)"), "tp=2")
    assert _local(model.weight).untyped_storage().nbytes() == 64 * 32 * 4
    gc.collect()
    assert old() is None
    assert not list(applied.old_to_new)


def test_experts_that_were_stacked_let_their_originals_go() -> None:
    fresh = tiny_moe()
    old = [weakref.ref(p) for p in fresh.parameters()]
    hpx.apply(fresh, MOE, "tp=2,ep=2")
    gc.collect()
    alive = [ref for ref in old if ref() is not None]
    assert not alive


def test_an_optimizer_made_before_finds_its_parameters() -> None:  # P9
    model = tiny_moe()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    old = list(model.named_parameters())
    applied = hpx.apply(model, MOE, "tp=2,ep=2")
    group = optimizer.param_groups[0]["params"]
    new = dict.fromkeys(applied.old_to_new[parameter] for parameter in group)
    assert {id(p) for p in new} == {id(p) for p in model.parameters()}
    stacked = model.get_parameter("model.layers.0.mlp.experts.gate_proj")
    for name, parameter in old:
        if name.startswith("model.layers.0.mlp.experts.") and "gate_proj" in name:
            assert applied.old_to_new[parameter] is stacked


def test_a_parameter_without_dimensions_is_replicated_and_comes_back() -> None:
    model = nn.Linear(4, 4)
    model.scale = nn.Parameter(torch.tensor(3.5))
    hpx.apply(model, _plan(weight="S(0)"), "tp=2")
    assert _local(model.scale).shape == ()
    assert hpx.restore(model).scale.item() == 3.5  # type: ignore[operator]


def test_cutting_a_parameter_without_dimensions_is_an_error() -> None:
    model = nn.Linear(4, 4)
    model.scale = nn.Parameter(torch.tensor(3.5))
    before = snapshot(model)
    with pytest.raises(HpxError, match="scale"):
        hpx.apply(model, _plan(scale="S(0)"), "tp=2")
    assert_same(before, model)


def test_an_uneven_parameter_has_its_whole_shape_and_the_last_rank_less(
    fake_group: FakeGroup,
) -> None:  # M6
    shapes = []
    for rank in range(4):
        fake_group(rank, 4)
        model = nn.Linear(3, 5, bias=False)
        whole = model.weight.detach().clone()
        hpx.apply(model, _plan(weight="S(0)"), "tp=4", "@default,shard-params{uneven=allow}")
        assert model.weight.shape == (5, 3)
        assert model.weight.stride() == (3, 1)
        local = _local(model.weight)
        shapes.append(len(local))
        assert bits(local) == bits(whole[min(2 * rank, 5) : min(2 * rank + 2, 5)])
    assert shapes == [2, 2, 1, 0]


def test_an_expert_weight_has_the_shape_of_all_experts(fake_group: FakeGroup) -> None:  # M3
    fake_group(3, 8)
    model = tiny_moe()
    sources = [
        p.detach().clone()
        for n, p in model.named_parameters()
        if n.startswith("model.layers.1.mlp.experts.") and n.endswith("up_proj.weight")
    ]
    hpx.apply(model, MOE, "dp=4,tp=2,ep=4")
    stacked = model.get_parameter("model.layers.1.mlp.experts.up_proj")
    assert isinstance(stacked, DTensor)
    assert stacked.shape == (8, 32, 64)
    assert stacked.placements == (Shard(0),)
    assert stacked.device_mesh.mesh_dim_names == ("ep",)
    assert bits(stacked.to_local()) == bits(torch.stack(sources[6:8]))


# -- ties, shared modules, wrappers ---------------------------------------------------------------


def test_two_names_of_one_storage_hold_one_parameter() -> None:  # P4, P7
    model = tiny_llama()
    embedding, head = model.model.embed_tokens, model.lm_head
    head.weight = nn.Parameter(embedding.weight.data)
    assert head.weight is not embedding.weight
    plan = hpx.ShardingPlan(
        params={"model.embed_tokens.weight": {"tp": "S(0)"}}, default="replicate"
    )
    hpx.apply(model, plan, "tp=2")
    assert head.weight is embedding.weight
    assert isinstance(head.weight, DTensor)
    assert hpx.state_dict(model).keys() == tiny_llama().state_dict().keys()


def _tied_on_meta() -> Any:
    model = tiny_llama(tied=True).to("meta")  # which ends the tie
    model.lm_head.weight = model.model.embed_tokens.weight
    return model


def test_a_buffer_that_no_state_dict_has_must_be_computed_again() -> None:  # P3
    def forgetful(model: nn.Module) -> None:
        pass

    def careful(model: nn.Module) -> None:
        model.get_buffer("table").copy_(torch.arange(3.0))

    model = nn.Linear(4, 4)
    model.register_buffer("table", torch.arange(3.0), persistent=False)
    model.to("meta")
    hpx.apply(model, _plan(weight="S(0)"), "tp=2")
    for recompute in (None, forgetful):
        with pytest.raises(HpxError, match=r"table.*uninitialised.*recompute="):
            hpx.to_empty(model, device="cpu", recompute=recompute)
        model.to("meta")
    hpx.to_empty(model, device="cpu", recompute=careful)
    assert model.get_buffer("table").tolist() == [0, 1, 2]


@pytest.mark.parametrize("mesh", ["tp=2", "dp=2,tp=1"])
def test_the_tie_of_a_meta_model_holds_when_it_gets_memory(mesh: str) -> None:  # P5
    model = _tied_on_meta()
    hpx.apply(model, PLAN, mesh)
    hpx.to_empty(model, device="cpu")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not any(p.is_meta for p in model.parameters())
    assert all(isinstance(p, DTensor) == (mesh == "tp=2") for p in model.parameters())


def test_stock_to_empty_keeps_the_tie_of_dtensors() -> None:
    model = _tied_on_meta()
    hpx.apply(model, PLAN, "tp=2")
    model.to_empty(device="cpu")
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_tie_that_was_broken_since_is_found_at_the_first_forward() -> None:
    model = _tied_on_meta()
    hpx.apply(model, PLAN, "dp=2,tp=1")
    model.to_empty(device="cpu")
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    with pytest.raises(HpxError, match=r"lm_head.weight are tied.*hpx.to_empty"):
        model(torch.zeros(1, 2, dtype=torch.int64))


def test_a_module_under_two_names_stays_one_module() -> None:
    model = nn.Module()
    model.a = nn.Linear(4, 4)
    model.b = model.a
    names = list(model.state_dict())
    hpx.apply(model, _plan(a__weight="S(0)"), "tp=2")
    assert model.a is model.b
    assert list(hpx.state_dict(model)) == names
    hpx.restore(model)
    assert list(model.state_dict()) == names


def test_a_wrapped_module_is_known_by_its_own_name_and_saved_as_before() -> None:
    model = nn.Sequential(checkpoint_wrapper(nn.Linear(4, 4)))
    before = dict(model.state_dict())
    hpx.apply(model, _plan(**{"0__weight": "S(0)"}), "tp=2")
    inner = model.get_parameter("0._checkpoint_wrapped_module.weight")
    assert isinstance(inner, DTensor)
    assert list(hpx.state_dict(model)) == list(before)


class _Counting(nn.Linear):
    def get_extra_state(self) -> object:
        return {"steps": 7}

    def set_extra_state(self, state: object) -> None:
        pass


def test_what_a_module_adds_to_its_state_dict_is_there() -> None:
    model = nn.Sequential(_Counting(4, 4))
    before = model.state_dict()
    hpx.apply(model, _plan(**{"0__weight": "S(0)"}), "tp=2")
    after = hpx.state_dict(model)
    assert list(after) == list(before) == ["0.weight", "0.bias", "0._extra_state"]
    assert isinstance(model.get_parameter("0.weight"), DTensor)


def test_a_copy_of_a_sharded_model_is_sharded_and_comes_back() -> None:
    model = tiny_llama()
    hpx.apply(model, PLAN, "tp=2")
    twin = copy.deepcopy(model)
    hpx.restore(twin)
    assert isinstance(model.lm_head.weight, DTensor)
    assert not isinstance(twin.lm_head.weight, DTensor)


# -- meta -----------------------------------------------------------------------------------------


def test_a_meta_model_stays_meta_and_comes_back_as_meta() -> None:
    model = tiny_moe().to("meta")
    names = {name: p.shape for name, p in model.named_parameters()}
    hpx.apply(model, MOE, "tp=2,ep=2")
    assert all(p.is_meta for p in model.parameters())
    assert model.get_parameter("model.layers.0.mlp.experts.gate_proj").shape == (8, 32, 64)
    assert {n: t.shape for n, t in hpx.state_dict(model).items()} == names
    hpx.restore(model)
    assert {name: p.shape for name, p in model.named_parameters()} == names
    assert all(p.is_meta for p in model.parameters())


# -- hooks and wrappers ---------------------------------------------------------------------------


def test_hooks_of_modules_go_on_working_in_their_order() -> None:
    heard: list[str] = []
    model = nn.Sequential(nn.Linear(4, 4))
    for number in range(2):
        model[0].register_forward_pre_hook(lambda *_, n=number: heard.append(f"pre {n}"))
        model[0].register_forward_hook(lambda *_, n=number: heard.append(f"post {n}"))
    model.register_state_dict_post_hook(  # type: ignore[no-untyped-call]
        lambda *_: heard.append("state")
    )
    hpx.apply(model, hpx.ShardingPlan(default="replicate"), "tp=2", NOTHING)
    model(torch.ones(1, 4))
    hpx.state_dict(model)
    assert heard == ["pre 0", "pre 1", "post 0", "post 1", "state"]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_compiled_model_is_applied_to_and_comes_back() -> None:
    model: Any = torch.compile(nn.Sequential(nn.Linear(4, 4)))
    names = list(model.state_dict())
    hpx.apply(model, _plan(**{"0__weight": "S(0)"}), "tp=2")
    assert isinstance(model.get_parameter("_orig_mod.0.weight"), DTensor)
    assert list(hpx.state_dict(model)) == names
    hpx.restore(model)
    assert list(model.state_dict()) == names
    assert not isinstance(model.get_parameter("_orig_mod.0.weight"), DTensor)


def test_names_declared_tied_with_different_values_are_told(
    fake_group: FakeGroup, caplog: pytest.LogCaptureFixture
) -> None:
    fake_group(0, 2)
    model = tiny_llama()
    plan = hpx.ShardingPlan(
        {"**.embed_tokens.weight": {"tp": "S(0)"}},
        tied=[("model.embed_tokens.weight", "lm_head.weight")],
        default="replicate",
    )
    hpx.apply(model, plan, "tp=2")
    told = [record.getMessage() for record in caplog.records if record.name == "hpx"]
    ends = "model.embed_tokens.weight and lm_head.weight are declared tied and differ"
    assert told == [f"{ends}: the values of model.embed_tokens.weight stay"]


@pytest.mark.parametrize("devices", [("cpu", "meta"), ("meta", "cpu"), ("fake", "fake")])
def test_ends_of_a_declared_tie_without_values_are_not_compared(
    fake_group: FakeGroup, caplog: pytest.LogCaptureFixture, devices: tuple[str, str]
) -> None:
    fake_group(0, 2)
    plan = hpx.ShardingPlan({"0.weight": {"tp": "S(0)"}}, tied=[("0.weight", "1.weight")])
    with FakeTensorMode() if "fake" in devices else nullcontext():
        places = ["cpu" if device == "fake" else device for device in devices]
        model = nn.Sequential(*(nn.Linear(4, 4, bias=False, device=place) for place in places))
    hpx.apply(model, plan, "tp=2")
    assert not caplog.records


@pytest.mark.parametrize("verify", ["fast", "full"])
def test_fake_parameters_become_fake_shards(verify: Any) -> None:
    with FakeTensorMode():
        model = nn.Linear(4, 4)
    hpx.apply(model, _plan(weight="S(0)"), "tp=2", verify=verify)
    shard = _local(model.weight)
    assert isinstance(shard, FakeTensor)
    assert shard.shape == (2, 4)


def test_a_word_of_verify_that_is_none_is_refused() -> None:
    odd: Any = "ful"
    with pytest.raises(HpxError, match=r"verify is 'ful'. Fix: did you mean full"):
        hpx.apply(nn.Linear(4, 4), _plan(weight="S(0)"), "tp=2", verify=odd)
