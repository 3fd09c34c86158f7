"""Shard a small mixture of experts on 4 processes, train one step, and get the original back.

    torchrun --nproc-per-node 4 docs/examples/torchrun_step.py [FILE]

No GPU is needed. The same step runs unsharded beside it, and the differences are printed; all is
in float64, so that a difference is a fault and not rounding. FILE (trained.pt if left out) gets the
state dict of the trained model, under the names of the unsharded one.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import hpx
from hpx.bundled import tiny_moe

MESH = "dp=2,tp=2"
PLAN = hpx.ShardingPlan(
    {
        "model.embed_tokens.weight": {"tp": "S(0)"},
        "model.layers.*.self_attn.{q,k,v}_proj.weight": {"tp": "S(0)"},
        "model.layers.*.self_attn.o_proj.weight": {"tp": "S(1)"},
        "lm_head.weight": {"tp": "S(0)"},
    },
    default="replicate",  # norms, the router, and the experts: every rank has all of them
)


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    """Next-token loss of one batch."""
    scores = model(ids)
    return functional.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW over the parameters that the model has now."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def deviation(found: Tensor, expected: Tensor) -> float:
    """The largest difference, in units of the largest value."""
    return ((found - expected).abs().max() / expected.abs().max()).item()


def whole_step(batches: list[Tensor]) -> tuple[nn.Module, Tensor, Tensor]:
    """The step on the unsharded model, over the batches of all data parallel ranks."""
    model = tiny_moe().double()
    optimizer = optimizer_of(model)
    loss = torch.stack([loss_of(model, ids) for ids in batches]).mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
    return model, loss.detach(), norm


def sharded_step(batches: list[Tensor]) -> tuple[nn.Module, Tensor, Tensor]:
    """The same on this rank's part of the model, over its own batch."""
    model = tiny_moe().double()  # every rank builds the same one
    applied = hpx.apply(model, PLAN, MESH, "@run")
    hpx.fully_shard(applied)
    optimizer = optimizer_of(model)  # after both: it has to hold the new parameters
    loss = loss_of(model, batches[applied.meshes.coordinate()["dp"]])
    loss.backward()
    norm = hpx.clip_grad_norm_(model, max_norm=1.0)
    optimizer.step()
    loss = loss.detach()
    dist.all_reduce(loss, group=applied.meshes.sub("dp").get_group())
    return model, loss / len(batches), norm


def comes_back(trained: dict[str, Tensor]) -> bool:
    """Whether apply and restore give a model its names, their order and every bit back."""
    model = tiny_moe().double()
    model.load_state_dict(trained)
    hpx.apply(model, PLAN, MESH, "@run")
    hpx.restore(model)
    found = model.state_dict()
    return list(found) == list(trained) and all(
        torch.equal(value, trained[name]) for name, value in found.items()
    )


def main(path: Path) -> None:
    """Run it on this rank; rank 0 tells."""
    dist.init_process_group("gloo")
    # On stock FSDP over two axes torch tells, on every rank, that one axis would be faster.
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    tell = print if dist.get_rank() == 0 else lambda *_: None
    torch.manual_seed(0)
    batches = list(torch.randint(256, (2, 4, 32)))  # one for each data parallel rank

    whole, whole_loss, whole_norm = whole_step(batches)
    model, loss, norm = sharded_step(batches)
    tell(f"loss           {loss:.6f}, off by {deviation(loss, whole_loss):.1e}")
    tell(f"gradient norm  {norm:.6f}, off by {deviation(norm, whole_norm):.1e}")

    state = hpx.state_dict(model)  # every rank takes part, and gets whole tensors
    worst = max(deviation(state[name], value) for name, value in whole.state_dict().items())
    tell(f"new weights    {len(state)}, off by {worst:.1e} at most")
    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.barrier()

    same = comes_back(torch.load(path))
    tell(f"comes back     {'bit for bit' if same else 'CHANGED'} from {path}")
    dist.destroy_process_group()
    if not same:
        sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "trained.pt"))
