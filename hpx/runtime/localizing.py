"""What ``localize`` decided, on the real modules: local tensors in the forward, or for good.

A module that cannot compute what it should (a cut parameter without its collectives, experts spread
over ranks without their dispatch) refuses its forward and names the pass that is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torch import nn

from hpx.graph.nodes import TensorNode
from hpx.run import Run
from hpx.runtime import local
from hpx.runtime.journal import Journal
from hpx.runtime.meshes import Meshes
from hpx.runtime.permanent import guard

__all__ = ["localize"]

_UNCALLED: Final = frozenset(
    f"torch.nn.modules.container.{name}"
    for name in ("ModuleList", "ModuleDict", "ParameterList", "ParameterDict")
)
_NEEDS_COLLECTIVES = (
    "it holds {name}, cut on tp ({layout}), and the collectives at its boundary are not installed:"
    " insert-collectives is missing from the pipeline (use '@run')"
)
_NEEDS_LOCALIZE = (
    "it holds {name}, a DTensor ({layout}), and is called with plain tensors, which torch does not"
    " mix: localize is missing from the pipeline"
)
_NEEDS_CUT = (
    "it holds {name}, whole and with its rows in the order of {pieces} ranks: shard-params, which"
    " cuts it, is missing from the pipeline"
)
_NEEDS_DISPATCH = (
    "it holds experts {name}, spread over ep ({layout}), and tokens are not exchanged:"
    " a pass that dispatches them is missing (keep experts whole to compute with them)"
)


def localize(model: nn.Module, run: Run, meshes: Meshes, journal: Journal) -> None:
    """Install what each parameter's ``localized`` says."""
    names: dict[int, list[str]] = {}
    partial: dict[int, list[str]] = {}
    refusals: dict[int, str] = {}
    at_rest: dict[int, str] = {}
    permanent = False
    for node in run.graph.parameters():
        mode = node.props.get("localized")
        if mode is None and node.layout is not None and node.lineage is None:
            values = {"name": run.graph.path(node.id), "layout": str(node.layout)}
            for owner, _ in _places(run, node):
                at_rest.setdefault(owner, _NEEDS_LOCALIZE.format(**values))
        if node.order is not None and node.layout is None:
            values = {"name": run.graph.path(node.id), "pieces": str(node.order.pieces)}
            for owner, _ in _places(run, node):
                refusals.setdefault(owner, _NEEDS_CUT.format(**values))
        if mode not in ("forward", "permanent"):
            continue
        permanent = permanent or mode == "permanent"
        refusal = _refusal(run, node, meshes)
        for owner, name in _places(run, node):
            if refusal is not None:
                refusals.setdefault(owner, refusal)
            # Slots of stacked experts are local tensors whoever asks for them.
            if mode == "forward" and node.lineage is None:
                names.setdefault(owner, []).append(name)
                if node.props.get("reduce"):
                    partial.setdefault(owner, []).append(name)
    if permanent:
        guard(model, run, journal)
    for owner in sorted(names.keys() | refusals.keys() | at_rest.keys()):
        local.install(
            model.get_submodule(run.graph.registered_path(owner)),
            names.get(owner, ()),
            meshes,
            journal,
            not_runnable=refusals.get(owner),
            at_rest=at_rest.get(owner),
            partial=partial.get(owner, ()),
        )


def _places(run: Run, node: TensorNode) -> Iterator[tuple[int, str]]:
    """(module, name) wherever a forward reads the parameter; dotted if it stands in a container."""
    if node.lineage is None:
        yield _reader(run, node.parent, node.name)
        for parent, name in node.more:
            yield _reader(run, parent, name)
        return
    # A container of experts need not have a forward: the module around it reads the slots.
    container = run.graph.module(node.parent)
    for parent, _ in ((container.parent, container.name), *container.more):
        yield parent, node.name


def _reader(run: Run, owner: int, name: str) -> tuple[int, str]:
    """Nobody calls a list or a dict of parameters: the module around it reads them."""
    module = run.graph.module(owner)
    while module.spec.cls in _UNCALLED and module.parent >= 0:
        name = f"{module.name}.{name}"
        module = run.graph.module(module.parent)
    return module.id, name


def _refusal(run: Run, node: TensorNode, meshes: Meshes) -> str | None:
    layout = node.layout
    if layout is None or not layout.shards:
        return None
    values = {"name": run.graph.path(node.id), "layout": str(layout)}
    if layout.dim("ep") is not None and meshes.spec.size("ep", 1) > 1:
        return _NEEDS_DISPATCH.format(**values)
    if "collectives" not in run.facts and meshes.spec.size("tp", 1) > 1:
        return _NEEDS_COLLECTIVES.format(**values)
    return None
