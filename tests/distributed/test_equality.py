"""In float64 a sharded step computes what the unsharded one does: all outputs and gradients."""

from __future__ import annotations

import pytest
from torch.distributed.tensor import DTensor

from hpx.numeric.pool import Pool
from hpx.runtime.apply import apply
from tests.distributed.equality import (
    LIMIT,
    WRAPS,
    Wrap,
    built,
    compiled,
    deviations,
    measured_if,
    plan_of,
    subject,
    too_far,
    zero_rows,
)
from tests.distributed.equality_models import MODELS, PADDING


@pytest.mark.parametrize("mesh", ["tp=2", "dp=2,tp=2"])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_equals_the_unsharded_one(name: str, mesh: str, gloo: Pool) -> None:
    for found in deviations(gloo, subject(name, mesh)):
        assert len(found) > 40
        assert too_far(found) == {}


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("name", ["llama", "gemma", "tiny_moe"])
def test_so_it_does_inside_wrappers(name: str, wrap: Wrap, gloo: Pool) -> None:
    for found in deviations(gloo, subject(name, "dp=2,tp=2", wrap=wrap)):
        assert too_far(found) == {}


@pytest.mark.slow
def test_so_it_does_compiled(gloo: Pool) -> None:
    for found in deviations(gloo, subject("tiny_llama", "tp=2", wrap=compiled)):
        assert too_far(found) == {}


# -- what makes these tests tests ----------------------------------------------------------------


def share(name: str) -> tuple[bool, float]:
    """Whether all parameters are DTensors, and the share of all elements that a rank holds."""
    model = built(name)
    number = sum(p.numel() for p in model.parameters())
    apply(model, plan_of(name), "tp=2", "@run")
    parameters = [p.data for p in model.parameters()]
    held = sum(p.to_local().numel() for p in parameters if isinstance(p, DTensor))
    return all(isinstance(p, DTensor) for p in parameters), held / number


@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_sharded(name: str, gloo: Pool) -> None:
    most = {"gpt2": 0.7, "tiny_moe": 0.85}.get(name, 0.52)
    for all_placed, held in gloo.run(share, 2, name):
        assert all_placed
        assert 0.5 <= held <= most


def test_no_row_of_the_embedding_is_without_a_gradient_but_padding() -> None:
    pytest.importorskip("transformers")
    assert zero_rows("llama") == [PADDING]


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
    for found in gloo.run(measured_if, 2, what, subject(name, "tp=2").case):
        assert max(found.values()) > 1e-3


def test_without_the_fault_nothing_is_noticed(gloo: Pool) -> None:
    for found in gloo.run(measured_if, 2, "nothing", subject("llama", "tp=2").case):
        assert max(found.values()) <= LIMIT
