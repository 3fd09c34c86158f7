"""What has to hold after a model was changed and before the ranks vote to keep it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.distributed.tensor import DTensor

from hpx.errors import HpxError
from hpx.graph.nodes import TensorNode
from hpx.runtime.materialize import local_ranges
from hpx.runtime.record import Applied

__all__ = ["verify_model"]


def verify_model(model: nn.Module, applied: Applied) -> None:
    """Check that the model holds what the run says: names, ties, shapes, placements, flags.

    Raises:
        HpxError: It does not.
    """
    graph = applied.run.graph
    for node in graph.parameters():
        names = [
            graph.registered_path(node.parent),
            *(graph.registered_path(p) for p, _ in node.more),
        ]
        keys = [node.name, *(name for _, name in node.more)]
        found = [
            model.get_submodule(owner)._parameters.get(key)
            for owner, key in zip(names, keys, strict=True)
        ]
        first = found[0]
        if first is None or any(other is not first for other in found):
            raise _wrong(
                applied, node, "not every name holds the one parameter", str(graph.paths(node.id))
            )
        _check_parameter(applied, node, first)


def _check_parameter(applied: Applied, node: TensorNode, parameter: nn.Parameter) -> None:
    spec = node.spec
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    permanent = node.props.get("localized") == "permanent"
    expected: dict[str, object] = {
        "dtype": spec.dtype,
        "requires_grad": spec.requires_grad,
        "device": spec.device,
    }
    actual: dict[str, object] = {
        "dtype": str(parameter.dtype).removeprefix("torch."),
        "requires_grad": parameter.requires_grad,
        "device": parameter.device.type,
    }
    if not permanent:
        expected["global shape"] = tuple(node.shape)
        actual["global shape"] = tuple(parameter.shape)
    if node.layout is not None:
        _, placements = applied.meshes.of(node.layout)
        ranges = local_ranges(node, applied.meshes)
        expected["local shape"] = tuple(stop - start for start, stop in ranges)
        actual["local shape"] = tuple(local.shape)
        if not permanent:
            expected["placements"] = tuple(placements)
            actual["placements"] = tuple(getattr(parameter, "placements", ()))
    for what, value in expected.items():
        if actual[what] != value:
            raise _wrong(applied, node, f"its {what} is {actual[what]}", f"the run says {value}")


def _wrong(applied: Applied, node: TensorNode, what: str, why: str) -> HpxError:
    fix = "this is a fault of hpx or of a pass: please report it; the model is as it was before"
    installers = _installers(applied, node)
    if installers:
        fix = f"look at what was installed on its modules: {', '.join(installers)}; {fix}"
    return HpxError(what, where=applied.run.graph.path(node.id), why=why, fix=fix)


def _installers(applied: Applied, node: TensorNode) -> list[str]:
    """The passes that installed something on a module which holds the parameter, and what."""
    owners = {node.parent, *(owner for owner, _ in node.more)}
    found = {
        f"{event.new['function']} by pass {event.pass_}": None
        for event in applied.run.events
        if event.kind == "attach"
        and isinstance(event.new, Mapping)
        and not owners.isdisjoint(event.nodes)
    }
    return list(found)
