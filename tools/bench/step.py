"""The step of a small Llama, tensor parallel on two gloo processes, three ways in one run.

Forward and backward under hpx (``@run``), under torch's ``parallelize_module`` and under the plan
that transformers ships (``tp_plan``), on the same configuration, weights and batch. The three take
turns, step by step, so that what else the machine does falls on all of them.

1. The ratio of hpx's median step to the faster of the two others: 1.05 or less.
2. What a boundary costs in the forward beside the layer itself, on torch's fake process group:
   60 microseconds or less. Gradients are off: autograd's own nodes are no hooks.

Run: ``python tools/bench/step.py [--steps N] [--only step|hooks]``. Lower is better.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

import hpx

RANKS, WARM_UP = 2, 5
BATCH, LENGTH = 2, 128
LAYOUTS = {
    "model.embed_tokens.weight": {"tp": "S(0)"},
    "model.layers.*.self_attn.{q,k,v}_proj.weight": {"tp": "S(0)"},
    "model.layers.*.self_attn.o_proj.weight": {"tp": "S(1)"},
    "model.layers.*.mlp.{gate,up}_proj.weight": {"tp": "S(0)"},
    "model.layers.*.mlp.down_proj.weight": {"tp": "S(1)"},
    "lm_head.weight": {"tp": "S(0)"},
}


def config() -> Any:
    """A Llama of four layers, as wide as two CPU processes can step in some 50 ms."""
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=4096,
        tie_word_embeddings=False,
        use_cache=False,
    )


def with_hpx(folder: Path) -> nn.Module:
    """The model under hpx."""
    from transformers import LlamaForCausalLM

    model: nn.Module = LlamaForCausalLM.from_pretrained(folder)
    plan = hpx.ShardingPlan(LAYOUTS, default="replicate")
    hpx.apply(model, plan, f"tp={RANKS}", "@run")
    return model


def with_torch(folder: Path) -> nn.Module:
    """The model under torch's ``parallelize_module``, with the same layouts."""
    from transformers import LlamaForCausalLM

    model: nn.Module = LlamaForCausalLM.from_pretrained(folder)
    styles: dict[str, ParallelStyle] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        "lm_head": ColwiseParallel(output_layouts=Replicate()),
    }
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
        styles[f"model.layers.*.{name}"] = ColwiseParallel()
    for name in ("mlp.gate_proj", "mlp.up_proj"):
        styles[f"model.layers.*.{name}"] = ColwiseParallel()
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        styles[f"model.layers.*.{name}"] = RowwiseParallel()
    return parallelize_module(model, init_device_mesh("cpu", (RANKS,)), styles)


def with_transformers(folder: Path) -> nn.Module:
    """The model under the plan that transformers ships for it."""
    from transformers import LlamaForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig

    # What from_pretrained does with a distributed_config, save that it would ask for accelerate.
    made, _, meshes = LlamaForCausalLM.prepare_distribute_model(
        DistributedConfig(tp_size=RANKS, tp_plan="auto")
    )
    loaded = LlamaForCausalLM.from_pretrained(folder)
    model: nn.Module = LlamaForCausalLM.maybe_distribute_model(loaded, made, meshes)
    return model


SIDES: dict[str, Callable[[Path], nn.Module]] = {
    "hpx": with_hpx,
    "parallelize_module": with_torch,
    "tp_plan": with_transformers,
}


def step(model: nn.Module, ids: Tensor) -> float:
    """Seconds of one forward and backward, from the moment at which all ranks are there."""
    dist.barrier()
    start = time.perf_counter()
    model(input_ids=ids, labels=ids).loss.backward()
    taken = time.perf_counter() - start
    model.zero_grad(set_to_none=True)
    return taken


def one_rank(folder: Path, rank: int, steps: int) -> None:
    """What a process does; rank 0 prints the medians."""
    from transformers.utils.logging import disable_progress_bar

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    disable_progress_bar()  # type: ignore[no-untyped-call]
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ids = torch.randint(4096, (BATCH, LENGTH))
    models = {name: make(folder / "model") for name, make in SIDES.items()}
    losses = {name: model(input_ids=ids, labels=ids).loss.item() for name, model in models.items()}
    if max(losses.values()) - min(losses.values()) > 1e-4:
        raise SystemExit(f"the models differ: {losses}")
    taken: dict[str, list[float]] = {name: [] for name in models}
    gc.collect()
    gc.freeze()
    for number in range(WARM_UP + steps):
        for name, model in models.items():
            seconds = step(model, ids)
            if number >= WARM_UP:
                taken[name].append(seconds)
    if rank == 0:
        report(taken)
    dist.barrier()
    dist.destroy_process_group()


def report(taken: dict[str, list[float]]) -> None:
    """Medians, and the ratio."""
    medians = {name: statistics.median(times) for name, times in taken.items()}
    for name, seconds in medians.items():
        print(f"step  {name:<20} {seconds * 1e3:7.2f} ms  (median of {len(taken[name])})")
    faster = min(seconds for name, seconds in medians.items() if name != "hpx")
    print(f"step  hpx / the faster     {medians['hpx'] / faster:7.2f}     aim 1.05", flush=True)


def compare_steps(steps: int) -> None:
    """Start the two processes on a model with random weights."""
    from transformers import LlamaForCausalLM
    from transformers.utils.logging import disable_progress_bar

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch.manual_seed(0)
        disable_progress_bar()  # type: ignore[no-untyped-call]
        LlamaForCausalLM(config()).save_pretrained(folder / "model")
        here = [sys.executable, __file__, "--steps", str(steps), "--folder", name, "--rank"]
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        ranks = [subprocess.Popen([*here, str(r)], env=environment) for r in range(RANKS)]
        codes = [rank.wait() for rank in ranks]
        if any(codes):
            raise SystemExit(f"the processes ended with {codes}")


class Block(nn.Module):
    """A tiny mlp and what stands around it: one boundary of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(16, 8)
        self.mlp = nn.Module()
        self.mlp.up_proj = nn.Linear(8, 8, bias=False)
        self.mlp.down_proj = nn.Linear(8, 8, bias=False)
        self.mlp.forward = lambda x: self.mlp.down_proj(self.mlp.up_proj(x))  # type: ignore[operator]
        self.lm_head = nn.Linear(8, 16, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores."""
        scores: Tensor = self.lm_head(self.mlp(self.embed_tokens(ids)))
        return scores


def microseconds(call: Callable[[], object], number: int = 2000) -> float:
    """The median of 15 rounds, per call."""
    rounds = []
    for _ in range(15):
        start = time.perf_counter()
        for _ in range(number // 15):
            call()
        rounds.append((time.perf_counter() - start) / (number // 15) * 1e6)
    return statistics.median(rounds)


def measure_hooks() -> None:
    """A boundary of each kind against the same module with plain local weights."""
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    torch.set_num_threads(1)
    plan = hpx.ShardingPlan(
        {
            "embed_tokens.weight": {"tp": "S(0)"},
            "mlp.up_proj.weight": {"tp": "S(0)"},
            "mlp.down_proj.weight": {"tp": "S(1)"},
            "lm_head.weight": {"tp": "S(0)"},
        }
    )
    model = Block()
    hpx.apply(model, plan, f"tp={RANKS}", "@run")
    ids, x = torch.randint(8, (2, 4)), torch.randn(2, 4, 8)
    up, down, head = nn.Linear(8, 4, bias=False), nn.Linear(4, 8, bias=False), nn.Linear(8, 8)
    rows = nn.Embedding(8, 8)
    print("hooks, forward, fake group of 2: microseconds a boundary, layers and sums taken off")
    with torch.no_grad():
        pairs: dict[str, tuple[Callable[[], object], Callable[[], object], int]] = {
            "embedding": (lambda: model.embed_tokens(ids), lambda: rows(ids), 1),
            "mlp": (lambda: model.mlp(x), lambda: down(up(x)), 3),  # region, colwise, rowwise
            "head": (lambda: model.lm_head(x), lambda: head(x), 1),
        }
        for name, (bounded, plain, boundaries) in pairs.items():
            extra = (microseconds(bounded) - microseconds(plain)) / boundaries
            print(f"hooks {name:<20} {extra:7.1f} us  aim 60  ({boundaries} modules with hooks)")
    dist.destroy_process_group()


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--only", choices=("step", "hooks"))
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        one_rank(given.folder, given.rank, given.steps)
        return
    if given.only != "hooks":
        compare_steps(given.steps)
    if given.only != "step":
        measure_hooks()


if __name__ == "__main__":
    main()
