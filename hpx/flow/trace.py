"""Trace a model: the ways there are, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import nn

from hpx.experts import expert_containers
from hpx.flow.feeds import Feeds
from hpx.flow.tracing import Points, short, traced_by_export, traced_symbolically
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode
from hpx.plan import ShardingPlan

__all__ = ["trace_feeds"]


def trace_feeds(model: nn.Module, graph: ModuleGraph, inputs: object = None) -> Feeds:
    """Trace a model: by ``torch.export``, without its experts if need be, else by ``torch.fx``.

    Args:
        model: The model; stays as it is.
        graph: Its graph, as `ModuleGraph.from_module` gives it.
        inputs: Example inputs: a tuple, a mapping by name or one tensor; None for what the forward
            seems to take.

    Returns:
        The edges, or why there are none; never raises for a model that cannot be traced.
    """
    containers = _experts(graph)
    tries: list[tuple[Literal["export", "fx"], str, Callable[[], Points]]] = [
        ("export", "", lambda: traced_by_export(model, inputs)),
    ]
    if containers:
        # Which expert gets a token depends on data.
        why = "inside routed experts nothing is traced"
        skip = _passing_over(containers)
        tries.append(("export", why, lambda: traced_by_export(model, inputs, skip)))
    tries.append(("fx", "", lambda: traced_symbolically(model)))
    failed: list[str] = []
    for how, why, trace in tries:
        try:
            points = trace()
        except Exception as error:  # noqa: BLE001 - a model's code can raise anything
            failed.append(f"{how}: {short(error)}")
        else:
            return Feeds(tuple(points), how, why)
    return Feeds((), None, "; ".join(dict.fromkeys(failed)))


def _experts(graph: ModuleGraph) -> list[str]:
    """Paths of the modules that are called with tokens for experts."""
    found: dict[str, None] = {}
    for container in expert_containers(graph, ShardingPlan()):
        node = graph.nodes[container.id]
        if isinstance(node, ModuleNode) and node.spec.container is not None and node.parent >= 0:
            node = graph.nodes[node.parent]  # a list is not called: the block around it is
        found.setdefault(graph.registered_path(node.id))
    return list(found)


def _passing_over(paths: list[str]) -> Callable[[nn.Module], None]:
    def change(copied: nn.Module) -> None:
        for path in paths:
            copied.get_submodule(path).__dict__["forward"] = _first_argument

    return change


def _first_argument(*args: Any, **kwargs: Any) -> Any:
    return args[0] if args else next(iter(kwargs.values()))
