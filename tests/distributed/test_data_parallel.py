"""FSDP on top: gradients of different batches are averaged, for experts over their own replicas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import hpx
from hpx import bundled
from hpx.errors import HpxError
from hpx.numeric.pool import Pool
from tests.distributed import data_parallel
from tests.distributed.data_parallel import EXCLUDED, LLAMA, SPREAD, built, deviations, sharded

# In the last two an ep group is a tp group, or the ranks of two data groups.
CASES = [
    ("llama", "dp=2,tp=2"),
    ("llama", "dp=4,tp=1"),
    ("mixture", "dp=2,tp=2,ep=2"),
    ("mixture", "dp=4,tp=1,ep=2"),
    ("mixture", "dp=4,ep=4"),
]


@pytest.mark.parametrize(("name", "mesh"), CASES)
def test_a_clipped_step_equals_that_of_the_unsharded_model(
    name: str, mesh: str, gloo: Pool
) -> None:
    for found in gloo.run(deviations, 4, name, mesh, 0.01, 2.0):
        assert max(found.values()) <= 1e-9, {k: v for k, v in found.items() if v > 1e-9}


@pytest.mark.parametrize("norm_type", [1.0, 3.0, math.inf])
def test_other_norms_are_those_of_the_unsharded_model(norm_type: float, gloo: Pool) -> None:
    for name, mesh in (("llama", "dp=2,tp=2"), ("mixture", "dp=4,tp=1,ep=2")):
        for found in gloo.run(deviations, 4, name, mesh, 0.01, norm_type):
            assert max(found.values()) <= 1e-9, {k: v for k, v in found.items() if v > 1e-9}


def clipped_without_fsdp() -> tuple[float, float]:
    model = built("llama")
    hpx.apply(model, LLAMA, "tp=2", "@run")
    other = built("llama")
    batch = data_parallel.batches("llama", 1)[0]
    for one in (model, other):
        torch.autograd.backward(data_parallel.loss_of(one, batch))
    norm = hpx.clip_grad_norm_(model, 0.1)
    return float(norm), float(torch.nn.utils.clip_grad_norm_(other.parameters(), 0.1))


def test_the_norm_of_a_model_without_fsdp_is_that_of_the_unsharded_one(gloo: Pool) -> None:
    for found, expected in gloo.run(clipped_without_fsdp, 2):
        assert found == pytest.approx(expected, rel=1e-9)


def placements() -> dict[str, Any]:
    model = sharded("mixture", "dp=4,tp=1,ep=2").model
    found: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        found[name] = (parameter.device_mesh.mesh_dim_names, parameter.to_local().shape)
    return found


def test_expert_weights_go_on_edp_and_what_is_inside_and_around_them_on_dp(gloo: Pool) -> None:
    for found in gloo.run(placements, 4):
        assert found.pop("experts.weight") == (("edp", "ep"), (2, 8, 8))
        assert set(found.values()) == {(("dp",), (2, 8))}
        assert set(found) == {"layers.0.weight", "experts.inner.weight", "last.weight"}


# -- what is refused ------------------------------------------------------------------------------


def refusals() -> dict[str, str]:
    said: dict[str, str] = {}

    def note(what: str, call: Any) -> None:
        try:
            call()
        except HpxError as error:
            said[what] = f"{type(error).__name__}: {error}"

    model = built("mixture")
    applied = hpx.apply(model, SPREAD, "dp=4,tp=1,ep=2", EXCLUDED)
    dense, expert = applied.meshes.dense, applied.meshes.expert
    assert expert is not None
    note("experts on dp", lambda: hpx.fully_shard(applied, expert_mesh=dense["dp"]))
    note("dense on edp", lambda: hpx.fully_shard(applied, mesh=expert["edp"]))
    other = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "dp"))
    note("another mesh", lambda: hpx.fully_shard(applied, mesh=other["dp"]))
    note("another name", lambda: hpx.fully_shard(applied, modules=["layer.0"]))
    hpx.fully_shard(applied, mesh=dense["dp"], expert_mesh=expert["edp"])
    note("twice", lambda: hpx.fully_shard(applied))
    note("restore", lambda: hpx.restore(model))
    note("apply", lambda: hpx.apply(model.last, LLAMA, "dp=4,tp=1"))  # type: ignore[arg-type]
    note("nothing applied", lambda: hpx.fully_shard(built("llama")))
    tied = bundled.tiny_llama(tied=True)
    hpx.apply(tied, LLAMA, "dp=2,tp=2")
    note("tied", lambda: hpx.fully_shard(tied, modules=["lm_head"]))
    plain = bundled.tiny_llama()
    hpx.apply(plain, LLAMA, "tp=4")
    note("no data axis", lambda: hpx.fully_shard(plain))
    stock = bundled.tiny_llama()
    fully_shard(stock, mesh=hpx.apply(stock, LLAMA, "dp=2,tp=2").meshes.sub("dp"))
    note("restore after stock", lambda: hpx.restore(stock))
    return said


def test_what_would_go_wrong_later_is_refused_at_once(gloo: Pool) -> None:  # M1
    for said in gloo.run(refusals, 4):
        assert len(said) == 11
        assert said["experts on dp"].startswith("MeshError: experts.weight: the data mesh (dp) of")
        assert "another root" in said["experts on dp"]
        assert "the expert mesh edp=2,ep=2" in said["experts on dp"]
        assert "layers.0.weight: the data mesh (edp) of ranks" in said["dense on edp"]
        assert "another root" in said["another mesh"]
        assert "did you mean layers" in said["another name"]
        assert "already" in said["twice"]
        assert "hpx.state_dict" in said["restore"]
        assert said["restore after stock"] == said["restore"]
        assert "hpx.apply first" in said["nothing applied"]
        assert "lm_head.weight" in said["tied"]
        assert "dp=2" in said["no data axis"]


def stacked_after_fsdp(mesh: str) -> tuple[str, bool]:
    """The mesh axes of a stacked expert weight under FSDP, and whether the state dict is whole."""
    model = bundled.tiny_moe()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plan = hpx.ShardingPlan({"model.layers.*.mlp.experts.*": {"ep": "S(0)"}}, default="replicate")
    hpx.fully_shard(hpx.apply(model, plan, mesh))
    weight = model.get_parameter("model.layers.0.mlp.experts.gate_proj")
    assert isinstance(weight, DTensor)
    after = hpx.state_dict(model)
    same = list(after) == list(before) and all(torch.equal(after[k], before[k]) for k in before)
    return str(weight.device_mesh.mesh_dim_names), same


@pytest.mark.parametrize(("mesh", "ranks"), [("dp=2,ep=2", 2), ("dp=4,ep=2", 4)])
def test_stacked_lists_of_experts_go_on_edp_and_come_back_whole(
    mesh: str, ranks: int, gloo: Pool
) -> None:
    for axes, same in gloo.run(stacked_after_fsdp, ranks, mesh):
        assert axes == "('edp', 'ep')"
        assert same
