from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from hpx.graph import GraphBuilder, ModuleGraph, ModuleSpec, TensorSpec
from hpx.graph.nodes import TensorKind

GraphOf = Callable[..., ModuleGraph]


def build(
    names: Sequence[str],
    *,
    buffers: Sequence[str] = (),
    ties: Mapping[str, str] | None = None,
    shared: Mapping[str, str] | None = None,
    wrappers: Mapping[str, str] | None = None,
) -> ModuleGraph:
    """A graph with these parameters.

    ``ties`` and ``shared`` give a further name of a parameter or module; ``wrappers`` gives the
    path of a wrapping module and the name of its child.
    """
    builder = GraphBuilder()
    modules: dict[str, int] = {}
    tensors: dict[str, int] = {}

    def module(path: str) -> int:
        if path not in modules:
            parent, _, name = path.rpartition(".")
            above = -1 if not path else module(parent)
            spec = ModuleSpec("Module", wrapper=(wrappers or {}).get(path))
            modules[path] = builder.module(above, name, spec)
        return modules[path]

    module("")
    for path in [*names, *buffers]:
        parent, _, name = path.rpartition(".")
        kind: TensorKind = "buffer" if path in buffers else "parameter"
        spec = TensorSpec((4, 4), "float32")
        tensors[path] = builder.tensor(kind, module(parent), name, spec)
    for path, target in {**(ties or {}), **(shared or {})}.items():
        parent, _, name = path.rpartition(".")
        node_id = tensors[target] if target in tensors else modules[target]
        builder.link(module(parent), name, node_id)
    return builder.finish()


@pytest.fixture
def graph_of() -> GraphOf:
    return build
