"""Runs on small models, fresh and as they come back from a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from hpx.graph import GraphBuilder, ModuleGraph, ModuleSpec, TensorSpec
from hpx.plan import ShardingPlan
from hpx.run import Run, run

PLAN = """\
version: 1
mesh: dp=2,tp=2,ep=4
params:
  "model.embed_tokens.weight": {tp: S(0)}
  "model.layers.*.self_attn.{q,k,v}_proj.weight":
    layout: {tp: S(0)}
    reason: whole heads
  "model.layers.*.self_attn.o_proj.weight": {tp: S(1)}
  "model.layers.*.mlp.gate.weight": replicate
  "model.layers.*.mlp.experts.*": {ep: S(0)}
  "model.layers.*.{input,post_attention}_layernorm.weight": replicate
  "model.norm.weight": replicate
  "lm_head.weight": {tp: S(0)}
"""


class GraphOf(Protocol):
    """Makes a graph of parameters by name; everything else is optional."""

    def __call__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        buffers: Mapping[str, tuple[int, ...]] = ...,
        classes: Mapping[str, str] = ...,
        attributes: Mapping[str, Mapping[str, int]] = ...,
        ties: Mapping[str, str] = ...,
        wrappers: Mapping[str, str] = ...,
    ) -> ModuleGraph: ...


RunOf = Callable[..., Run]


def build(
    shapes: Mapping[str, tuple[int, ...]],
    *,
    buffers: Mapping[str, tuple[int, ...]] | None = None,
    classes: Mapping[str, str] | None = None,
    attributes: Mapping[str, Mapping[str, int]] | None = None,
    ties: Mapping[str, str] | None = None,
    wrappers: Mapping[str, str] | None = None,
) -> ModuleGraph:
    builder = GraphBuilder()
    modules: dict[str, int] = {}
    tensors: dict[str, int] = {}
    all_shapes = {**shapes, **(buffers or {})}

    def module(path: str) -> int:
        if path not in modules:
            parent, _, name = path.rpartition(".")
            above = -1 if not path else module(parent)
            spec = ModuleSpec(
                (classes or {}).get(path, "Linear"),
                attributes=tuple((attributes or {}).get(path, {}).items()),
                wrapper=(wrappers or {}).get(path),
            )
            modules[path] = builder.module(above, name, spec)
        return modules[path]

    module("")
    for path, shape in all_shapes.items():
        parent, _, name = path.rpartition(".")
        kept = path in shapes
        spec = TensorSpec(shape, "float32", requires_grad=kept)
        owner = module(parent)
        tensors[path] = builder.tensor("parameter" if kept else "buffer", owner, name, spec)
    for path, target in (ties or {}).items():
        parent, _, name = path.rpartition(".")
        builder.link(module(parent), name, tensors[target])
    return builder.finish(source="small")


def loaded_from(run_: Run, folder: Path) -> Run:
    return Run.load(run_.save(folder / "run.json"))


@pytest.fixture
def graph_of() -> GraphOf:
    return build


@pytest.fixture(scope="session")
def moe_graph() -> ModuleGraph:
    """Two layers of 8 experts, from the bundled model."""
    from hpx import bundled

    return ModuleGraph.from_module(bundled.tiny_moe(), source="tiny_moe")


@pytest.fixture(scope="session")
def moe_run(moe_graph: ModuleGraph) -> Run:
    """The bundled mixture of experts under a plan that comes from ``plan.yaml``."""
    return run(moe_graph, ShardingPlan.from_text(PLAN, "plan.yaml"), "dp=2,tp=2,ep=4")


@pytest.fixture(scope="session", params=["fresh", "loaded"])
def moe(
    request: pytest.FixtureRequest, moe_run: Run, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    """The same run twice: as it was made, and as it was saved and read."""
    if request.param == "fresh":
        return moe_run
    return loaded_from(moe_run, tmp_path_factory.mktemp("runs"))


@pytest.fixture(params=["fresh", "loaded"])
def run_of(request: pytest.FixtureRequest, tmp_path: Path) -> RunOf:
    """Runs a small graph; the test sees the run as it was made, and as it was saved and read."""

    def made(
        graph: ModuleGraph,
        rules: Mapping[str, object],
        mesh: str = "tp=4",
        pipeline: str | Sequence[str] = "@default",
        **plan: object,
    ) -> Run:
        fresh = run(graph, ShardingPlan(rules, **plan), mesh, pipeline)  # type: ignore[arg-type]
        return fresh if request.param == "fresh" else loaded_from(fresh, tmp_path)

    return made
