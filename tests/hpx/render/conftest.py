"""Small graphs with layouts, made from names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import pytest

from hpx.graph import GraphBuilder, ModuleGraph, ModuleSpec, TensorSpec
from hpx.graph.edit import set_key
from hpx.layout import Layout


class TreeOf(Protocol):
    """Makes a graph from the names and shapes of its parameters."""

    def __call__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        layouts: Mapping[str, str] = ...,
        ties: Mapping[str, str] = ...,
        classes: Mapping[str, str] = ...,
        cls: str = ...,
    ) -> ModuleGraph: ...


def build(
    shapes: Mapping[str, tuple[int, ...]],
    *,
    layouts: Mapping[str, str] | None = None,
    ties: Mapping[str, str] | None = None,
    classes: Mapping[str, str] | None = None,
    cls: str = "Layer",
) -> ModuleGraph:
    builder = GraphBuilder()
    ids: dict[str, int] = {}

    def module(path: str) -> int:
        if path not in ids:
            parent, _, name = path.rpartition(".")
            above = module(parent) if path else -1
            ids[path] = builder.module(above, name, ModuleSpec((classes or {}).get(path, cls)))
        return ids[path]

    module("")
    for path, shape in shapes.items():
        parent, _, name = path.rpartition(".")
        ids[path] = builder.tensor("parameter", module(parent), name, TensorSpec(shape, "bfloat16"))
    for path, first in (ties or {}).items():
        parent, _, name = path.rpartition(".")
        builder.link(module(parent), name, ids[first])
    graph = builder.finish(source="test")
    for path, text in (layouts or {}).items():
        set_key(graph, [ids[path]], "layout", Layout.parse(text))
    return graph


@pytest.fixture
def tree() -> TreeOf:
    return build


@pytest.fixture(scope="session")
def experts() -> ModuleGraph:
    """58 layers of 256 experts on tp, of which expert 137 of layer 30 is whole."""
    shapes = {f"layers.{i}.experts.{j}.w.weight": (8, 4) for i in range(58) for j in range(256)}
    layouts = dict.fromkeys(shapes, "tp:S(0)")
    layouts["layers.30.experts.137.w.weight"] = "R"
    return build({"embed.weight": (16, 4), **shapes}, layouts={"embed.weight": "R", **layouts})
