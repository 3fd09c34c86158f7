"""`hpx.load_state_dict`: what each rank copies out of a state dict of the unsharded model."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.testing._internal.distributed.fake_pg import FakeStore

import hpx
from hpx import HpxError, ShardingPlan
from hpx.bundled import tiny_llama, tiny_moe
from hpx.errors import NotRunnableError

PACKED = ShardingPlan(
    {"qkv.weight": {"tp": "S(0)"}},
    packed={"qkv.weight": {"dim": 0, "parts": {"q": 8, "k": 4, "v": 4}}},
    default="replicate",
)
WHOLE = ShardingPlan(default="replicate")
PASSES = "@default, shard-params{nothing=allow}"


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 16)
        self.register_buffer("steps", torch.zeros(2))


@pytest.fixture
def second_of_two() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield
    dist.destroy_process_group()


pytestmark = pytest.mark.usefixtures("second_of_two")


def state() -> dict[str, Tensor]:
    return {
        "qkv.weight": torch.arange(64.0).view(16, 4),
        "qkv.bias": torch.arange(16.0),
        "steps": torch.tensor([5.0, 6.0]),
    }


def applied(model: nn.Module, plan: ShardingPlan = PACKED, **how: Any) -> nn.Module:
    hpx.apply(model, plan, "tp=2", **how)
    return model


def local(parameter: Any) -> Tensor:
    found: Tensor = parameter.detach().to_local()
    return found


def test_rows_of_a_packed_projection_go_where_the_rank_has_them() -> None:
    model: Any = applied(Fused())
    hpx.load_state_dict(model, state())
    rows = [4, 5, 6, 7, 10, 11, 14, 15]
    assert torch.equal(local(model.qkv.weight), state()["qkv.weight"][rows])
    assert torch.equal(local(model.qkv.bias), state()["qkv.bias"][rows])
    assert model.steps.tolist() == [5.0, 6.0]


def test_a_model_that_was_sharded_on_meta_gets_its_weights() -> None:
    model: Any = applied(Fused().to("meta"))
    hpx.to_empty(model, device="cpu", recompute=lambda _: None)
    hpx.load_state_dict(model, state())
    assert local(model.qkv.bias).tolist() == [4, 5, 6, 7, 10, 11, 14, 15]


def test_separate_experts_go_into_their_slots() -> None:
    plan = ShardingPlan({"lm_head.weight": {"tp": "S(0)"}}, default="replicate")
    whole = tiny_moe()
    expected = {name: torch.randn_like(value) for name, value in whole.state_dict().items()}
    model: Any = applied(whole, plan)
    hpx.load_state_dict(model, expected)
    stacked = local(model.model.layers[0].mlp.experts.gate_proj)
    for index in range(len(stacked)):
        name = f"model.layers.0.mlp.experts.{index}.gate_proj.weight"
        assert torch.equal(stacked[index], expected[name])


def test_one_name_of_a_tied_pair_is_enough() -> None:
    plan = ShardingPlan({"model.embed_tokens.weight": {"tp": "S(0)"}}, default="replicate")
    model: Any = applied(tiny_llama(tied=True), plan)
    whole = tiny_llama(tied=True).state_dict()
    del whole["lm_head.weight"]
    hpx.load_state_dict(model, whole)
    assert torch.equal(local(model.lm_head.weight), whole["model.embed_tokens.weight"].chunk(2)[1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"qkv.bias": None}, "missing: qkv.bias"),
        ({"other": torch.zeros(1)}, "unexpected: other"),
        ({"qkv.bias": torch.zeros(8)}, r"qkv.bias.*\[8\], and the model has \[16\]"),
        (
            {"qkv.bias": nn.Parameter(torch.zeros(16, device="meta"))},
            "qkv.bias: .*it is on the meta device",
        ),
        ({"steps": "two"}, "steps: what the state dict has of it cannot be copied: it is a str"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_loaded(
    change: dict[str, object], said: str
) -> None:
    model: Any = applied(Fused())
    before = copy.deepcopy(local(model.qkv.weight))
    given = {k: v for k, v in {**state(), **change}.items() if v is not None}
    with pytest.raises(HpxError, match=said):
        hpx.load_state_dict(model, given)
    assert torch.equal(local(model.qkv.weight), before)


def test_some_names_may_be_left_out_if_one_says_so() -> None:
    model: Any = applied(Fused())
    before = copy.deepcopy(local(model.qkv.weight))
    hpx.load_state_dict(model, {"qkv.bias": torch.ones(16), "other": torch.ones(1)}, strict=False)
    assert torch.equal(local(model.qkv.bias), torch.ones(8))
    assert torch.equal(local(model.qkv.weight), before)


def test_a_buffer_of_a_shared_module_is_found_under_each_of_its_names() -> None:
    model = nn.Sequential(Fused(), nn.BatchNorm1d(4))
    model.add_module("2", model[1])
    given = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    hpx.load_state_dict(applied(model, WHOLE, pipeline=PASSES), given)
    assert model.get_buffer("2.running_mean").tolist() == [1, 1, 1, 1]


def test_a_buffer_of_a_layer_that_is_checkpointed_since_is_found_under_its_own_name() -> None:
    model: Any = applied(nn.Sequential(Fused()), WHOLE, pipeline=PASSES)
    model[0] = checkpoint_wrapper(model[0])
    hpx.load_state_dict(model, {f"0.{name}": tensor for name, tensor in state().items()})
    assert model[0].steps.tolist() == [5.0, 6.0]


class Counting(Fused):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def get_extra_state(self) -> int:
        return self.seen

    def set_extra_state(self, state: int) -> None:
        self.seen = state


def test_what_a_module_adds_to_a_state_dict_is_given_back_to_it() -> None:
    model: Any = applied(Counting())
    hpx.load_state_dict(model, {**state(), "_extra_state": 7})
    assert model.seen == 7


def test_what_a_module_adds_to_a_state_dict_may_not_be_missing() -> None:
    with pytest.raises(HpxError, match="missing: _extra_state"):
        hpx.load_state_dict(applied(Counting()), state())


def test_a_model_that_nothing_was_applied_to_is_refused() -> None:
    with pytest.raises(HpxError, match="nothing was applied to this Fused"):
        hpx.load_state_dict(Fused(), state())


def test_a_model_without_memory_is_refused() -> None:
    with pytest.raises(HpxError, match="on the meta device"):
        hpx.load_state_dict(applied(Fused().to("meta")), state())


def test_rows_that_are_reordered_and_not_cut_keep_their_values_and_do_not_compute() -> None:
    model = Fused()
    model.load_state_dict(state())
    applied(model, pipeline="pack-fused")
    assert torch.equal(hpx.state_dict(model)["qkv.weight"], state()["qkv.weight"])
    with pytest.raises(NotRunnableError, match="order of 2 ranks: shard-params"):
        model.qkv(torch.ones(1, 4))
    assert torch.equal(hpx.restore(model).qkv.weight, state()["qkv.weight"])  # type: ignore[union-attr, arg-type]


def test_source_info_has_the_order_of_a_packed_dim() -> None:
    done = hpx.apply(Fused(), PACKED, "tp=2")
    assert done.source_info()["qkv.bias"]["order"] == {
        "dim": 0,
        "parts": [["q", 8], ["k", 4], ["v", 4]],
        "pieces": 2,
    }


@pytest.mark.parametrize("pipeline", ["@default", "@default, localize{mode=permanent}"])
def test_a_copy_is_guarded_and_restored_by_itself(pipeline: str) -> None:
    model = Fused()
    hpx.apply(model, PACKED, "tp=2", pipeline)
    twin = copy.deepcopy(model)
    hpx.state_dict(twin)
    hpx.restore(twin)
    assert twin.state_dict().keys() == state().keys()
    with pytest.raises(HpxError, match=r"use hpx\.state_dict"):
        model.state_dict()


def test_a_block_in_the_order_of_the_ranks_may_stand_in_another() -> None:
    model = applied(Fused())
    with hpx.in_rank_order(model):
        with hpx.in_rank_order(model):
            pass
        assert model.state_dict().keys() == state().keys()
    with pytest.raises(HpxError, match="in the order of the ranks"):
        model.state_dict()


def test_pieces_of_another_sharded_model_are_refused() -> None:
    given = applied(nn.Linear(4, 4), WHOLE, pipeline=PASSES).state_dict()
    model = applied(nn.Linear(4, 4), WHOLE, pipeline=PASSES)
    with pytest.raises(HpxError, match=r"weight: .*it is a DTensor.*hpx\.state_dict"):
        hpx.load_state_dict(model, given)


def test_what_a_rank_does_not_need_is_not_read() -> None:
    class Files(Mapping[str, Tensor]):
        def __getitem__(self, name: str) -> Tensor:
            read.append(name)
            return state()[name]

        def __iter__(self) -> Iterator[str]:
            return iter([*state(), "other"])

        def __len__(self) -> int:
            return 4

    read: list[str] = []
    hpx.load_state_dict(applied(Fused()), Files(), strict=False)
    assert sorted(set(read)) == sorted(state())
