"""Say where a plan decides otherwise than the derived one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hpx.derive.derive import as_rules_see_it
from hpx.derive.proved import proved_plan
from hpx.errors import HpxError
from hpx.graph.graph import ModuleGraph
from hpx.layout import REPLICATED, Layout
from hpx.mesh import MeshSpec
from hpx.params import Param
from hpx.plan import ShardingPlan, fold_names, match_parameters

if TYPE_CHECKING:
    from torch import nn

__all__ = ["differences"]


def differences(
    graph: ModuleGraph,
    params: Iterable[Param],
    mesh: MeshSpec,
    model: nn.Module | None = None,
    inputs: object = None,
) -> Iterator[str]:
    """One line for each group of parameters on which a plan and the derived one differ.

    Args:
        graph: The model.
        params: What the plan decides.
        mesh: The mesh.
        model: The module behind the graph, if there is one.
        inputs: Its example inputs, if it has any.
    """
    try:
        plan = proved_plan(graph, mesh, model, inputs)
        derived = _layouts(as_rules_see_it(graph, mesh)[0], plan, mesh)
    except HpxError:
        return  # what stands against reading the model is told elsewhere
    groups: dict[str, list[str]] = {}
    for param in params:
        layout, reason = derived.get(param.name, (None, ""))
        own, other = _shards(param.layout), _shards(layout)
        if param.name in derived and own != other:
            text = f"the plan says {own}, the derived one {other}: {reason}"
            groups.setdefault(text, []).append(param.name)
    for text, names in groups.items():
        for name in fold_names(names):
            yield f"{name}: {text}"


def _shards(layout: Layout | None) -> Layout:
    return REPLICATED if layout is None else Layout(layout.shards)


def _layouts(
    graph: ModuleGraph, plan: ShardingPlan, mesh: MeshSpec
) -> dict[str, tuple[Layout, str]]:
    result = match_parameters(graph, plan.params)
    found: dict[str, tuple[Layout, str]] = {}
    for node_id in result.winner:
        rule = result.rule(node_id)
        if rule is not None:
            node = graph.tensor(node_id)
            layout = rule.layout.resolve(mesh, len(node.shape))
            found[graph.path(node_id)] = (layout, rule.reason or "")
    return found
