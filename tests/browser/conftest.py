"""Pages in a real browser. Without one these tests are skipped, and the end of the run says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hpx.graph.from_names import NamedTensor, graph_from_names
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import row_major
from hpx.plan import ShardingPlan
from hpx.render import Options
from hpx.render.page import page
from hpx.run import Run, run
from tests.browser.driver import Browser, Page, find_browser

_MISSING = "there is no Chromium (as root: apt-get install chromium, or make browser)"

Open = Callable[..., Page]

PLAN = """\
version: 1
mesh: dp=2,tp=2,ep=4
default: replicate
params:
  "embed.weight": {tp: S(0)}
  "layers.*.attn.{q,k,v}.weight":
    layout: {tp: S(0)}
    reason: whole heads
  "layers.*.attn.o.weight": {tp: S(1)}
  "layers.*.attn.*.weight": replicate
  "layers.*.mlp.experts.*": {ep: S(0)}
"""


def pytest_configure(config: pytest.Config) -> None:
    """Say at the end that the browser's tests did not run, where that is so."""
    if find_browser() is None:
        config.pluginmanager.register(_Loud())


class _Loud:
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("THE TESTS IN A BROWSER DID NOT RUN", red=True, bold=True)
        terminalreporter.line(f"{_MISSING}: the page of hpx-viz is not tested")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests."""
    if find_browser() is None:
        pytest.skip(_MISSING)
    with Browser() as started:
        yield started


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Writes the page of a run or graph and opens it in a window of its own."""
    opened: list[Page] = []

    def call(
        target: Run | ModuleGraph, *, width: int = 1400, dark: bool = False, **options: Any
    ) -> Page:
        place = tmp_path / f"page{len(opened)}.html"
        place.write_bytes(page(target, Options(**options)))
        opened.append(browser.open(place, width=width, dark=dark))
        return opened[-1]

    yield call
    for window in opened:
        window.close()


def graph_of(
    shapes: Mapping[str, tuple[int, ...]],
    *,
    ties: Mapping[str, str] | None = None,
    dtypes: Mapping[str, str] | None = None,
) -> ModuleGraph:
    """A checkpoint of these names and shapes."""
    tensors = [
        NamedTensor(name, shape, (dtypes or {}).get(name, "bfloat16"), row_major(shape))
        for name, shape in shapes.items()
    ]
    for name, first in (ties or {}).items():
        shape = shapes[first]
        tensors.append(NamedTensor(name, shape, "bfloat16", row_major(shape), same_as=first))
    return graph_from_names(tensors, source="small.pt")


def moe(layers: int = 3, experts: int = 4) -> ModuleGraph:
    """A small mixture of experts."""
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (32, 8)}
    for layer in range(layers):
        for name in ("q", "k", "v", "o", "s"):
            shapes[f"layers.{layer}.attn.{name}.weight"] = (8, 8)
        for expert in range(experts):
            for name in ("up", "down"):
                shapes[f"layers.{layer}.mlp.experts.{expert}.{name}.weight"] = (16, 8)
    shapes["norm.weight"] = (8,)
    return graph_of(shapes)


@pytest.fixture(scope="session")
def moe_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same, planned on a mesh of tp and ep."""
    plan = tmp_path_factory.mktemp("plan") / "plan.yaml"
    plan.write_text(PLAN)
    return run(moe(), ShardingPlan.from_file(plan), "dp=2,tp=2,ep=4")


@pytest.fixture(scope="session")
def odd_one() -> ModuleGraph:
    """A checkpoint in which one expert of one layer has another dtype."""
    shapes = {
        f"layers.{layer}.experts.{expert}.{name}.weight": (4, 4)
        for layer in range(6)
        for expert in range(8)
        for name in ("up", "down")
    }
    return graph_of(shapes, dtypes={"layers.3.experts.5.up.weight": "float32"})
