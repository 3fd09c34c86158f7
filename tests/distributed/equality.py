"""A training step in float64, whole and sharded, with what wraps a model, and with faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor, nn

import hpx
from hpx.numeric.feeding import default_loss, inputs_of
from hpx.numeric.pool import Pool
from hpx.numeric.preparing import Subject, prepare
from hpx.numeric.ranks import Case, measure_on_rank
from hpx.plan import ShardingPlan
from hpx.runtime import boundaries, inputs, local
from hpx.runtime.around import Call
from hpx.runtime.record import Applied
from tests.distributed.equality_models import MODELS, VOCABULARY

LIMIT: Final = 1e-9
"""Of ``max|a-b| / max|b|``, per tensor."""

Wrap = Callable[[nn.Module, Applied], nn.Module]


def built(name: str) -> nn.Module:
    """The same model wherever it is built."""
    torch.manual_seed(0)
    return MODELS[name][0]().double()


def plan_of(name: str) -> ShardingPlan:
    return ShardingPlan.from_text(MODELS[name][1], "plan.yaml")


def subject(
    name: str, mesh: str, pipeline: str = "@run", wrap: Wrap | None = None, **more: Any
) -> Subject:
    """A model and its plan, on a mesh; a wrapped one keeps the casts inside, see `no_casts`."""
    model, plan = built(name), plan_of(name)
    return prepare(model, plan, mesh, pipeline, wrap=wrap, exact=wrap is None, **more)


def measured(case: Case) -> dict[str, float]:
    """By tensor, how far the sharded step is from the unsharded one, on this rank."""
    with nullcontext() if case.exact else no_casts():
        found = measure_on_rank(case)
    return {f"{d.key.kind} {d.key.name} {d.key.batch}": d.by for d in found.deviations}


def deviations(gloo: Pool, of: Subject) -> list[dict[str, float]]:
    """The same of every rank."""
    found = gloo.run(measured, of.run.mesh.world_size, of.case)
    assert all(len(one) > 20 for one in found)
    return found


def too_far(found: dict[str, float]) -> dict[str, float]:
    return {key: far for key, far in found.items() if not far <= LIMIT}


def odd_ids() -> Tensor:
    """``[2, 27]``: every token of the small vocabulary, and one more."""
    ids = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(1)).view(2, -1)
    return torch.cat((ids[:, -2:], ids, ids[:, :1]), dim=-1)


# -- what stands around a model ------------------------------------------------------------------


def fsdp(model: nn.Module, applied: Applied) -> nn.Module:
    return hpx.fully_shard(applied)


def fsdp_of_leaves(model: nn.Module, applied: Applied) -> nn.Module:
    """Groups that are the very modules which own parameters, and the boundaries around them."""
    names = [n for n, m in model.named_modules() if n.endswith(("mlp", "self_attn", "o_proj"))]
    return hpx.fully_shard(applied, modules=names)


def checkpointed(model: nn.Module, applied: Applied) -> nn.Module:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl

    return _checkpointed(model, CheckpointImpl.NO_REENTRANT)


def checkpointed_reentrant(model: nn.Module, applied: Applied) -> nn.Module:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl

    return _checkpointed(model, CheckpointImpl.REENTRANT)


def _checkpointed(model: nn.Module, kind: Any) -> nn.Module:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    layers = next(m for n, m in model.named_modules() if n in ("model.layers", "transformer.h"))
    assert isinstance(layers, nn.ModuleList)
    for index, layer in enumerate(layers):
        layers[index] = checkpoint_wrapper(layer, checkpoint_impl=kind)
    return model


def checkpointed_in_parts(model: nn.Module, applied: Applied) -> nn.Module:
    """Checkpoints around regions and around layers inside them."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing,
    )

    names = ("self_attn", "down_proj", "c_proj")
    chosen = [m for n, m in model.named_modules() if n.rpartition(".")[2] in names]
    apply_activation_checkpointing(model, check_fn=lambda m: any(m is c for c in chosen))
    return model


def compiled(model: nn.Module, applied: Applied) -> nn.Module:
    return torch.compile(model, backend="aot_eager")  # type: ignore[return-value]


WRAPS: Final[tuple[Wrap, ...]] = (
    *(fsdp, fsdp_of_leaves),
    *(checkpointed, checkpointed_reentrant, checkpointed_in_parts),
)
"""All but the compiler, which is slow."""


@contextmanager
def no_casts() -> Iterator[None]:
    """No casts to float32, in what checkpoints compute anew and compilers trace as well.

    The mode of a check reaches neither.
    """
    cast_float, cast_to = Tensor.float, Tensor.to

    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        wanted = torch.float32 in args or kwargs.get("dtype") is torch.float32
        if tensor.dtype is torch.float64 and wanted:
            return tensor
        return cast_to(tensor, *args, **kwargs)

    patched: Any = Tensor
    patched.float = lambda x: x if x.dtype is torch.float64 else cast_float(x)
    patched.to = to
    try:
        yield
    finally:
        patched.float, patched.to = cast_float, cast_to


# -- faults --------------------------------------------------------------------------------------


@contextmanager
def broken(what: str) -> Iterator[None]:
    """The runtime with one fault, to see that the comparison notices it."""
    if what == "inputs are not copied":
        with mock.patch.object(inputs, "copy_to_region", lambda x, _group: x):
            yield
    elif what == "outputs are not summed":
        with mock.patch.object(boundaries, "reduce_from_region", lambda x, _group: x):
            yield
    elif what == "partial gradients are not summed":
        with mock.patch.object(local, "all_reduce_sum", lambda x, _group: x):
            yield
    elif what == "a bias on every rank":
        with mock.patch.object(boundaries._Rowwise, "enter", return_value=None):
            yield
    elif what == "padding_idx on shifted ids":
        with mock.patch.object(Call, "swap", _swap_all_but_padding):
            yield
    else:
        assert what == "nothing"
        yield


_swap = Call.swap


def _swap_all_but_padding(call: Call, table: Any, name: str, value: object) -> None:
    if name != "padding_idx":
        _swap(call, table, name, value)


def measured_if(what: str, case: Case) -> dict[str, float]:
    """As `measured`, with a fault in the runtime."""
    with broken(what):
        return measured(case)


def zero_rows(name: str) -> list[int]:
    """Tokens whose row of the embedding has no gradient in the unsharded step."""
    model = built(name)
    positional, named = arguments = inputs_of(model, 0)
    torch.autograd.backward(default_loss(arguments)(model(*positional, **named)))
    gradient = model.get_parameter("model.embed_tokens.weight").grad
    assert gradient is not None
    rows: list[int] = (gradient.abs().amax(dim=1) == 0).nonzero().flatten().tolist()
    return rows
