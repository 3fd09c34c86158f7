"""Local tensors inside a forward, DTensors at rest: on one rank of a fake group."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import prune

from hpx import bundled
from hpx.errors import NotRunnableError
from hpx.mesh import MeshSpec
from hpx.plan import ShardingPlan
from hpx.runtime import local
from hpx.runtime.apply import apply
from hpx.runtime.around import settle
from hpx.runtime.journal import Journal
from hpx.runtime.meshes import Meshes
from tests.hpx.runtime.conftest import FakeGroup

PLAN = """\
params:
  "model.embed_tokens.weight": {tp: S(0)}
  "model.layers.*.self_attn.{q,k,v}_proj.weight": {tp: S(0)}
  "model.layers.*.self_attn.o_proj.weight": {tp: S(1)}
  "model.layers.*.mlp.{gate,up}_proj.weight": {tp: S(0)}
  "model.layers.*.mlp.down_proj.weight": {tp: S(1)}
default: replicate
"""
IDS = torch.arange(128, 136).view(1, 8)
"""Tokens of rank 1, which these tests are: those of rank 0 are zeros, as nobody sends them."""


@pytest.fixture
def meshes(fake_group: FakeGroup) -> Meshes:
    fake_group(1, 2)
    return MeshSpec.parse("tp=2").build("cpu")


@pytest.fixture
def model(fake_group: FakeGroup) -> nn.Module:
    fake_group(1, 2)
    made = bundled.tiny_llama(tied=True)
    apply(made, ShardingPlan.from_text(PLAN), "tp=2", "@run")
    return made


def at_rest(model: nn.Module) -> bool:
    return all(isinstance(p.data, DTensor) for p in model.parameters())


def down(model: nn.Module) -> nn.Module:
    return model.get_submodule("model.layers.0.mlp.down_proj")


def test_parameters_are_local_inside_and_the_same_objects_after(model: nn.Module) -> None:
    before = {name: id(p) for name, p in model.named_parameters()}
    seen: list[Tensor] = []
    module = down(model)
    inner = module.forward

    def watched(*args: Any) -> Any:
        seen.append(module._parameters["weight"])  # type: ignore[arg-type]
        return inner(*args)

    module.forward = watched
    model(IDS).sum().backward()
    rest: Any = module.weight
    assert type(seen[0]) is Tensor
    assert seen[0].data_ptr() == rest.to_local().data_ptr()
    assert {name: id(p) for name, p in model.named_parameters()} == before
    assert all(isinstance(p.grad, DTensor) for p in model.parameters())


def test_an_exception_inside_restores_at_once(model: nn.Module) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("inside")

    down(model).forward = fail
    with pytest.raises(ValueError, match="inside"):
        model(IDS)
    assert at_rest(model)


@pytest.mark.parametrize("how", ["next call", "settle"])
def test_an_interrupt_is_mended(model: nn.Module, how: str) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = {name: id(p) for name, p in model.named_parameters()}
    module = down(model)
    module.forward = interrupt
    with pytest.raises(KeyboardInterrupt):
        model(IDS)
    del module.forward
    assert not at_rest(model)
    if how == "settle":
        settle(model)
    else:
        model(IDS)
    assert {name: id(p) for name, p in model.named_parameters()} == before


class Recursive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor, depth: int) -> Tensor:
        inner = self(x, depth - 1) if depth else x
        out: Tensor = inner * self.weight  # read after the inner call has ended
        return out


def test_a_module_inside_its_own_call_keeps_its_local_tensor(meshes: Meshes) -> None:
    module = Recursive()
    placed = DTensor.from_local(torch.ones(4), meshes.sub("tp"), run_check=False)
    module.weight = parameter = nn.Parameter(placed)
    local.install(module, ["weight"], meshes, Journal())
    assert module(torch.ones(4), 2).tolist() == [1.0] * 4
    assert module._parameters["weight"] is parameter


def test_a_frozen_parameter_gets_no_gradient(model: nn.Module) -> None:
    weight = down(model).weight
    assert isinstance(weight, nn.Parameter)
    weight.requires_grad_(False)
    model(IDS).sum().backward()
    assert weight.grad is None
    assert not weight.requires_grad


def test_no_grad_computes_without_recording(model: nn.Module) -> None:
    with torch.no_grad():
        assert not model(IDS).requires_grad
    assert at_rest(model)


def own_logits(model: nn.Module) -> Tensor:
    """Those of this rank's half of the vocabulary: nobody sends the others on a fake group."""
    logits: Tensor = model(IDS)
    return logits[..., 128:]


def test_a_copy_of_the_model_computes_with_its_own_parameters(model: nn.Module) -> None:
    before = own_logits(model)
    assert before.abs().max() > 0
    other = copy.deepcopy(model)
    assert torch.equal(own_logits(other), before)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert own_logits(other).abs().max() == 0
    assert torch.equal(own_logits(model), before)


def test_tied_names_stay_one_parameter_with_one_gradient(model: nn.Module) -> None:
    model(IDS).sum().backward()
    embedding = model.get_submodule("model.embed_tokens")
    assert model.get_submodule("lm_head").weight is embedding.weight


def test_a_childs_weight_that_is_read_past_it_is_an_error(model: nn.Module) -> None:
    weight: Any = down(model).weight
    with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor"):
        nn.functional.linear(torch.ones(1, 128), weight)


def test_multihead_attention_reads_its_childs_weight_and_works(meshes: Meshes) -> None:
    module = nn.MultiheadAttention(8, 2)
    for owner in (module, module.out_proj):
        for name, value in list(owner._parameters.items()):
            if value is not None:
                placed = DTensor.from_local(value.detach(), meshes.sub("tp"), run_check=False)
                owner._parameters[name] = nn.Parameter(placed)
    local.install(module, ["in_proj_weight", "in_proj_bias"], meshes, Journal())
    x = torch.randn(3, 1, 8)
    assert module(x, x, x)[0].shape == x.shape
    assert at_rest(module)


class Scaled(nn.Module):
    """Reads parameters out of lists and dicts, which nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.scales = nn.ParameterDict({"before": nn.Parameter(torch.ones(8))})
        self.banks = nn.ModuleList([nn.ParameterList([nn.Parameter(torch.ones(8))])])

    def forward(self, x: Tensor) -> Tensor:
        bank: Any = self.banks[0]
        out: Tensor = self.down(self.up(x * self.scales["before"])) * bank[0]
        return out


def test_lists_and_dicts_of_parameters_are_local_in_the_forward_that_reads_them(
    fake_group: FakeGroup,
) -> None:
    fake_group(1, 2)
    model = nn.Sequential(Scaled())
    rules: Any = {"0.up.*": {"tp": "S(0)"}, "0.down.weight": {"tp": "S(1)"}}
    apply(model, ShardingPlan(rules, default="replicate"), "tp=2", "@default")
    scaled: Any = model[0]
    seen: list[type] = []

    def watched(x: Tensor) -> Any:
        seen.append(type(scaled.banks[0][0]))
        return x * scaled.scales["before"]

    scaled.forward = watched
    model(torch.ones(2, 8)).sum().backward()
    assert seen == [Tensor]
    assert at_rest(model)
    assert isinstance(scaled.scales["before"].grad, DTensor)


def test_a_module_that_is_not_runnable_says_why(meshes: Meshes) -> None:
    module = nn.Linear(2, 2)
    local.install(module, [], meshes, Journal(), not_runnable="insert-collectives is missing")
    with pytest.raises(NotRunnableError, match="insert-collectives is missing"):
        module(torch.ones(2))


def test_calling_a_part_of_a_region_past_it_is_an_error(model: nn.Module) -> None:
    with pytest.raises(NotRunnableError, match="the module around it is not"):
        model.get_submodule("model.layers.0.mlp").forward(torch.ones(1, 1, 64))


@pytest.mark.parametrize("grad", [True, False])
def test_a_colwise_layer_that_is_called_outside_its_region_is_an_error(
    model: nn.Module, grad: bool
) -> None:
    with (
        torch.set_grad_enabled(grad),
        pytest.raises(NotRunnableError, match="it gives some of its columns"),
    ):
        model.get_submodule("model.layers.0.mlp.up_proj")(torch.ones(1, 1, 64))


def test_without_localize_a_module_refuses_plain_tensors_and_takes_placed_ones(
    meshes: Meshes,
) -> None:
    module = nn.Linear(2, 2, bias=False)
    placed = DTensor.from_local(module.weight.detach(), meshes.sub("tp"), run_check=False)
    module.weight = nn.Parameter(placed)
    local.install(module, [], meshes, Journal(), at_rest="localize is missing")
    with pytest.raises(NotRunnableError, match="localize is missing"):
        module(torch.ones(1, 2))
    x = DTensor.from_local(torch.ones(1, 2), meshes.sub("tp"), run_check=False)
    assert module(x).shape == (1, 2)


def test_a_run_without_localize_says_so_at_the_first_forward(meshes: Meshes) -> None:
    model = bundled.tiny_llama()
    plan = ShardingPlan(
        {"**.{gate,up}_proj.weight": {"tp": "S(0)"}, "**.down_proj.weight": {"tp": "S(1)"}},
        default="replicate",
    )
    apply(model, plan, "tp=2", "@default, !localize")
    with pytest.raises(NotRunnableError, match="localize is missing from the pipeline"):
        model(torch.zeros(1, 4, dtype=torch.long))


def pruned(module: nn.Module) -> nn.Module:
    return prune.identity(module, "weight")  # type: ignore[no-any-return, no-untyped-call]


@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm, pruned])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_hook_that_computes_a_weight_sees_local_tensors(
    fake_group: FakeGroup, norm: Callable[[nn.Module], nn.Module]
) -> None:
    fake_group(1, 2)
    torch.manual_seed(0)
    whole = nn.Sequential(norm(nn.Linear(4, 4)))
    torch.manual_seed(0)  # such a layer cannot be copied
    sharded = nn.Sequential(norm(nn.Linear(4, 4)))
    x = torch.randn(2, 4)
    whole(x).sum().backward()
    apply(sharded, ShardingPlan({"**": "replicate"}), "tp=2")
    sharded(x).sum().backward()
    for expected, found in zip(whole.parameters(), sharded.parameters(), strict=True):
        assert isinstance(found.grad, DTensor)
        assert torch.equal(found.grad.to_local(), cast(Tensor, expected.grad))
