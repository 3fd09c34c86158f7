"""What runs past the cut layers of a region, whose gradient would be summed once too often.

Of a region's input every rank has a part of the gradient, and of its whole parameters too, as what
they give is read by cut layers. The ranks sum those parts. Where such a tensor reaches the output
beside the cut layers, as a residual inside the region does, each rank has all of its gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from torch import Tensor

from hpx.prove.blame import Frames
from hpx.prove.steps import Step, shape_of, tensors_of, words

__all__ = ["Passing", "Sum", "passing"]

_SAME: Final = words(
    "view unsafe_view reshape t transpose permute expand clone detach to_copy alias squeeze"
    " unsqueeze slice select"
)
_ONE_PART: Final = words("mul div mm bmm addmm baddbmm neg")


class Sum(NamedTuple):
    """One call of a rowwise layer, by positions among the steps.

    Attributes:
        first: Its first step.
        end: The step after its last.
        bias: Its bias, which is left out of the parts and added to the sum.
        out: What it gave.
    """

    first: int
    end: int
    bias: Tensor | None
    out: tuple[Tensor, ...]


class Passing(NamedTuple):
    """What is wrong, and where."""

    what: str
    frames: Frames = ()


def passing(
    whole: Sequence[Step],
    local: Sequence[Step],
    sources: Mapping[int, str],
    sums: Iterable[Sum],
    result: Sequence[Tensor],
) -> Passing | None:
    """Follow whole tensors through a region; None if none of them passes its cut layers by.

    Args:
        whole: The operations of the unsharded region.
        local: The same ones, with the shapes of one rank.
        sources: What is summed in the backward, by ``id`` of the local tensor, with its name.
        sums: The calls of rowwise layers.
        result: What the region gave on one rank.
    """
    direct: dict[int, frozenset[str]] = {key: frozenset([name]) for key, name in sources.items()}
    cut: set[int] = set()
    summed: set[int] = set()
    calls = sorted(sums)
    for index, (before, after) in enumerate(zip(whole, local, strict=False)):
        while calls and calls[0].end <= index:
            _end(calls.pop(0), cut, summed, direct)
        if before.func is not after.func or len(before.shapes) != len(after.shapes):
            return None
        ins = [id(tensor) for tensor in tensors_of((after.args, dict(after.kwargs)))]
        outs = [id(tensor) for tensor in tensors_of(after.out)]
        if before.shapes != after.shapes or before.given != after.given or cut.intersection(ins):
            if summed.intersection(ins):
                return Passing(
                    "what was summed over tp is read by a cut layer of the same module, and nobody"
                    " sums that gradient",
                    after.frames,
                )
            inside = calls and calls[0].first <= index < calls[0].end
            if inside and not _is_linear(before, after, cut, calls[0].bias):
                return Passing(
                    f"{after.name} is computed of a rank's part of a sum, before it is summed",
                    after.frames,
                )
            cut.update(outs)
            continue
        come = frozenset[str]().union(*(direct.get(key, frozenset()) for key in ins))
        for key in outs:
            direct[key] = come
            if summed.intersection(ins):
                summed.add(key)
    for call in calls:
        _end(call, cut, summed, direct)
    for tensor in result[:1]:
        names = direct.get(id(tensor), frozenset()) if id(tensor) not in cut else frozenset()
        if names:
            listed = ", ".join(sorted(names))
            return Passing(
                f"{listed} reaches its output beside the cut layers: every rank has all of that"
                " gradient, and it is summed over tp"
            )
    return None


def _end(call: Sum, cut: set[int], summed: set[int], direct: dict[int, frozenset[str]]) -> None:
    """What a rowwise layer gives is summed: whole, and of nothing that came in directly."""
    for tensor in call.out:
        cut.discard(id(tensor))
        summed.add(id(tensor))
        direct.pop(id(tensor), None)


def _is_linear(before: Step, after: Step, cut: set[int], bias: Tensor | None) -> bool:
    """Whether an operation inside a rowwise layer may be done to parts, and the parts summed."""
    tensors = tensors_of((after.args, dict(after.kwargs)))
    same = before.shapes == after.shapes
    parts = [tensor for tensor in tensors if id(tensor) in cut and same]
    if not parts or after.name in _SAME:
        return True
    rest = [tensor for tensor in tensors if id(tensor) not in cut and tensor is not bias]
    if after.name in ("add", "sub"):
        numbers = [x for x in after.args if isinstance(x, int | float)]
        return not rest and not numbers
    return after.name in _ONE_PART and len(parts) == 1 and all(shape_of(t) for t in parts)
