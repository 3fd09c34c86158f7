"""Boundaries on one rank of a fake group: inputs, outputs, biases and embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hpx.errors import HpxError, NotRunnableError
from hpx.mesh import MeshSpec
from hpx.runtime import boundaries, local
from hpx.runtime.journal import Journal
from hpx.runtime.meshes import Meshes
from tests.hpx.runtime.conftest import FakeGroup


@pytest.fixture
def meshes(fake_group: FakeGroup) -> Meshes:
    fake_group(1, 2)
    return MeshSpec.parse("tp=2").build("cpu")


def options(**more: Any) -> dict[str, Any]:
    return {
        "kind": "region",
        "axis": "tp",
        "name": "m",
        "inputs": None,
        "output": None,
        "size": None,
        "bias": None,
        "rowwise": [],
        **more,
    }


def test_rolling_back_takes_every_hook_off(meshes: Meshes) -> None:
    module, journal = nn.Linear(2, 2), Journal()
    boundaries.install(module, options(), meshes, journal)
    local.install(module, ["weight"], meshes, journal)
    assert len(module._forward_pre_hooks) == 1
    journal.rollback()
    assert not module._forward_pre_hooks
    assert not module._forward_hooks


# -- inputs ----------------------------------------------------------------------------------------


class Block(nn.Module):
    def forward(self, hidden: Tensor, residual: Tensor | None = None) -> Tensor:
        return hidden if residual is None else hidden + residual


def test_inputs_are_found_by_name_and_by_position(meshes: Meshes) -> None:
    block = Block()
    boundaries.install(block, options(inputs={"hidden": "R"}), meshes, Journal())
    x = torch.ones(2, requires_grad=True)
    for out in (block(x), block(hidden=x)):
        assert type(out.grad_fn).__name__ == "_CopyBackward"


def test_a_declared_input_that_is_not_given_is_an_error(meshes: Meshes) -> None:
    block = Block()
    boundaries.install(block, options(inputs={"hidden": "R", "residual": "R"}), meshes, Journal())
    with pytest.raises(NotRunnableError, match="without its input 'residual'"):
        block(torch.ones(2))


def test_a_declared_input_that_the_forward_does_not_have_is_refused(meshes: Meshes) -> None:
    with pytest.raises(HpxError, match="did you mean hidden"):
        boundaries.install(Block(), options(inputs={"hiden": "R"}), meshes, Journal())


def test_another_input_that_needs_a_gradient_is_not_guessed_at(meshes: Meshes) -> None:
    block = Block()
    boundaries.install(block, options(), meshes, Journal())
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(NotRunnableError, match="input 'residual' of m needs a gradient"):
        block(x, residual=x * 2)
    assert block(x, residual=torch.ones(2)).shape == (2,)


# -- outputs ---------------------------------------------------------------------------------------


class Pair(NamedTuple):
    number: int
    out: Tensor


@dataclass(frozen=True)
class Output:
    out: Tensor
    aux: Tensor


class Giving(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        if self.kind == "modeloutput":
            from transformers.modeling_outputs import BaseModelOutput

            return BaseModelOutput(last_hidden_state=x)
        made: Mapping[str, Any] = {
            "tensor": x,
            "tuple": (x, None),
            "list": [x],
            "named": Pair(3, x),
            "dict": {"ids": torch.ones(2, dtype=torch.long), "out": x},
            "dataclass": Output(x, x),
        }
        return made[self.kind]


@pytest.mark.parametrize(
    ("kind", "get"),
    [
        ("tensor", lambda r: r),
        ("tuple", lambda r: r[0]),
        ("list", lambda r: r[0]),
        ("named", lambda r: r.out),
        ("dict", lambda r: r["out"]),
        ("dataclass", lambda r: r.out),
        ("modeloutput", lambda r: r.last_hidden_state),
    ],
)
def test_outputs_of_every_kind_are_summed(kind: str, get: Any, meshes: Meshes) -> None:
    module = Giving(kind)
    boundaries.install(module, options(output="sum"), meshes, Journal())
    x = torch.ones(2, requires_grad=True)
    plain, result = Giving(kind)(x), module(x)
    assert type(result) is type(plain)
    assert type(get(result).grad_fn).__name__ == "_ReduceBackward"


def test_an_output_without_a_tensor_is_an_error(meshes: Meshes) -> None:
    class Nothing(nn.Module):
        def forward(self, x: Tensor) -> tuple[int]:
            return (x.dim(),)

    module = Nothing()
    boundaries.install(module, options(output="sum"), meshes, Journal())
    with pytest.raises(NotRunnableError, match="the output of m has no tensor"):
        module(torch.ones(2))


# -- layers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["local", "boundary"])
def test_a_withheld_bias_is_back_after_the_call_whatever_was_installed_first(
    first: str, meshes: Meshes
) -> None:
    module, journal = nn.Linear(4, 2), Journal()
    for name, value in list(module._parameters.items()):
        assert value is not None
        placed = DTensor.from_local(value.detach(), meshes.sub("tp"), run_check=False)
        module._parameters[name] = nn.Parameter(placed)
    kept = dict(module._parameters)
    wanted = options(kind="rowwise", output="sum", bias="bias")
    if first == "local":
        local.install(module, ["weight", "bias"], meshes, journal)
        boundaries.install(module, wanted, meshes, journal)
    else:
        boundaries.install(module, wanted, meshes, journal)
        local.install(module, ["weight", "bias"], meshes, journal)
    module(torch.ones(3, 4)).sum().backward()
    assert all(module._parameters[name] is value for name, value in kept.items())
    assert isinstance(module.bias.grad, DTensor)


def embedding(meshes: Meshes, **how: Any) -> nn.Embedding:
    whole = nn.Embedding(6, 2, **how)
    made = nn.Embedding(6, 2, **how)
    made.weight = nn.Parameter(whole.weight.detach()[3:].clone())  # rank 1 of 2
    boundaries.install(made, options(kind="embedding", output="sum", size=6), meshes, Journal())
    return made


def test_ids_of_other_ranks_give_zeros(meshes: Meshes) -> None:
    module = embedding(meshes)
    out = module(torch.tensor([0, 4]))
    assert out[0].tolist() == [0.0, 0.0]
    assert torch.equal(out[1], module.weight[1])


@pytest.mark.parametrize("token", [-1, 6])
def test_an_id_that_no_rank_has_is_an_error_as_without_sharding(token: int, meshes: Meshes) -> None:
    with pytest.raises(IndexError):
        embedding(meshes)(torch.tensor([token]))


@pytest.mark.parametrize(("padding", "dead"), [(1, None), (4, 1)])
def test_padding_idx_takes_the_gradient_of_its_own_row_alone(
    padding: int, dead: int | None, meshes: Meshes
) -> None:
    module = embedding(meshes, padding_idx=padding)
    module(torch.arange(6)).sum().backward()
    assert module.weight.grad is not None
    zero = [row for row in range(3) if module.weight.grad[row].abs().max() == 0]
    assert zero == ([] if dead is None else [dead])
    assert module.padding_idx == padding


@pytest.mark.parametrize("how", [{"max_norm": 1.0}, {"sparse": True}, {"scale_grad_by_freq": True}])
def test_what_looks_at_all_rows_is_refused(how: dict[str, Any], meshes: Meshes) -> None:
    with pytest.raises(HpxError, match="is set"):
        embedding(meshes, **how)


def test_an_embedding_with_a_forward_of_its_own_is_refused(meshes: Meshes) -> None:
    class Positions(nn.Embedding):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(torch.arange(ids.shape[-1]))

    wanted = options(kind="embedding", output="sum", size=6)
    with pytest.raises(HpxError, match="has a forward of its own"):
        boundaries.install(Positions(6, 2), wanted, meshes, Journal())
