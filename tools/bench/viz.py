"""How long hpx-viz takes, how large its files are, and how soon a page is there. Not installed.

python tools/bench/viz.py [--repeat N]

Every figure comes from this one run: the commands alternate with a bare ``import typer``, which is
what starting Python and reading a command line cost anyway. Where other programs are busy the clock
says little, and the processor's own time more. First paint is asked of a headless Chromium, if
there is one.
"""

from __future__ import annotations

import argparse
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

LAYERS: Final = 58
EXPERTS: Final = 256
SECONDS: Final = 2.0
"""The aim of a 45,000-parameter file, beyond a bare start."""
MOST_NODES: Final = 100
MOST_SVG: Final = 300_000
MOST_HTML: Final = 5_000_000
FIRST_PAINT: Final = 1.0

DRAW: Final = """\
import sys
from hpx.tools.viz import main
code = main([sys.argv[1], "-q", "-o", sys.argv[2]])
if "torch" in sys.modules:
    sys.exit("torch was imported")
sys.exit(code)
"""


def write_checkpoint(place: Path) -> int:
    """A ``.pt`` with the names of the bundled mixture on small tensors; how many there are."""
    import torch

    weights: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (12, 7)}
    weights["lm_head.weight"] = (12, 7)
    weights["model.norm.weight"] = (7,)
    for layer in (f"model.layers.{i}" for i in range(LAYERS)):
        for name, shape in (("q", (16, 7)), ("k", (2, 7)), ("v", (2, 7)), ("o", (7, 16))):
            weights[f"{layer}.self_attn.{name}_proj.weight"] = shape
        weights[f"{layer}.mlp.gate.weight"] = (EXPERTS, 7)
        for expert in (f"{layer}.mlp.experts.{j}" for j in range(EXPERTS)):
            weights[f"{expert}.gate_proj.weight"] = (2, 7)
            weights[f"{expert}.up_proj.weight"] = (2, 7)
            weights[f"{expert}.down_proj.weight"] = (7, 2)
        weights[f"{layer}.input_layernorm.weight"] = (7,)
        weights[f"{layer}.post_attention_layernorm.weight"] = (7,)
    torch.save({name: torch.zeros(shape) for name, shape in weights.items()}, place)
    return len(weights)


class Taken(NamedTuple):
    """Seconds by the clock, and those that a processor worked."""

    clock: float
    work: float


def taken_by(*arguments: str) -> Taken:
    """What a fresh interpreter takes, with all that it starts; it has to succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-P", "-c", *arguments], capture_output=True, text=True, check=False
    )
    clock = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(f"failed: {done.stderr.strip() or done.stdout.strip()}")
    work = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Taken(clock, work)


def bench_formats(folder: Path, repeat: int) -> None:
    """Text, html and svg of a 45,000-parameter file, each against a bare start."""
    model = folder / "model.pt"
    count = write_checkpoint(model)
    print(f"a .pt of {count:,} parameters, {model.stat().st_size / 1e6:.1f} MB")
    for suffix in ("txt", "html", "svg"):
        out = folder / f"out.{suffix}"
        ours, bare = [], []
        taken_by(DRAW, str(model), str(out))  # so that neither side reads a cold disk
        for _ in range(repeat):
            ours.append(taken_by(DRAW, str(model), str(out)))
            bare.append(taken_by("import typer"))
        clock, work = (
            statistics.median(column) - statistics.median(base)
            for column, base in zip(zip(*ours, strict=True), zip(*bare, strict=True), strict=True)
        )
        print(
            f"{count:,} parameters to {suffix}, without torch: {clock:.2f} s beyond a bare import"
            f" of typer (aim {SECONDS:g} s, {verdict(clock <= SECONDS)}), of which a processor"
            f" worked {work:.2f} s",
            flush=True,
        )
    report_svg(folder / "out.svg", count)


def report_svg(place: Path, count: int) -> None:
    """How much of a picture the drawn model is."""
    text = place.read_text()
    found = re.search(rf">(\d+) nodes for {count:,} parameters<", text)
    nodes = int(found[1]) if found else -1
    size = len(text.encode())
    good = 0 < nodes <= MOST_NODES and size <= MOST_SVG
    print(
        f"drawn: {nodes} nodes, {size / 1000:.0f} kB"
        f" (aim {MOST_NODES} nodes, {MOST_SVG // 1000} kB, {verdict(good)})",
        flush=True,
    )


def bench_page(folder: Path, repeat: int) -> None:
    """The page of 100,000 parameters that fold, and of as many of which no two are alike."""
    for what, names in (("alike", _alike()), ("all different", _different())):
        page = folder / f"{what[:3]}.html"
        _draw_page(names, page)
        size = page.stat().st_size
        print(
            f"html of {len(names):,} parameters, {what}: {size / 1e6:.2f} MB"
            f" (aim {MOST_HTML / 1e6:g} MB, {verdict(size <= MOST_HTML)})",
            flush=True,
        )
        _bench_paint(page, what, repeat)


def _alike() -> dict[str, tuple[int, ...]]:
    return {
        f"layers.{i}.experts.{j}.{name}.weight": (4, 4)
        for i in range(50)
        for j in range(1000)
        for name in ("up", "down")
    }


def _different() -> dict[str, tuple[int, ...]]:
    return {f"block_{i % 97}.part_{i}.weight": (i % 977 + 1, i % 53 + 1) for i in range(100_000)}


def _draw_page(shapes: dict[str, tuple[int, ...]], place: Path) -> None:
    from hpx.graph import GraphBuilder, ModuleSpec, TensorSpec
    from hpx.render import render

    builder = GraphBuilder()
    ids: dict[str, int] = {}
    plain = ModuleSpec("")

    def module(path: str) -> int:
        if path not in ids:
            parent, _, name = path.rpartition(".")
            ids[path] = builder.module(module(parent) if path else -1, name, plain)
        return ids[path]

    module("")
    for path, shape in shapes.items():
        parent, _, name = path.rpartition(".")
        builder.tensor("parameter", module(parent), name, TensorSpec(shape, "bfloat16"))
    render(builder.finish(source="bench"), place)


def _bench_paint(page: Path, what: str, repeat: int) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.browser.driver import Browser, find_browser, first_paint

    if find_browser() is None:
        print("first paint: not measured, there is no Chromium")
        return
    with Browser() as browser:
        first_paint(browser, page)  # the first page of a browser waits for its processes
        found = statistics.median(first_paint(browser, page) for _ in range(repeat))
    print(
        f"first paint of 100,000 parameters, {what}: {found:.2f} s"
        f" (aim {FIRST_PAINT:g} s, {verdict(found < FIRST_PAINT)})",
        flush=True,
    )


def verdict(good: bool) -> str:
    """Whether an aim is reached, as a word."""
    return "reached" if good else "missed"


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    repeat: int = parser.parse_args().repeat
    with tempfile.TemporaryDirectory() as folder:
        bench_formats(Path(folder), repeat)
        bench_page(Path(folder), repeat)


if __name__ == "__main__":
    main()
