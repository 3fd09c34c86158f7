"""A step whose loss is computed in parts, from logits that stay in columns."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional

from hpx.plan import ShardingPlan
from hpx.runtime.apply import apply
from tests.distributed.equality import batches, built, deviation, gradients, no_casts, whole
from tests.distributed.equality_models import MODELS

__all__ = ["loss_deviations"]


def loss_deviations(name: str, mesh: str, pipeline: str, own_loss: bool) -> dict[str, float]:
    """By tensor, how far a step with ``loss_parallel()`` is from the unsharded one.

    Args:
        name: The model.
        mesh: The mesh; of axis tp alone.
        pipeline: With ``loss=parallel``.
        own_loss: Whether the model computes the loss, as those of transformers do from labels.
    """
    ids = batches(1)[0]
    with no_casts():
        expected = _step(name, ids, own_loss)
        found = _step(name, ids, own_loss, mesh, pipeline)
    return {key: deviation(value, expected[key]) for key, value in found.items()}


def _step(
    name: str, ids: Tensor, own_loss: bool, mesh: str | None = None, pipeline: str = ""
) -> dict[str, Tensor]:
    model = built(name)
    if mesh is not None:
        apply(model, ShardingPlan.from_text(MODELS[name][1]), mesh, pipeline)
    if mesh is None:
        out, loss = _forward(model, ids, own_loss)
        loss.backward()  # type: ignore[no-untyped-call]
    else:
        with loss_parallel():
            out, loss = _forward(model, ids, own_loss)
            assert isinstance(out, DTensor)
            assert out.placements == (Shard(2),)
            assert out.to_local().shape[-1] < out.shape[-1]
            loss.backward()  # type: ignore[no-untyped-call]
    found = {"logits": out, "loss": loss, **{f"gradient of {p}": g for p, g in gradients(model)}}
    return {key: whole(value).detach().clone() for key, value in found.items()}


def _forward(model: torch.nn.Module, ids: Tensor, own_loss: bool) -> tuple[Tensor, Tensor]:
    if own_loss:
        out = model(input_ids=ids, labels=ids, use_cache=False)
        return out.logits, out.loss
    out = model(ids)
    logits = out if isinstance(out, Tensor) else out.logits
    return logits, functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
