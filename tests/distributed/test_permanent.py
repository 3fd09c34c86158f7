"""``localize{mode=permanent}`` on several ranks: guarded, and it comes back all the same."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import hpx
from hpx import bundled
from hpx.errors import HpxError
from hpx.numeric.pool import Pool
from tests.distributed.test_apply_cases import differences, stage_plan
from tests.hpx.runtime.snapshot import bits

PERMANENT: Final = "@default,localize{mode=permanent}"


class Square(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


def local_for_good() -> dict[str, str]:
    model: Any = Square()
    whole = model.layer.weight.detach().clone()
    plan = hpx.ShardingPlan(params={"layer.weight": {"tp": "S(0)"}}, default="replicate")
    old = model.layer.weight
    applied = hpx.apply(model, plan, "dp=1,tp=4", PERMANENT)
    said: dict[str, str] = {}
    weight = model.layer.weight
    if type(weight) is not nn.Parameter or weight.shape != (4, 16):
        said["local"] = str(weight.shape)
    if applied.old_to_new[old] is not weight:
        said["map"] = "the old parameter does not lead to the new one"
    for what, call in {
        "state_dict": model.state_dict,
        "hpx.fully_shard": lambda: hpx.fully_shard(applied),
        "clip": lambda: hpx.clip_grad_norm_(model, 1.0),
    }.items():
        try:
            call()
        except HpxError as error:
            said[what] = str(error)
    if bits(hpx.state_dict(model)["layer.weight"]) != bits(whole):
        said["hpx.state_dict"] = "differs"
    fully_shard(model, mesh=applied.meshes.dense["dp"])
    try:
        model(torch.ones(1, 16))
    except HpxError as error:
        said["forward"] = str(error)
    return said


def test_a_piece_that_is_local_for_good_is_not_taken_for_the_whole(gloo: Pool) -> None:  # N7
    for said in gloo.run(local_for_good, 4):
        assert set(said) == {"state_dict", "hpx.fully_shard", "clip", "forward"}
        assert "hpx.state_dict(model)" in said["state_dict"]
        assert "local piece for good" in said["hpx.fully_shard"]
        assert "sharded as if it were the whole" in said["forward"]


def sharded_behind_its_back() -> list[str]:
    model = bundled.tiny_llama()
    applied = hpx.apply(model, stage_plan(), "dp=1,tp=2", "@run,localize{mode=permanent}")
    ids = torch.zeros(1, 3, dtype=torch.int64)
    model(ids)
    fully_shard(model, mesh=applied.meshes.dense["dp"])
    said = []
    for _ in range(2):
        try:
            model(ids)
        except HpxError as error:
            said.append(str(error))
    return said


def test_stock_fully_shard_of_local_pieces_is_caught_at_the_forward(gloo: Pool) -> None:  # N7
    for said in gloo.run(sharded_behind_its_back, 2):
        assert len(said) == 2
        assert all("sharded as if it were the whole" in text for text in said)


def permanent_comes_back() -> list[str]:
    model = bundled.tiny_moe()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plan = stage_plan({"**.experts.*": {"ep": "S(0)"}})
    applied = hpx.apply(model, plan, "dp=2,tp=2,ep=2", PERMANENT)
    faults = [n for n, p in model.named_parameters() if isinstance(p, DTensor)]
    faults += differences(hpx.state_dict(model), before)
    record = applied.source_info()
    hpx.restore(model)
    faults += differences(dict(model.state_dict()), before)
    if record["model.layers.0.mlp.experts.up_proj"]["mesh"] != "expert":
        faults.append("the record is wrong")
    model.state_dict()
    return faults


def test_what_is_local_for_good_comes_back(gloo: Pool) -> None:
    assert gloo.run(permanent_comes_back, 4) == [[]] * 4
