"""What a rank holds of parameters, gradients and optimizer states, with and without FSDP.

For every parameter of which a rank holds n elements of b bytes:

- parameters: n * b;
- gradients: n * b, if it is trained;
- optimizer (AdamW as torch has it): two moments of the parameter's dtype, 2 * n * b, if trained;
- mixed precision (a float32 copy and float32 moments): 12 * n instead, if trained.

FSDP cuts what tp and ep left along dim 0 over the data axis of the parameter's own mesh: ``dp`` or
``dp_shard`` of the dense one, ``edp`` or ``edp_shard`` of the expert one. Activations, and what a
step gathers for a while, are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import TensorNode, item_size
from hpx.layout import REPLICATED, chunk_range, local_shape
from hpx.mesh import MeshSpec, MeshView

__all__ = ["FORMULAS", "Held", "Memory", "local_bytes", "memory"]

FORMULAS: Mapping[str, str] = {
    "parameters": "n * b",
    "gradients": "n * b, if trained",
    "optimizer": "AdamW: 2 * n * b, if trained",
    "mixed_precision": "AdamW with a float32 copy: 12 * n instead of 2 * n * b, if trained",
}
"""How the numbers are made of n elements of b bytes."""
_DATA_AXES = ("dp", "dp_shard", "edp", "edp_shard")


@dataclass(frozen=True)
class Held:
    """Bytes on one rank."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    mixed_precision: int = 0

    @property
    def total(self) -> int:
        """Parameters, gradients and AdamW."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def mixed_total(self) -> int:
        """Parameters, gradients, and AdamW with a float32 copy."""
        return self.parameters + self.gradients + self.mixed_precision

    def to_json(self) -> dict[str, int]:
        """The bytes by kind, and both totals."""
        return {
            "parameters": self.parameters,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "mixed_precision": self.mixed_precision,
            "total": self.total,
            "mixed_total": self.mixed_total,
        }


@dataclass(frozen=True)
class Memory:
    """What ranks hold.

    Every piece is largest at the first position of its axes and smallest at the last, so the first
    rank holds the most and the last one the least.

    Attributes:
        most: On the first rank, without FSDP.
        least: On the last rank, without FSDP.
        fsdp_most: On the first rank, with FSDP; None where there is no data axis.
        fsdp_least: On the last rank, with FSDP.
        data: Size of the data axis that FSDP cuts on, by mesh.
    """

    most: Held
    least: Held
    fsdp_most: Held | None
    fsdp_least: Held | None
    data: Mapping[str, int]

    @property
    def imbalance(self) -> float:
        """How much more than the least loaded rank the most loaded one holds: 0.25 is a quarter."""
        return _over(self.most, self.least)

    def to_json(self) -> dict[str, object]:
        """Bytes of the most and the least loaded rank, and how they are counted."""
        fsdp = None
        if self.fsdp_most is not None and self.fsdp_least is not None:
            fsdp = {
                "data": dict(self.data),
                "most": self.fsdp_most.to_json(),
                "least": self.fsdp_least.to_json(),
                "imbalance": _over(self.fsdp_most, self.fsdp_least),
            }
        return {
            "most": self.most.to_json(),
            "least": self.least.to_json(),
            "imbalance": self.imbalance,
            "fsdp": fsdp,
            "formulas": dict(FORMULAS),
        }


def _over(most: Held, least: Held) -> float:
    return most.parameters / least.parameters - 1 if least.parameters else 0.0


def memory(graph: ModuleGraph, mesh: MeshSpec) -> Memory:
    """What the most and the least loaded rank hold."""
    views = filter(None, (mesh.dense, mesh.expert))
    data: dict[str, int] = {view.name: data_size(view) for view in views}
    count = _Count(graph, mesh)
    is_cut = any(size > 1 for size in data.values())
    return Memory(
        count.held(last=False, fsdp=False),
        count.held(last=True, fsdp=False),
        count.held(last=False, fsdp=True) if is_cut else None,
        count.held(last=True, fsdp=True) if is_cut else None,
        data,
    )


def data_size(view: MeshView) -> int:
    """The size of the axis of a view over which FSDP cuts."""
    return math.prod(size for axis, size in view.axes if axis in _DATA_AXES)


def local_bytes(node: TensorNode, mesh: MeshSpec) -> int:
    """What the first rank holds of a parameter, in bytes, without FSDP."""
    return _elements(node, mesh, last=False, fsdp=False) * item_size(node.spec.dtype)


class _Count:
    """Equal parameters, each counted once."""

    def __init__(self, graph: ModuleGraph, mesh: MeshSpec) -> None:
        self.mesh = mesh
        self.groups: dict[tuple[object, ...], tuple[TensorNode, int]] = {}
        for node in graph.parameters():
            key = (node.shape, node.layout, node.spec.dtype, node.spec.requires_grad)
            known = self.groups.get(key)
            self.groups[key] = (node, 1) if known is None else (known[0], known[1] + 1)

    def held(self, *, last: bool, fsdp: bool) -> Held:
        parameters = trained = elements = 0
        for node, times in self.groups.values():
            number = times * _elements(node, self.mesh, last=last, fsdp=fsdp)
            size = number * item_size(node.spec.dtype)
            parameters += size
            if node.spec.requires_grad:
                trained += size
                elements += number
        return Held(parameters, trained, 2 * trained, 12 * elements)


def _elements(node: TensorNode, mesh: MeshSpec, *, last: bool, fsdp: bool) -> int:
    layout = node.layout or REPLICATED
    view = mesh.view_of(layout)
    at = {axis: size - 1 if last else 0 for axis, size in view.axes}
    shape = local_shape(node.shape, layout, view.sizes, at)
    if fsdp and shape:
        parts = data_size(view)
        start, end = chunk_range(shape[0], parts, parts - 1 if last else 0)
        shape = (end - start, *shape[1:])
    return math.prod(shape)
