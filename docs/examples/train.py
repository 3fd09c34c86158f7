"""Train a small Llama, sharded and unsharded side by side, and compare the two loss curves.

    torchrun --nproc-per-node 4 docs/examples/train.py

No GPU is needed: four processes on the CPU, tensor parallel in pairs, FSDP over the two pairs. Each
step takes several batches (gradient accumulation), recomputes activations in the backward pass,
clips the gradient to a norm over all ranks, and steps AdamW. The same training runs unsharded in
the same processes, on the batches of all of them. In float64 the curves agree to rounding, so that
a difference is a fault; with --bf16 both compute under autocast and agree as far as bfloat16 goes.

    --steps N         training steps (20)
    --mesh AXES       such as dp=4,tp=1 or tp=4 (dp=2,tp=2)
    --compile         compile every layer, with torch.compile (backend aot_eager)
    --bf16            float32 weights under bfloat16 autocast
    -o FILE           the trained weights, under the names of the unsharded model
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointWrapper,
    apply_activation_checkpointing,
)
from torch.nn import functional

import hpx
from hpx.bundled import tiny_llama

VOCABULARY, LENGTH, BATCH, ACCUMULATED, MAX_NORM = 256, 32, 4, 2, 1.0


def texts(steps: int, ranks: int) -> Tensor:
    """Batches ``[steps, ranks, accumulated, batch, length]`` of texts that can be learned.

    Each token follows from the one before, by a rule that is the same for all texts.
    """
    torch.manual_seed(0)
    following = torch.randperm(VOCABULARY)
    ids = torch.randint(VOCABULARY, (steps, ranks, ACCUMULATED, BATCH, 1))
    while ids.shape[-1] < LENGTH:
        ids = torch.cat([ids, following[ids[..., -1:]]], dim=-1)
    return ids


def loss_of(model: nn.Module, ids: Tensor, *, bf16: bool) -> Tensor:
    """Next-token loss of one batch."""
    with torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext():
        scores = model(ids)
    return functional.cross_entropy(scores[:, :-1].flatten(0, 1).double(), ids[:, 1:].flatten())


def recomputed(model: nn.Module) -> None:
    """Keep no activations inside layers: they are computed again in the backward pass."""
    layers = set(model.get_submodule("model.layers").children())
    apply_activation_checkpointing(model, check_fn=lambda module: module in layers)


def whole(dtype: torch.dtype) -> nn.Module:
    """The unsharded model."""
    model = tiny_llama().to(dtype)
    recomputed(model)
    return model


def sharded(mesh: str, dtype: torch.dtype, *, compiled: bool) -> hpx.Applied:
    """This rank's part of the model, under FSDP."""
    model = tiny_llama().to(dtype)
    recomputed(model)
    applied = hpx.apply(model, hpx.plan(model, mesh), mesh, "@run")
    if compiled:
        for layer in model.get_submodule("model.layers").children():
            inner = (
                layer._checkpoint_wrapped_module if isinstance(layer, CheckpointWrapper) else layer
            )
            inner.compile(backend="aot_eager")
    if applied.meshes.spec.has("dp"):
        hpx.fully_shard(applied)
    return applied


def main() -> None:
    """Train both on this rank; rank 0 tells."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--mesh", default="dp=2,tp=2")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    dist.init_process_group("gloo")
    # On stock FSDP over two axes torch tells, on every rank, that one axis would be faster.
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    tell = print if dist.get_rank() == 0 else lambda *_, **__: None
    dtype = torch.float32 if given.bf16 else torch.float64

    applied = sharded(given.mesh, dtype, compiled=given.compile)
    meshes, model = applied.meshes, applied.model
    has_dp = meshes.spec.has("dp")
    ranks = meshes.spec.size("dp", 1)
    rank = meshes.coordinate()["dp"] if has_dp else 0
    reference = whole(dtype)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=3e-3) for m in (model, reference)]

    worst = 0.0
    for step, batches in enumerate(texts(given.steps, ranks)):
        mine = torch.zeros((), dtype=torch.float64)
        for ids in batches[rank]:
            loss = loss_of(model, ids, bf16=given.bf16) / ACCUMULATED
            loss.backward()
            mine += loss.detach()
        if has_dp:
            dist.all_reduce(mine, group=meshes.sub("dp").get_group())
        norm = hpx.clip_grad_norm_(model, MAX_NORM)

        expected = torch.zeros((), dtype=torch.float64)
        for ids in batches.flatten(0, 1):
            loss = loss_of(reference, ids, bf16=given.bf16) / (ranks * ACCUMULATED)
            loss.backward()
            expected += loss.detach()
        expected_norm = nn.utils.clip_grad_norm_(reference.parameters(), MAX_NORM)

        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        found = (mine / ranks).item()
        off = abs(found - expected.item()) / expected.item()
        worst = max(worst, off, abs(norm.item() / expected_norm.item() - 1))
        tell(f"step {step:3}  loss {found:.6f}  unsharded {expected.item():.6f}  off by {off:.1e}")

    limit = 5e-3 if given.bf16 else 1e-9
    equal = worst <= limit
    verdict = "equal" if equal else "NOT EQUAL"
    tell(f"loss and gradient norm are {verdict}: off by {worst:.1e} at most")
    if given.output is not None:
        state = hpx.state_dict(model)  # every rank takes part, and gets whole tensors
        if dist.get_rank() == 0:
            torch.save(state, given.output)
    dist.destroy_process_group()
    sys.exit(not equal)


if __name__ == "__main__":
    main()
