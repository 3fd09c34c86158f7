"""How long deriving a plan takes beside importing the model: the 671B one, expert by expert.

python tools/bench/derive.py
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import hpx
import hpx.bundled
from hpx.derive.derive import derive_plan


def best_of(times: int, call: Callable[[], object]) -> float:
    """The shortest of some runs, in seconds, the collector out of the way."""
    found = []
    for _ in range(times):
        gc.collect()
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)


def main() -> None:
    """Print both times and their ratio."""
    model = hpx.bundled.moe_671b()
    mesh = hpx.MeshSpec.parse("dp=32,tp=8,ep=64")
    graph = hpx.ModuleGraph.from_module(model)
    imported = best_of(5, lambda: hpx.ModuleGraph.from_module(model))
    derived = best_of(5, lambda: derive_plan(graph, mesh))
    print(f"import {imported:.3f} s, derive {derived:.3f} s, ratio {derived / imported:.2f}")


if __name__ == "__main__":
    main()
