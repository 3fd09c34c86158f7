"""In float64 a sharded step computes what the unsharded one does: all outputs and gradients."""

from __future__ import annotations

import pytest
from torch.distributed.tensor import DTensor

from hpx.numeric.pool import Pool
from hpx.plan import ShardingPlan
from hpx.runtime.apply import apply
from tests.distributed.equality import WRAPS, built, deviations, deviations_if, zero_rows
from tests.distributed.equality_models import MODELS, PADDING

MESHES = {"tp=2": 2, "dp=2,tp=2": 4}
LIMIT = 1e-9
"""Of ``max|a-b| / max|b|``, per tensor."""


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_equals_the_unsharded_one(name: str, mesh: str, gloo: Pool) -> None:
    for found in gloo.run(deviations, MESHES[mesh], name, mesh):
        assert len(found) > 40
        assert {key: far for key, far in found.items() if far > LIMIT} == {}


@pytest.mark.parametrize("wrap", [wrap for wrap in WRAPS if wrap != "compile"])
@pytest.mark.parametrize("name", ["llama", "gemma", "tiny_moe"])
def test_so_it_does_inside_wrappers(name: str, wrap: str, gloo: Pool) -> None:
    for found in gloo.run(deviations, 4, name, "dp=2,tp=2", "@run", wrap):
        assert {key: far for key, far in found.items() if far > LIMIT} == {}


@pytest.mark.slow
def test_so_it_does_compiled(gloo: Pool) -> None:
    for found in gloo.run(deviations, 2, "tiny_llama", "tp=2", "@run", "compile"):
        assert {key: far for key, far in found.items() if far > LIMIT} == {}


# -- what makes these tests tests ----------------------------------------------------------------


def share(name: str) -> tuple[bool, float]:
    """Whether all parameters are DTensors, and the share of all elements that a rank holds."""
    model = built(name)
    number = sum(p.numel() for p in model.parameters())
    apply(model, ShardingPlan.from_text(MODELS[name][1]), "tp=2", "@run")
    parameters = [p.data for p in model.parameters()]
    held = sum(p.to_local().numel() for p in parameters if isinstance(p, DTensor))
    return all(isinstance(p, DTensor) for p in parameters), held / number


@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_sharded(name: str, gloo: Pool) -> None:
    most = {"gpt2": 0.7, "tiny_moe": 0.85}.get(name, 0.52)
    for all_placed, held in gloo.run(share, 2, name):
        assert all_placed
        assert 0.5 <= held <= most


def test_no_row_of_the_embedding_is_without_a_gradient_but_padding(gloo: Pool) -> None:
    assert gloo.run(zero_rows, 1, "llama") == [[PADDING]]


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("inputs are not copied", "llama"),
        ("inputs are not copied", "gemma"),
        ("outputs are not summed", "gemma"),
        ("partial gradients are not summed", "qwen3"),
        ("a bias on every rank", "llama"),
        ("a bias on every rank", "gpt2"),
        ("padding_idx on shifted ids", "llama"),
    ],
)
def test_a_fault_is_noticed(what: str, name: str, gloo: Pool) -> None:
    for found in gloo.run(deviations_if, 2, what, name, "tp=2"):
        assert max(found.values()) > 1e-3


def test_without_the_fault_nothing_is_noticed(gloo: Pool) -> None:
    for found in gloo.run(deviations_if, 2, "nothing", "llama", "tp=2"):
        assert max(found.values()) <= LIMIT
