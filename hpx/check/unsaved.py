"""Tensors that no state dict has: nobody fills them after a build on the meta device."""

from __future__ import annotations

from collections.abc import Iterator

from hpx.check.subject import Level, Subject, Told
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import TensorNode

__all__ = ["lost_buffers", "plain_tensors"]

_RECOMPUTE = "recompute them after loading: hpx.to_empty(model, recompute=...)"


def lost_buffers(subject: Subject) -> Iterator[Told]:
    """Non-persistent buffers on the meta device: no checkpoint fills them, so a function must.

    Of a model that hpx built itself from a ``config.json`` this is a remark: how the model is built
    for training is not known.
    """
    graph = subject.graph
    for node in graph.buffers():
        if not node.spec.persistent and node.spec.device == "meta":
            yield Told(
                _level(graph),
                node.id,
                "non-persistent buffers on the meta device hold nothing: no state dict has them",
                _RECOMPUTE,
            )


def plain_tensors(subject: Subject) -> Iterator[Told]:
    """Tensors that are plain attributes: ``.to()`` does not move them, and nobody cuts them."""
    graph = subject.graph
    for node in graph.walk():
        if not isinstance(node, TensorNode) or node.kind != "tensor":
            continue
        if node.spec.device == "meta":
            yield Told(
                _level(graph),
                node.id,
                "plain tensor attributes on the meta device hold nothing, and nobody fills them",
                "register them as buffers, and recompute them after loading",
            )
        else:
            yield Told(
                "info",
                node.id,
                "plain tensor attributes stay whole on every rank; .to() does not move them, and no"
                " state dict has them",
                "register them as buffers",
            )


def _level(graph: ModuleGraph) -> Level:
    return "info" if graph.source.startswith("config:") else "warning"
