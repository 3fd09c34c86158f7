"""Ratios of ``hpx.apply`` against one straight function that stacks a layer's experts and slices.

Rank 0 of ep 8 on torch's fake process group; each side in a fresh process, on a real mixture of
experts of about 2 GB (64 experts a layer, float32), DTensor warm, garbage collector frozen.

1. Time, five thick layers, and twenty thinner ones of the same total.
2. Peak memory beyond what was there: against the local bytes plus one source tensor; and with
   ``donate=True``.
3. The whole ``hpx.apply`` on the 45,000-parameter meta model with 2,048 ranks, against the straight
   function of ``pipeline.py``.

Run: ``python tools/bench/materialize.py [--repeat N]``. Lower is better; aims stand beside.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import hpx

EXPERTS, WORLD = 64, 8


class Expert(nn.Module):
    """Three matrices, as in most mixtures of experts."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)


class Layer(nn.Module):
    """A router and its experts."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert(hidden, width) for _ in range(EXPERTS))


class Model(nn.Module):
    """Layers of experts; about 2 GB whatever the number of layers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        width = 2560 // layers * 4 // 4
        self.layers = nn.ModuleList(Layer(1024, width) for _ in range(layers))


def plan() -> hpx.ShardingPlan:
    """Experts over ep, the rest whole."""
    return hpx.ShardingPlan({"layers.*.experts.*": {"ep": "S(0)"}}, default="replicate")


def straight(model: nn.Module) -> None:
    """Stack each layer's experts, distribute, and put the stacked parameters in place."""
    mesh = init_device_mesh("cpu", (1, WORLD), mesh_dim_names=("edp", "ep"))["ep"]
    for layer in model.layers:  # type: ignore[union-attr]
        stacked = nn.Module()
        for name in ("gate_proj", "up_proj", "down_proj"):
            whole = torch.stack([getattr(one, name).weight.detach() for one in layer.experts])
            placed = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)
            local = placed.to_local().clone()
            placed = DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
            stacked.register_parameter(name, nn.Parameter(placed))
        layer.experts = stacked


def start_fake_group(world: int) -> None:
    """One process as rank 0 of a world; DTensor is used once, so its first use is not timed."""
    store = FakeStore()
    torch.distributed.init_process_group("fake", rank=0, world_size=world, store=store)
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("warm",))
    distribute_tensor(torch.zeros(world, 4), mesh, [Shard(0)], src_data_rank=None)
    DTensor.from_local(torch.zeros(1), mesh, [Replicate()], run_check=False)


class Peak:
    """The most resident memory of this process while the block ran, in bytes beyond the start."""

    def __enter__(self) -> Peak:
        self.process = psutil.Process()
        self.start = self.most = self.process.memory_info().rss
        self.running = True
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self) -> None:
        """Sample until told to stop."""
        while self.running:
            self.most = max(self.most, self.process.memory_info().rss)
            time.sleep(0.002)

    def __exit__(self, *_: object) -> None:
        self.running = False
        self.thread.join()
        self.beyond = max(self.most, self.process.memory_info().rss) - self.start


def one_side(side: str, layers: int) -> dict[str, float]:
    """Time one side in this process; memory is sampled apart, so that it does not cost time."""
    start_fake_group(WORLD)
    with torch.device("meta"):
        warm_up, warm_too = Model(layers), Model(layers)
    hpx.apply(warm_up, plan(), "dp=8,ep=8")
    straight(warm_too)
    model = Model(layers)
    actions: dict[str, Callable[[], object]] = {
        "straight": lambda: straight(model),
        "hpx": lambda: hpx.apply(model, plan(), "dp=8,ep=8"),
        "hpx-memory": lambda: hpx.apply(model, plan(), "dp=8,ep=8"),
        "hpx-donate": lambda: hpx.apply(model, plan(), "dp=8,ep=8", donate=True),
        "straight-memory": lambda: straight(model),
    }
    gc.collect()
    gc.freeze()
    gc.disable()
    total = sum(p.numel() * p.element_size() for p in model.parameters())
    largest = max(p.numel() * p.element_size() for p in model.parameters())
    start = time.perf_counter()
    if side in ("straight", "hpx"):
        kept = actions[side]()
        return {"seconds": time.perf_counter() - start, "kept": float(kept is not None)}
    with Peak() as peak:
        kept = actions[side]()
    return {"peak": peak.beyond, "local": total / WORLD, "largest": largest}


def fresh(side: str, layers: int) -> dict[str, float]:
    """Run one side in a fresh process."""
    command = [sys.executable, __file__, "--side", side, "--layers", str(layers)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    return dict(json.loads(out.splitlines()[-1]))


def compare_times(layers: int, repeat: int, aim: str) -> None:
    """Medians of fresh processes, alternately."""
    ours, theirs = [], []
    for _ in range(repeat):
        ours.append(fresh("hpx", layers)["seconds"])
        theirs.append(fresh("straight", layers)["seconds"])
    a, b = statistics.median(ours), statistics.median(theirs)
    print(f"{layers} layers: {a / b:.2f}x ({aim}); {a:.3f} s and {b:.3f} s", flush=True)


def compare_memory(side: str, share: float) -> None:
    """Peak beyond the start against the local bytes plus one source tensor."""
    found = fresh(side, 5)
    bound = (found["local"] + found["largest"]) * share
    print(
        f"peak extra memory, {side}: {found['peak'] / 2**20:.0f} MiB;"
        f" the bound is {bound / 2**20:.0f} MiB",
        flush=True,
    )


def whole_apply(repeat: int) -> None:
    """Apply on the 671B meta model against the straight function."""
    sys.path.insert(0, str(Path(__file__).parent))
    import pipeline  # type: ignore[import-not-found]  # the benchmark beside this one

    from hpx import bundled

    start_fake_group(pipeline.WORLD)
    dense = init_device_mesh("cpu", (256, 8), mesh_dim_names=("dp", "tp"))
    expert = init_device_mesh("cpu", (32, 64), mesh_dim_names=("edp", "ep"))
    mesh = hpx.MeshSpec.from_mesh(dense, expert)
    pipeline.straight(bundled.tiny_moe().to("meta"), *_tiny_meshes())
    tiny = hpx.MeshSpec.from_mesh(*_tiny_meshes())
    hpx.apply(bundled.tiny_moe().to("meta"), pipeline.plan(), tiny)
    ours, theirs = [], []
    for _ in range(repeat):
        model = bundled.moe_671b()
        theirs.append(pipeline.measure(lambda m=model: pipeline.straight(m, dense, expert)))
        model = bundled.moe_671b()
        ours.append(pipeline.measure(lambda m=model: hpx.apply(m, pipeline.plan(), mesh)))
    a, b = statistics.median(ours), statistics.median(theirs)
    print(f"whole apply, 45,000 parameters: {a / b:.2f}x (aim 1.25x); {a:.3f} s and {b:.3f} s")


def _tiny_meshes() -> tuple[DeviceMesh, DeviceMesh]:
    dense = init_device_mesh("cpu", (1024, 2), mesh_dim_names=("dp", "tp"))
    expert = init_device_mesh("cpu", (1024, 2), mesh_dim_names=("edp", "ep"))
    return dense, expert


def main() -> None:
    """Print every figure, or time one side if asked to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--side")
    parser.add_argument("--layers", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.side:
        print(json.dumps(one_side(arguments.side, arguments.layers)))
        return
    compare_times(5, arguments.repeat, "aim 0.4x")
    compare_times(20, arguments.repeat, "reported; a prototype: 0.5x")
    compare_memory("hpx-memory", 1.0)
    compare_memory("hpx-donate", 0.1)
    compare_memory("straight-memory", 1.0)
    whole_apply(arguments.repeat)


if __name__ == "__main__":
    main()
