"""Apply to what is sharded already, and apply what was worked out before."""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import hpx
from hpx.bundled import tiny_llama, tiny_moe
from hpx.errors import HpxError, PassError
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


def test_the_same_request_again_is_the_same_object() -> None:
    model = tiny_llama()
    applied = hpx.apply(model, PLAN, "tp=2")
    before = snapshot(model)
    assert hpx.apply(model, PLAN, "tp=2") is applied
    assert hpx.apply(model, run=applied.run) is applied
    assert_same(before, model)


@pytest.mark.parametrize(
    ("plan", "mesh", "pipeline", "what"),
    [
        (MOE, "tp=2", "@default", "plan"),
        (PLAN, "tp=2,ep=2", "@default", "mesh"),
        (PLAN, "tp=2", "@run", "pipeline"),
    ],
)
def test_another_request_is_an_error(
    plan: hpx.ShardingPlan, mesh: str, pipeline: str, what: str
) -> None:
    model = tiny_llama()
    hpx.apply(model, PLAN, "tp=2")
    before = snapshot(model)
    with pytest.raises(HpxError, match=f"another {what}.*hpx.restore"):
        hpx.apply(model, plan, mesh, pipeline)
    assert_same(before, model)


@pytest.mark.parametrize("inside", [True, False])
def test_a_part_of_a_sharded_model_and_what_contains_it_are_refused(inside: bool) -> None:
    model = tiny_llama()
    part = model.model
    plan = hpx.ShardingPlan(params={"**.embed_tokens.weight": {"tp": "S(0)"}}, default="replicate")
    first, second = (model, part) if inside else (part, model)
    hpx.apply(first, plan, "tp=2")
    before = snapshot(model)
    with pytest.raises(HpxError, match=r"sharded already.*hpx.restore"):
        hpx.apply(second, plan, "tp=2")
    assert_same(before, model)
    hpx.restore(first)
    hpx.apply(second, plan, "tp=2")


def test_a_dtensor_that_lies_as_the_plan_says_is_kept() -> None:
    dense = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    model = nn.Linear(4, 4)
    placed = distribute_tensor(model.weight.detach(), dense, [Shard(0)], src_data_rank=None)
    kept = model.weight = nn.Parameter(placed)
    hpx.apply(model, _plan(weight="S(0)"), hpx.MeshSpec.from_mesh(dense))
    assert model.weight is kept


def test_a_dtensor_that_lies_otherwise_is_a_mismatch() -> None:
    dense = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(
        distribute_tensor(model.weight.detach(), dense, [Shard(1)], src_data_rank=None)
    )
    before = snapshot(model)
    with pytest.raises(hpx.ManyErrors, match=r"weight.*expected.*S\(0\).*S\(1\)") as caught:
        hpx.apply(model, _plan(weight="S(0)"), hpx.MeshSpec.from_mesh(dense))
    assert isinstance(caught.value.findings[0], hpx.PlacementMismatchError)
    assert_same(before, model)


def test_a_model_that_fsdp_has_sharded_is_refused_with_the_order_to_use() -> None:
    model = tiny_llama()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
    with pytest.raises(HpxError, match=r"hpx.apply first, then hpx.fully_shard"):
        hpx.apply(model, PLAN, "tp=2")


def test_a_parametrised_weight_is_refused_before_anything_changes() -> None:  # N4
    model = nn.Sequential(nn.Linear(4, 4), nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    before = snapshot(model)
    with pytest.raises(HpxError, match="1"):
        hpx.apply(model, _plan(**{"0__weight": "S(0)", "1__**": "S(0)"}), "tp=2")
    assert_same(before, model)


def test_a_run_of_another_model_is_refused() -> None:
    made = hpx.run(tiny_llama(), PLAN, "tp=2")
    model = nn.Linear(4, 4)
    before = snapshot(model)
    with pytest.raises(PassError, match=r"neither the one that the run was made for.*weight"):
        hpx.apply(model, run=made)
    assert_same(before, model)


def test_a_run_made_from_a_meta_model_applies_to_the_real_one() -> None:
    made = hpx.run(tiny_moe().to("meta"), MOE, "tp=2,ep=2")
    model = tiny_moe()
    whole = {n: t.clone() for n, t in model.state_dict().items()}
    hpx.apply(model, run=made, verify="full")
    stacked = _local(model.get_parameter("model.layers.0.mlp.experts.gate_proj"))
    name = "model.layers.0.mlp.experts.{}.gate_proj.weight"
    assert bits(stacked) == bits(torch.stack([whole[name.format(i)] for i in range(4, 8)]))


def test_a_saved_run_applies(tmp_path: Any) -> None:
    model = tiny_moe()
    made = hpx.Run.load(hpx.run(model, MOE, "tp=2,ep=2").save(tmp_path / "run.json"))
    assert hpx.apply(model, run=made, verify="full").run.mesh == made.mesh


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"plan": PLAN}, "given a run and a plan"),
        ({"pipeline": "@run"}, "another pipeline than its own: the run is of '.*localize'"),
    ],
)
def test_what_a_run_has_itself_is_not_given_beside_it(more: dict[str, Any], said: str) -> None:
    model = tiny_llama()
    made = hpx.run(model, PLAN, "tp=2")
    before = snapshot(model)
    with pytest.raises(HpxError, match=said):
        hpx.apply(model, run=made, **more)
    assert_same(before, model)


def test_the_pipeline_of_a_run_may_be_named_beside_it() -> None:
    model = tiny_llama()
    made = hpx.run(model, PLAN, "tp=2", "@run")
    assert hpx.apply(model, run=made, pipeline="@run").run is made


# -- what is refused on real tensors --------------------------------------------------------------


@pytest.mark.parametrize("kind", ["frozen", "dtype", "shape"])
def test_experts_of_which_one_is_odd_are_refused_by_name(kind: str) -> None:  # E8
    model: Any = tiny_moe()
    odd = model.model.layers[1].mlp.experts[5].up_proj
    if kind == "frozen":
        odd.weight.requires_grad_(False)
    elif kind == "dtype":
        odd.to(torch.bfloat16)
    else:
        odd.weight = nn.Parameter(torch.ones(16, 64))
    before = snapshot(model)
    with pytest.raises(HpxError, match=r"model\.layers\.1\.mlp\.experts.*5"):
        hpx.apply(model, MOE, "tp=2,ep=2")
    assert_same(before, model)


def test_a_state_dict_that_fails_leaves_the_model_sharded() -> None:
    class Broken(nn.Linear):
        def get_extra_state(self) -> object:
            raise ValueError("no state today")

    model = nn.Sequential(nn.Linear(4, 4), Broken(4, 4))
    hpx.apply(model, _plan(**{"0__weight": "S(0)"}), "tp=2")
    before = snapshot(model)
    with pytest.raises(ValueError, match="no state today"):
        hpx.state_dict(model)
    assert_same(before, model)


@pytest.mark.parametrize("name", ["restore", "state_dict", "to_empty"])
def test_what_needs_an_applied_model_says_so(name: str) -> None:
    more = {"device": "cpu"} if name == "to_empty" else {}
    with pytest.raises(HpxError, match="nothing was applied to this Linear"):
        getattr(hpx, name)(nn.Linear(2, 2), **more)
