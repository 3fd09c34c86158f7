"""In float64 a step with a stream that is cut on the sequence equals the unsharded one."""

from __future__ import annotations

from contextlib import AbstractContextManager
from unittest import mock

import pytest
import torch
from torch import nn

from hpx.numeric.measure import distance
from hpx.numeric.pool import Pool
from hpx.numeric.precision import KeepDouble
from hpx.numeric.ranks import Case
from hpx.runtime import boundaries, inputs, local, sequence
from hpx.runtime.apply import apply
from tests.distributed.derived import derived_subject
from tests.distributed.equality import (
    LIMIT,
    WRAPS,
    Wrap,
    built,
    checkpointed_reentrant,
    compiled,
    deviations,
    measured,
    odd_ids,
    plan_of,
    subject,
    too_far,
)
from tests.distributed.loss_in_parts import in_columns, own_loss

SP = "@run, insert-collectives{sp=true}"
FAMILIES = (
    *("llama", "qwen3", "gemma2", "gpt2", "phi3", "gpt_neox", "bert", "deepseek_v3", "mixtral"),
    *("gpt_oss", "falcon", "t5"),
)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["tiny_llama", "tiny_moe", "gpt2"])
def test_a_step_equals_the_unsharded_one(name: str, ranks: int, gloo: Pool) -> None:
    for found in deviations(gloo, subject(name, f"tp={ranks}", SP, inputs=odd_ids())):
        assert too_far(found) == {}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", FAMILIES)
def test_so_it_does_for_every_family(name: str, ranks: int, gloo: Pool) -> None:
    pytest.importorskip("transformers")
    ids = odd_ids()
    given = {"input_ids": ids, **({"decoder_input_ids": ids} if name == "t5" else {})}
    of = derived_subject(name, f"tp={ranks}", SP, inputs=given)
    assert sum(bool(rule.layout.shards) for rule in of.run.plan.params) >= 2
    for found in deviations(gloo, of):
        assert too_far(found) == {}


@pytest.mark.parametrize("wrap", WRAPS)
def test_so_it_does_inside_wrappers(wrap: Wrap, gloo: Pool) -> None:
    name = "tiny_moe" if wrap is checkpointed_reentrant else "llama"
    for found in deviations(gloo, subject(name, "dp=2,tp=2", SP, wrap)):
        assert too_far(found) == {}


@pytest.mark.slow
def test_so_it_does_compiled(gloo: Pool) -> None:
    of = subject("llama", "tp=2", SP, compiled, inputs={"input_ids": odd_ids()})
    for found in deviations(gloo, of):
        assert too_far(found) == {}


# -- loss in parts -------------------------------------------------------------------------------


@pytest.mark.parametrize("sp", ["true", "false"])
@pytest.mark.parametrize(("name", "own"), [("tiny_llama", False), ("llama", True), ("gemma", True)])
def test_a_loss_in_parts_equals_the_unsharded_one(
    name: str, own: bool, sp: str, gloo: Pool
) -> None:
    pipeline, ids = f"@run, insert-collectives{{loss=parallel,sp={sp}}}", odd_ids()
    if own:
        given: object = {"input_ids": ids, "labels": ids}
        of = subject(name, "tp=2", pipeline, in_columns, inputs=given, loss=own_loss)
    else:
        of = subject(name, "tp=2", pipeline, in_columns, inputs=ids)
    for found in deviations(gloo, of):
        assert too_far(found) == {}


# -- hidden states -------------------------------------------------------------------------------


def hidden_states(name: str, length: int) -> dict[str, float]:
    """How far the hidden states that a model of transformers returns are from the whole ones."""
    ids = odd_ids()[:, :length]
    with KeepDouble(), torch.no_grad():
        model = built(name)
        expected = model(input_ids=ids, output_hidden_states=True).hidden_states
        apply(model, plan_of(name), "tp=2", SP)
        found = model(input_ids=ids, output_hidden_states=True).hidden_states
    pairs = zip(found, expected, strict=True)
    return {str(index): distance(a, b) for index, (a, b) in enumerate(pairs)}


@pytest.mark.parametrize("length", [24, 25])
def test_the_hidden_states_that_a_model_returns_are_whole(length: int, gloo: Pool) -> None:
    for found in gloo.run(hidden_states, 2, "llama", length):
        assert len(found) == 3
        assert max(found.values()) <= LIMIT


# -- what makes these tests tests ----------------------------------------------------------------


def fault(what: str) -> AbstractContextManager[object]:
    if what == "gradients of norms are not summed":
        return mock.patch.object(local, "all_reduce_sum", lambda x, _group: x)
    if what == "inputs are gathered without a sum of their gradient":
        return mock.patch.object(inputs, "gather_for_region", sequence.leave_stream)
    assert what == "positions of this rank's part, not of the sum"
    return mock.patch.object(boundaries, "sum_into_stream", sequence.enter_stream)


def faulty(what: str, case: Case) -> dict[str, float]:
    with fault(what):
        return measured(case)


@pytest.mark.parametrize(
    "what",
    [
        "gradients of norms are not summed",
        "inputs are gathered without a sum of their gradient",
        "positions of this rank's part, not of the sum",
    ],
)
def test_a_fault_is_noticed(what: str, gloo: Pool) -> None:
    for found in gloo.run(faulty, 2, what, subject("tiny_llama", "tp=2", SP).case):
        assert max(found.values()) > 1e-3


def lengths(name: str) -> list[int]:
    """The length of the sequence in every norm of a layer."""
    model = built(name)
    apply(model, plan_of(name), "tp=2", SP)
    seen: list[int] = []

    def note(_module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        seen.append(args[0].shape[1])

    for path, module in model.named_modules():
        if path.endswith("layernorm"):
            module.register_forward_pre_hook(note)
    model(odd_ids())
    return seen


def test_norms_of_layers_see_half_of_the_sequence(gloo: Pool) -> None:
    (half,) = {length for found in gloo.run(lengths, 2, "tiny_llama") for length in found}
    assert half * 2 == odd_ids().shape[1] + 1  # which is odd
