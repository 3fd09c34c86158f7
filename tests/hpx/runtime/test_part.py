"""A run of the whole model, carried out on a part of it or on its twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.tensor import DTensor

import hpx
from hpx.bundled import tiny_llama, tiny_moe
from hpx.errors import HpxError, PassError, UsageError
from hpx.runtime.part import fit
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


@pytest.fixture(autouse=True)
def _second_of_two(fake_group: FakeGroup) -> None:
    fake_group(1, 2)


def last_stage(**more: Any) -> Any:
    """The last layer, the norm and the head, under the names of the whole."""
    model = tiny_llama(**more)
    model.model.embed_tokens = None  # type: ignore[assignment]
    del model.model.layers[0]
    model.model.layers = nn.ModuleDict({"1": model.model.layers[0]})  # type: ignore[assignment]
    return model


def test_a_stage_is_cut_as_it_is_in_the_whole() -> None:
    whole = tiny_llama()
    full = hpx.run(tiny_llama().to("meta"), PLAN, "tp=2")
    stage = last_stage()
    hpx.apply(stage, run=full, verify="full")
    names = [name for name, _ in stage.named_parameters()]
    assert len(names) == 11
    for name in names:
        local = stage.get_parameter(name)
        assert isinstance(local, DTensor)
        param = full.by_name[name]
        index = tuple(slice(*r) for r in param.ranges(full.mesh, 1))
        assert bits(local.to_local()) == bits(whole.get_parameter(name)[index])
    attention = stage.get_submodule("model.layers.1.self_attn")
    assert (attention.num_heads, attention.num_key_value_heads) == (4, 2)


def test_a_stage_comes_back() -> None:
    stage = last_stage()
    before = {name: (p.shape, p.dtype) for name, p in stage.named_parameters()}
    hpx.apply(stage, run=hpx.run(tiny_llama().to("meta"), PLAN, "tp=2"))
    assert list(hpx.state_dict(stage)) == list(before)
    hpx.restore(stage)
    assert {name: (p.shape, p.dtype) for name, p in stage.named_parameters()} == before
    assert stage.get_submodule("model.layers.1.self_attn").num_heads == 8


def test_a_part_is_found_by_its_prefix() -> None:
    model: Any = tiny_moe()
    full = hpx.run(model, MOE, "tp=2,ep=2")
    layer = model.model.layers[1]
    weights = [e.up_proj.weight.detach().clone() for e in layer.mlp.experts]
    applied = hpx.apply(layer, run=full, prefix="model.layers.1", verify="full")
    stacked = layer.mlp.experts.up_proj
    assert bits(stacked.to_local()) == bits(torch.stack(weights[4:]))
    assert applied.run.explain("mlp.experts.up_proj").to_json()["name"] == "mlp.experts.up_proj"
    assert [p.name for p in full.params if p.name.startswith("model.layers.1.")] == [
        f"model.layers.1.{p.name}" for p in applied.run.params
    ]
    hpx.restore(layer)
    assert bits(layer.mlp.experts[5].up_proj.weight) == bits(weights[5])


def test_two_parts_of_one_model_are_applied_one_after_the_other() -> None:
    model: Any = tiny_moe()
    full = hpx.run(model, MOE, "tp=2,ep=2")
    for number, layer in enumerate(model.model.layers):
        hpx.apply(layer, run=full, prefix=f"model.layers.{number}")
    with pytest.raises(HpxError, match="sharded already"):
        hpx.apply(model, run=full)


def test_applied_again_a_part_is_a_no_op() -> None:
    full = hpx.run(tiny_llama(), PLAN, "tp=2")
    stage = last_stage()
    applied = hpx.apply(stage, run=full)
    before = snapshot(stage)
    assert hpx.apply(stage, run=full) is applied
    assert_same(before, stage)


def test_the_head_of_a_tied_pair_is_cut_like_the_embedding_that_is_elsewhere() -> None:
    full = hpx.run(tiny_llama(tied=True), PLAN, "tp=2")
    stage = last_stage(tied=True)
    hpx.apply(stage, run=full)
    head = stage.lm_head.weight
    assert isinstance(head, DTensor)
    assert head.placements[0].is_shard(0)


def test_the_head_of_a_declared_pair_is_cut_like_the_embedding_that_is_elsewhere() -> None:
    plan = hpx.ShardingPlan(
        params={"model.embed_tokens.weight": {"tp": "S(0)"}},
        tied=(("model.embed_tokens.weight", "lm_head.weight"),),
        default="replicate",
    )
    full = hpx.run(tiny_llama(), plan, "tp=2")
    stage = last_stage()
    hpx.apply(stage, run=full)
    assert stage.lm_head.weight.placements[0].is_shard(0)


def test_a_wrapper_in_the_part_only_is_no_hindrance() -> None:
    stage = last_stage()
    layers = stage.get_submodule("model.layers")
    layers["1"] = checkpoint_wrapper(layers["1"])
    hpx.apply(stage, run=hpx.run(tiny_llama(), PLAN, "tp=2"))
    inner = "model.layers.1._checkpoint_wrapped_module.self_attn"
    assert isinstance(stage.get_parameter(f"{inner}.q_proj.weight"), DTensor)
    assert stage.get_submodule(inner).num_heads == 4


def test_a_run_of_an_equal_model_is_the_run_itself() -> None:
    full = hpx.run(tiny_llama(), PLAN, "tp=2")
    assert fit(full, tiny_llama()) is full


def test_the_run_of_a_part_replays_and_saves_like_any_other(tmp_path: Path) -> None:
    part = fit(hpx.run(tiny_moe(), MOE, "tp=2,ep=2"), tiny_moe().model, "model")
    assert part.at(len(part.schedule)) == part.graph
    assert hpx.Run.load(part.save(tmp_path / "part.json")) == part


# -- what is refused ------------------------------------------------------------------------------


def _refused(model: nn.Module, full: hpx.Run, match: str, prefix: str = "") -> None:
    before = snapshot(model)
    with pytest.raises(HpxError, match=match):
        hpx.apply(model, run=full, prefix=prefix)
    assert_same(before, model)


def test_a_parameter_that_the_run_does_not_know_is_an_error() -> None:
    stage = last_stage()
    stage.extra = nn.Linear(2, 2)
    _refused(stage, hpx.run(tiny_llama(), PLAN, "tp=2"), "nor a part of it: 'extra'")


def test_a_parameter_of_another_shape_is_an_error() -> None:
    stage = last_stage()
    stage.lm_head = nn.Linear(64, 128, bias=False)
    full = hpx.run(tiny_llama(), PLAN, "tp=2")
    _refused(stage, full, r"lm_head.weight.*shape is \(128, 64\), the run says \(256, 64\)")


def test_a_parameter_that_is_frozen_only_here_is_an_error() -> None:
    stage = last_stage()
    stage.lm_head.weight.requires_grad_(False)
    _refused(stage, hpx.run(tiny_llama(), PLAN, "tp=2"), r"lm_head.weight.*requires_grad is False")


def test_another_number_of_heads_is_an_error() -> None:
    stage = last_stage()
    stage.get_submodule("model.layers.1.self_attn").num_heads = 16
    full = hpx.run(tiny_llama(), PLAN, "tp=2")
    _refused(stage, full, "self_attn.*num_heads is 16, the run divided 8")


def test_a_tie_of_the_run_that_the_part_has_not_is_an_error() -> None:
    full = hpx.run(tiny_llama(tied=True), PLAN, "tp=2")
    _refused(tiny_llama(), full, "in the run it is one with")


def test_a_tie_that_the_run_has_not_is_an_error() -> None:
    full = hpx.run(tiny_llama(tied=True).to("meta"), PLAN, "tp=2")  # which ends the tie
    _refused(tiny_llama(tied=True), full, "model.embed_tokens.weight' are two")


def test_some_experts_of_a_container_are_an_error() -> None:
    layer: Any = tiny_moe().model.layers[0]
    full = hpx.run(tiny_moe(), MOE, "tp=2,ep=2")
    layer.mlp.experts = layer.mlp.experts[:4]
    _refused(layer, full, "only some of what this parameter is made of", "model.layers.0")


def test_a_prefix_that_is_not_there_is_an_error_with_near_names() -> None:
    full = hpx.run(tiny_llama(), PLAN, "tp=2")
    with pytest.raises(UsageError, match=r"did you mean model.layers"):
        hpx.apply(tiny_llama().model, run=full, prefix="model.layer")


def test_a_prefix_without_a_run_is_an_error() -> None:
    with pytest.raises(HpxError, match="needs run="):
        hpx.apply(tiny_llama(), PLAN, "tp=2", prefix="model")


def test_a_run_made_from_names_alone_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = tiny_llama()
    save_file(dict(model.state_dict()), tmp_path / "model.safetensors")
    full = hpx.run(tmp_path / "model.safetensors", PLAN, "tp=2", "@default")
    with pytest.raises(PassError, match="names and shapes alone"):
        hpx.apply(model, run=full)
