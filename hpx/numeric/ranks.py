"""What every rank of a check does: a step of both models, and its share of the comparison."""

from __future__ import annotations

import pickle
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from hpx.errors import InputError
from hpx.numeric.building import Source, twins
from hpx.numeric.failing import attempt
from hpx.numeric.feeding import LossFunction, default_loss, given_inputs, inputs_of
from hpx.numeric.locating import Located, Regions, locate
from hpx.numeric.measure import Deviation, deviations, refuse_no_numbers
from hpx.numeric.precision import KeepDouble
from hpx.numeric.recording import Recorder, Spot
from hpx.numeric.step import Batch, data_index, in_parts, sharded_step, tie_as, whole_step
from hpx.numeric.worker import Reference, load
from hpx.pipeline.info import Pass
from hpx.plan import ShardingPlan
from hpx.runtime.apply import apply
from hpx.runtime.record import Applied

__all__ = ["Case", "Measured", "find_on_rank", "measure_on_rank"]


@dataclass(frozen=True)
class Case:
    """A check, as it travels to the ranks.

    Attributes:
        source: The model.
        mesh: The mesh.
        plan: The plan, as JSON.
        pipeline: The passes, as a pickle to be read when ``modules`` are there.
        modules: What has to be imported first: passes and classes of the person who checks.
        attention: An implementation of attention to choose in a model of transformers.
        steps: How many steps of AdamW.
        inputs: Example inputs, instead of those of the source.
        loss: The loss, instead of that of the source.
        wrap: Called with the sharded model and its `Applied`; what it returns is run in its place.
        exact: Whether casts to lower dtypes inside the model are left out.
    """

    source: Source
    mesh: str
    plan: Mapping[str, Any]
    pipeline: bytes
    modules: tuple[Reference, ...] = ()
    attention: str | None = None
    steps: int = 1
    inputs: object = None
    loss: Reference | None = None
    wrap: Reference | None = None
    exact: bool = True


@dataclass(frozen=True)
class Measured:
    """What a rank found.

    Attributes:
        deviations: Of each tensor.
        held: The share of all elements that this rank holds.
        seconds: What both models took, built and run.
    """

    deviations: tuple[Deviation, ...]
    held: float
    seconds: float


@dataclass(frozen=True)
class _Pair:
    """Both models of a check on a rank, and the data of each data parallel rank."""

    whole: nn.Module
    applied: Applied
    computed: nn.Module
    batches: tuple[Batch, ...]
    index: int


def measure_on_rank(case: Case) -> Measured:
    """Run both steps and compare them.

    Raises:
        HpxError: hpx refuses the plan, or the model is not fit for a check.
        ModuleFailedError: One of the models cannot compute.
    """
    start = time.perf_counter()
    with _surroundings(case):
        pair = _pair(case)
        expected = attempt(
            "unsharded",
            pair.whole,
            lambda: whole_step(pair.whole, pair.applied, pair.batches, case.steps),
        )
        refuse_no_numbers(expected, case.source.name)
        found = attempt(
            "sharded",
            pair.applied.model,
            lambda: sharded_step(pair.applied, pair.batches[pair.index], case.steps, pair.computed),
        )
    of = sum(parameter.numel() for parameter in pair.whole.parameters())
    share = _held(pair.applied.model) / max(of, 1)
    seconds = time.perf_counter() - start
    return Measured(tuple(deviations(found, expected)), share, seconds)


def find_on_rank(case: Case, wrong: Collection[str], tolerance: float) -> Located | None:
    """Run both models once more, recording, and say where they part.

    Args:
        case: The check.
        wrong: Names of parameters whose gradients differ.
        tolerance: The limit.

    Returns:
        What was found among the ranks of this one's tp group; None on all but the first of them.
    """
    with _surroundings(case):
        pair = _pair(case)
        batch = pair.batches[pair.index]
        expected = _recorded(pair.whole, pair.whole, batch, pair.applied)
        found = _recorded(pair.applied.model, pair.computed, batch, pair.applied)
    if "tp" not in pair.applied.meshes.spec.dense.sizes:
        gathered: list[Any] | None = [found]
    else:
        group = pair.applied.meshes.sub("tp").get_group()
        first = dist.get_global_rank(group, 0)
        gathered = [None] * group.size() if dist.get_rank() == first else None
        dist.gather_object(found, gathered, dst=first, group=group)
    if gathered is None:
        return None
    return locate(gathered, expected, Regions(pair.applied.run.graph), wrong, tolerance)


def _recorded(
    model: nn.Module, computed: nn.Module, batch: Batch, applied: Applied
) -> dict[Spot, Tensor]:
    with Recorder(model) as recorder:
        with in_parts(applied):
            output = batch.given_to(computed)
        with in_parts(applied):
            batch.loss(output).backward()  # type: ignore[no-untyped-call]
    return recorder.values


@contextmanager
def _surroundings(case: Case) -> Iterator[None]:
    for reference in case.modules:
        load(reference)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if case.exact:
            with KeepDouble():
                yield
        else:
            yield


def _pair(case: Case) -> _Pair:
    built, twin = twins(case.source, case.attention)
    plan = ShardingPlan.from_json(case.plan)
    passes: tuple[Pass, ...] = pickle.loads(case.pipeline)
    applied = apply(twin, plan, case.mesh, passes, device_type="cpu")
    tie_as(built.model, applied)
    wrap: Callable[[nn.Module, Applied], nn.Module] | None = case.wrap and load(case.wrap)
    computed = twin if wrap is None else wrap(twin, applied)
    index, number = data_index(applied)
    given = built.inputs if case.inputs is None else case.inputs
    loss = built.loss if case.loss is None else load(case.loss)
    batches = tuple(_batches(built.model, given, loss, number))
    return _Pair(built.model, applied, computed, batches, index)


def _batches(
    model: nn.Module, given: object, loss: Callable[..., object] | None, number: int
) -> Iterator[Batch]:
    for index in range(number):
        inputs = inputs_of(model, index) if given is None else given_inputs(given)
        own = default_loss(inputs) if loss is None else _checked(loss)
        yield Batch(inputs, own)


def _checked(loss: Callable[..., object]) -> LossFunction:
    def checked(output: Any) -> Tensor:
        value = loss(output)
        if isinstance(value, Tensor) and value.numel() == 1:
            return value
        raise InputError(
            "the loss function gives no number",
            why=f"it returned a {type(value).__name__}",
            fix="return a tensor of one element",
        )

    return checked


def _held(model: nn.Module) -> int:
    local = [getattr(parameter, "_local_tensor", parameter) for parameter in model.parameters()]
    return sum(part.numel() for part in local)


def ranks_of(results: Sequence[Measured], limit: float) -> list[int]:
    """The ranks on which something is over a limit."""
    return [
        rank
        for rank, result in enumerate(results)
        if any(not deviation.by <= limit for deviation in result.deviations)
    ]
