"""Which whole parameters have a gradient that is partial on every tp rank."""

from __future__ import annotations

from typing import NamedTuple

from hpx.check.subject import Subject
from hpx.ranges import fold_names

__all__ = ["Reduction", "gradient_reductions"]


class Reduction(NamedTuple):
    """Whole parameters of one kind.

    Attributes:
        names: Their names, folded.
        number: How many they are.
        needed: Whether their gradient has to be summed over tp.
    """

    names: tuple[str, ...]
    number: int
    needed: bool

    def __str__(self) -> str:
        return f"needs gradient all-reduce over tp: {'yes' if self.needed else 'no'}"

    def to_json(self) -> dict[str, object]:
        """``{names, count, needed}``."""
        return {"names": list(self.names), "count": self.number, "needed": self.needed}


def gradient_reductions(subject: Subject) -> list[Reduction]:
    """Replicated parameters that are trained, those that need a reduction first.

    A parameter that is whole and read where activations are cut sees a part of the heads or
    channels on every rank, so its gradient is a part too; ``localize`` and the boundaries sum it.
    Nothing is listed where tp is not active, or before ``build-source-info`` has decided.
    """
    if subject.tp == 1:
        return []
    graph = subject.graph
    names: dict[bool, list[str]] = {True: [], False: []}
    for node in graph.parameters():
        axes = node.props.get("reduce")
        if node.layout is None or node.layout.shards or not isinstance(axes, tuple):
            continue
        if node.spec.requires_grad:
            names[("tp" in axes)].append(graph.path(node.id))
    return [
        Reduction(tuple(fold_names(found)), len(found), needed)
        for needed, found in names.items()
        if found
    ]
