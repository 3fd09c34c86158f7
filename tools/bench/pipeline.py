"""Ratios of the dry run on the bundled 671B model, each measured within this one process run.

1. Import of the graph against ``list(named_modules()) + list(named_parameters())``.
2. The whole dry run against the same phases written as one straight function on meta tensors, on
   torch's fake process group of 2,048 ranks.
3. Memory of the graph and log against the model alone.
4. Size of the saved run, stacked and with experts left apart.
5. ``hpx explain`` on the saved run, and ``hpx --help`` against a bare typer application.

Run: ``python tools/bench/pipeline.py [--repeat N]``. Lower is better; aims stand beside figures.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import hpx
from hpx import bundled

MESH = "dp=256,tp=8,ep=64"
WORLD = 2048
RULES: list[tuple[str, dict[str, str]]] = [
    ("model.embed_tokens.weight", {"tp": "S(0)"}),
    ("model.layers.*.self_attn.{q,k,v}_proj.weight", {"tp": "S(0)"}),
    ("model.layers.*.self_attn.o_proj.weight", {"tp": "S(1)"}),
    ("model.layers.*.mlp.experts.*", {"ep": "S(0)"}),
    ("lm_head.weight", {"tp": "S(0)"}),
]


def plan(*, stacked: bool = True) -> hpx.ShardingPlan:
    """The plan of the benchmark; with experts apart, they stay whole."""
    rules: dict[str, object] = dict(RULES)
    if not stacked:
        rules.pop("model.layers.*.mlp.experts.*")
    return hpx.ShardingPlan(rules, default="replicate", experts=None if stacked else [])


# -- the straight function ---------------------------------------------------------------------


def straight(model: nn.Module, dense: DeviceMesh, expert: DeviceMesh) -> dict[str, object]:
    """Stack, shard, divide heads, keep source layouts and localize, as one long function."""
    for module in model.modules():  # stack experts
        experts = getattr(module, "experts", None)
        if isinstance(experts, nn.ModuleList):
            stacked = nn.Module()
            for name in ("gate_proj", "up_proj", "down_proj"):
                weights = [getattr(one, name).weight for one in experts]
                stacked.register_parameter(name, nn.Parameter(torch.stack(weights)))
            module.experts = stacked
    patterns = [(_regex(pattern), layout) for pattern, layout in RULES]
    info: dict[str, object] = {}
    for name, parameter in list(model.named_parameters()):  # shard, remember, localize
        layout = next((layout for regex, layout in patterns if regex.fullmatch(name)), {})
        mesh = expert["ep"] if "ep" in layout else dense["tp"]
        placement: Placement = Replicate()
        for text in layout.values():
            placement = Shard(int(text[2:-1]))
        sharded = distribute_tensor(parameter.data, mesh, [placement], src_data_rank=None)
        info[name] = (sharded.placements, mesh)
        owner, _, leaf = name.rpartition(".")
        module = model.get_submodule(owner)
        setattr(module, leaf, nn.Parameter(sharded, requires_grad=parameter.requires_grad))
    tp = dense["tp"].size()
    for module in model.modules():  # divide head counts
        for name in ("num_heads", "num_key_value_heads"):
            if hasattr(module, name):
                setattr(module, name, getattr(module, name) // tp)
    for parameter in list(model.parameters()):
        assert isinstance(parameter, DTensor)
        parameter.to_local()
    return info


def _regex(pattern: str) -> re.Pattern[str]:
    text = re.escape(pattern).replace(r"\*", "[^.]+")
    text = re.sub(r"\\{([^}]*)\\}", lambda m: f"(?:{m[1].replace(',', '|')})", text)
    return re.compile(text)


def measure(function: Callable[[], object]) -> float:
    """Seconds of one call, with the collector off and all that lives now frozen."""
    gc.collect()
    gc.freeze()
    gc.disable()
    start = time.perf_counter()
    kept = function()
    seconds = time.perf_counter() - start
    del kept
    gc.enable()
    gc.unfreeze()
    return seconds


# -- figures -----------------------------------------------------------------------------------


def bench_import(model: nn.Module, repeat: int) -> None:
    """Import against the walks of torch, interleaved."""
    walks, imports = [], []
    for _ in range(repeat):
        walks.append(measure(lambda: (list(model.named_modules()), list(model.named_parameters()))))
        imports.append(measure(lambda: hpx.ModuleGraph.from_module(model)))
    report("import / named_modules + named_parameters", imports, walks, 2.5)


def bench_run(repeat: int) -> None:
    """The whole dry run, import included, against the straight function on a fresh model each."""
    store = FakeStore()
    torch.distributed.init_process_group("fake", rank=0, world_size=WORLD, store=store)
    dense = init_device_mesh("cpu", (256, 8), mesh_dim_names=("dp", "tp"))
    expert = init_device_mesh("cpu", (32, 64), mesh_dim_names=("edp", "ep"))
    warm = bundled.tiny_moe().to("meta")
    warm_dense = init_device_mesh("cpu", (1024, 2), mesh_dim_names=("dp", "tp"))
    warm_expert = init_device_mesh("cpu", (1024, 2), mesh_dim_names=("edp", "ep"))
    straight(warm, warm_dense, warm_expert)
    hpx.run(bundled.tiny_moe(), plan(), "dp=4,tp=2,ep=2")
    ours, theirs = [], []
    for _ in range(repeat):
        model = bundled.moe_671b()
        ours.append(measure(lambda model=model: hpx.run(model, plan(), MESH)))  # type: ignore[misc]
        theirs.append(
            measure(lambda model=model: straight(model, dense, expert))  # type: ignore[misc]
        )
    report("whole dry run / one straight function", ours, theirs, 1.0)
    torch.distributed.destroy_process_group()


def bench_memory() -> None:
    """Resident memory after the model and after the run, in a process of its own."""
    code = (
        "import ctypes, gc, psutil, hpx, sys; from hpx import bundled\n"
        "sys.path.insert(0, sys.argv[1]); import pipeline as bench\n"
        "hpx.run(bundled.tiny_moe(), bench.plan(), 'dp=4,tp=2,ep=2'); gc.collect()\n"
        "trim = ctypes.CDLL(None).malloc_trim  # what the allocator only keeps does not count\n"
        "rss = lambda: (gc.collect(), trim(0), psutil.Process().memory_info().rss)[2]\n"
        "base = rss(); model = bundled.moe_671b(); gc.collect(); alone = rss() - base\n"
        "run = hpx.run(model, bench.plan(), bench.MESH); gc.collect()\n"
        "print(alone, rss() - base)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    alone, both = map(int, out.split())
    ratio = both / alone
    print(
        f"memory of model, graph and log / model alone: {ratio:.2f}x (aim 1.25x);"
        f" {alone / 2**20:.0f} MiB and {(both - alone) / 2**20:.0f} MiB more"
    )


def bench_files(folder: Path, repeat: int) -> None:
    """Sizes of saved runs, and explain on one."""
    model = bundled.moe_671b()
    run = folder / "run.json"
    hpx.run(model, plan(), MESH).save(run)
    apart = folder / "apart.json"
    hpx.run(model, plan(stacked=False), "dp=256,tp=8").save(apart)
    print(f"saved run: {run.stat().st_size / 1e6:.2f} MB (aim 1 MB)")
    print(f"saved run, experts unstacked: {apart.stat().st_size / 1e6:.2f} MB (aim 6 MB)")
    name = "model.layers.7.mlp.experts.gate_proj"
    for what in (name, "model.layers.7.mlp.experts.31.gate_proj.weight"):
        code = f"from hpx.tools.cli import main; main(['explain', {str(run)!r}, {what!r}])"
        seconds = [process(code) for _ in range(repeat)]
        print(f"hpx explain ...{what[-30:]}: {statistics.median(seconds):.2f} s (aim 0.5 s)")


def bench_help(repeat: int) -> None:
    """``hpx --help`` and a bare typer application with six commands, alternately."""
    bare = (
        "import typer\napp = typer.Typer(rich_markup_mode=None, add_completion=False)\n"
        + "".join(
            f"@app.command()\ndef c{i}(a: str, b: int = 1) -> None: 'Do.'\n" for i in range(6)
        )
        + "app(['--help'])"
    )
    ours, theirs = [], []
    for _ in range(repeat * 3):
        ours.append(process("from hpx.tools.cli import main; main(['--help'])"))
        theirs.append(process(bare))
    report("hpx --help / bare typer application", ours, theirs, 1.25)


def process(code: str) -> float:
    """Seconds that a fresh interpreter takes for some code."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False)
    return time.perf_counter() - start


def report(what: str, ours: list[float], theirs: list[float], aim: float) -> None:
    """One line: the ratio of the medians, and the medians."""
    a, b = statistics.median(ours), statistics.median(theirs)
    print(f"{what}: {a / b:.2f}x (aim {aim}x); {a:.3f} s and {b:.3f} s", flush=True)


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    repeat: int = parser.parse_args().repeat
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    bench_import(bundled.moe_671b(), repeat)
    bench_run(repeat)
    bench_memory()
    with tempfile.TemporaryDirectory() as folder:
        bench_files(Path(folder), repeat)
    bench_help(repeat)


if __name__ == "__main__":
    main()
