"""The first module of a step at which the sharded model and the unsharded one part.

Forward, it is the first call whose output differs though its inputs do not. Backward, it is the
innermost call whose output gradient is right, and that of an input or of its own parameters is not.

What a rank holds inside a region is a part. It is compared where it can be put together: side by
side on the dim in which it is smaller, or as a sum. What fits in neither way is not judged. Where
ranks share a sequence that they do not divide, the last ones have some positions too many.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import TensorNode
from hpx.numeric.measure import distance
from hpx.numeric.recording import Call, Spot
from hpx.projections import output_dim

__all__ = ["Located", "Regions", "locate"]

Verdict: TypeAlias = Literal["same", "differs", "unknown"]
Parts: TypeAlias = Sequence[Mapping[Spot, Tensor]]

_WHOLE: Final = ("rowwise", "embedding", "lm_head")
_POSITIONS: Final = 1
_SMALL: Final = 1e-6
"""Of the largest gradient: smaller ones are measured against it, as they are rounding in part."""


@dataclass(frozen=True)
class Located:
    """Where two models part.

    Attributes:
        direction: ``forward`` or ``backward``.
        module: The path of the module.
        what: What of it differs, for people.
        by: By how much, of the largest value; 0 where parameters alone tell.
    """

    direction: Literal["forward", "backward"]
    module: str
    what: str
    by: float


class Regions:
    """Which modules of a graph hold parts of activations."""

    def __init__(self, graph: ModuleGraph) -> None:
        self.boundary: dict[str, str] = {}
        self.columns: set[str] = set()
        self.streams = False
        """Whether ranks share the sequence, padded so that they can."""
        for node in graph.modules():
            role = node.props.get("boundary")
            if isinstance(role, str):
                self.boundary[graph.path(node.id)] = role
                self.streams |= role == "stream"
        for tensor in graph.parameters():
            if tensor.name == "weight" and _is_plain_column(graph, tensor):
                self.columns.add(graph.path(tensor.parent))

    def inside(self, path: str) -> bool:
        """Whether the module stands inside a region."""
        return self.around(path) is not None

    def around(self, path: str) -> str | None:
        """The outermost region that the module stands in."""
        parts = path.split(".")
        above = (".".join(parts[:length]) for length in range(1, len(parts)))
        return next((one for one in above if one in self.boundary), None)

    def shows(self, path: str) -> bool:
        """Whether what leaves the module is whole, or cut in a way that its shape shows."""
        known = self.boundary.get(path) in _WHOLE or path in self.columns
        return known or not self.inside(path)


def _is_plain_column(graph: ModuleGraph, weight: TensorNode) -> bool:
    """Whether a layer's outputs are cut, one rank's beside the next one's."""
    if weight.layout is None or weight.lineage is not None or len(weight.shape) != 2:
        return False
    if weight.order is not None:  # packed: its rows are in another order
        return False
    return weight.layout.dim("tp") == output_dim(graph, weight)


def locate(
    found: Parts,
    expected: Mapping[Spot, Tensor],
    regions: Regions,
    wrong_gradients: Collection[str],
    tolerance: float,
) -> Located | None:
    """The first module that differs; None if none can be told.

    Args:
        found: What the ranks of one tp group recorded.
        expected: What was recorded of the unsharded model.
        regions: What holds parts.
        wrong_gradients: Names of parameters whose gradient differs.
        tolerance: The limit of ``max|a-b| / max|b|``.
    """
    judge = _Judge(found, expected, regions, tolerance)
    return _forward(judge) or _backward(judge, wrong_gradients)


class _Judge:
    """Compares what was recorded, each tensor once."""

    def __init__(
        self,
        found: Parts,
        expected: Mapping[Spot, Tensor],
        regions: Regions,
        tolerance: float,
    ) -> None:
        self.expected = expected
        self.found = found
        self.regions = regions
        self.tolerance = tolerance
        self.by: dict[Spot, float] = {}
        sizes = [float(x.abs().max()) for s, x in expected.items() if _is_gradient(s) and x.numel()]
        self.floor = _SMALL * max(sizes, default=0.0)
        self.verdicts = {spot: self._verdict(spot) for spot in expected}
        self.of_call: dict[Call, list[Spot]] = {}
        for spot in expected:
            self.of_call.setdefault(spot.call, []).append(spot)

    def spots(self, call: Call, value: str) -> list[Spot]:
        """What was recorded of one kind at a call."""
        return [spot for spot in self.of_call[call] if spot.value == value]

    def any(self, verdict: Verdict, spots: Sequence[Spot]) -> bool:
        """Whether one of these was judged so."""
        return any(self.verdicts[spot] == verdict for spot in spots)

    def _verdict(self, spot: Spot) -> Verdict:
        parts = [one[spot] for one in self.found if spot in one]
        if len(parts) < len(self.found):
            return "unknown"
        expected = self.expected[spot]
        path = spot.call.module
        inside = self.regions.inside(path)
        if spot.value.startswith("output"):
            inside = not self.regions.shows(path)
        scale = float(expected.abs().max()) if expected.numel() else 0.0
        if _is_gradient(spot):
            scale = max(scale, self.floor)
        ways = _ways(parts, expected, inside=inside)
        if self.regions.streams:
            ways += _padded(parts, expected)
        if not path and spot.value == "output":  # a person reads it: it has to be whole
            ways = [way for way in ways if way[0] is parts[0]]
        far = min((max(distance(x, expected, scale) for x in way) for way in ways), default=inf)
        self.by[spot] = far
        if far <= self.tolerance:
            return "same"
        return "unknown" if inside else "differs"


def _is_gradient(spot: Spot) -> bool:
    return spot.value.endswith("gradient")


def _ways(parts: Sequence[Tensor], expected: Tensor, *, inside: bool) -> list[list[Tensor]]:
    """In which ways what the ranks hold may be the whole."""
    shape = expected.shape
    if all(part.shape == shape for part in parts):
        return [list(parts), *([[torch.stack(list(parts)).sum(0)]] if inside else [])]
    if any(part.dim() != len(shape) for part in parts):
        return []
    dims = [d for d in range(len(shape)) if any(part.shape[d] != shape[d] for part in parts)]
    if len(dims) != 1 or sum(part.shape[dims[0]] for part in parts) != shape[dims[0]]:
        return []
    return [[torch.cat(list(parts), dim=dims[0])]]


def _padded(parts: Sequence[Tensor], expected: Tensor) -> list[list[Tensor]]:
    """The positions of all ranks one after the other, without those that fill up the last ones."""
    shape = expected.shape
    if len(shape) <= _POSITIONS or not shape[_POSITIONS] % len(parts):
        return []
    own = -(-shape[_POSITIONS] // len(parts))
    of_rank = (*shape[:_POSITIONS], own, *shape[_POSITIONS + 1 :])
    if any(part.shape != of_rank for part in parts):
        return []
    return [[torch.cat(list(parts), _POSITIONS).narrow(_POSITIONS, 0, shape[_POSITIONS])]]


def _forward(judge: _Judge) -> Located | None:
    """The first call in order whose output differs, and not its inputs."""
    first: Located | None = None
    for spot in judge.expected:
        if spot.value != "output" or judge.verdicts[spot] != "differs":
            continue
        module, inputs = spot.call.module, judge.spots(spot.call, "input")
        what = f"output {spot.name}" if spot.name else "its output"
        region = judge.regions.around(module)
        if region is not None and judge.any("unknown", inputs):
            # What it is given may be wrong already: somewhere in the region, then.
            what = f"what {module.removeprefix(f'{region}.')} makes of its parts"
            module = region
        located = Located("forward", module, what, judge.by[spot])
        if not judge.any("differs", inputs):
            return located
        first = first or located
    return first


def _backward(judge: _Judge, wrong: Collection[str]) -> Located | None:
    """The innermost call, in backward order, that gets a right gradient and gives a wrong one."""
    order = [spot.call for spot in judge.expected if spot.value == "output gradient"]
    sure: dict[str, Located] = {}
    perhaps: dict[str, Located] = {}
    for call in dict.fromkeys(order):
        outgoing = judge.spots(call, "output gradient")
        if judge.any("differs", outgoing):
            continue
        of = sure if judge.any("same", outgoing) else perhaps
        for spot in judge.spots(call, "input gradient"):
            if judge.verdicts[spot] == "differs":
                what = f"the gradient of its input {spot.name}"
                here = Located("backward", call.module, what, judge.by[spot])
                of.setdefault(call.module, here)
        own = sorted(name for name in wrong if name.rpartition(".")[0] == call.module)
        if own:
            names = ", ".join(name.rpartition(".")[2] for name in own)
            of.setdefault(
                call.module, Located("backward", call.module, f"the gradient of its {names}", 0.0)
            )
    for candidates in (sure, perhaps):
        for path, located in candidates.items():
            if not any(
                other.startswith(f"{path}." if path else "")
                for other in candidates
                if other != path
            ):
                return located
    return None
