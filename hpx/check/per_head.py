"""What stands beside cut heads and counts them too: norms over all heads, vectors, integers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from hpx.check.findings import Finding
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.heads import KV_COUNTS, PROTECTED, Q_COUNTS, Attention

__all__ = ["PerHead", "is_norm", "per_head_tensors", "uncounted_integers", "wide_norms"]

_Q_OR_K: Final = re.compile(r"(^|_)(q|k|query|key)(_|$)")
_NO_COUNT: Final = re.compile(
    r"dim|size|rank|width|idx|index|layer|id$|groups|len|max|window|bits|block|scale|step"
)
_OTHER_NORMS: Final = ("batchnorm", "groupnorm", "instancenorm")


class PerHead(NamedTuple):
    """A tensor that every rank holds whole, of which one dim is as long as there are heads."""

    node: int
    name: str
    heads: int
    dim: int


def is_norm(graph: ModuleGraph, node: TensorNode) -> bool:
    """Whether a tensor belongs to a norm over its last dim (LayerNorm, RMSNorm and their kin)."""
    owner = graph.module(node.parent)
    name = (owner.spec.short_cls or owner.name).lower()
    return "norm" in name and not any(other in name for other in _OTHER_NORMS)


def wide_norms(graph: ModuleGraph, attention: Attention) -> Iterator[Finding]:
    """Norms of q or k over all heads: on a rank's heads alone they would see another mean."""
    cut = {p.width: p for p in attention.projections if p.cut}
    for node in _beside(graph, attention):
        owner = graph.module(node.parent)
        if (
            node.name == "weight"
            and len(node.shape) == 1
            and node.shape[0] in cut
            and node.shape[0] != attention.head_dim
            and is_norm(graph, node)
            and _Q_OR_K.search(owner.name)
        ):
            projection = cut[node.shape[0]]
            yield Finding(
                node.id,
                f"it normalises over all heads, and {projection.name} is cut on heads",
                f"its {node.shape[0]} values are the whole width of {projection.name}, of which"
                " a rank has a part",
                "keep q, k, v and o of this module whole (replicate), or use tp=1",
            )


def per_head_tensors(graph: ModuleGraph, attention: Attention) -> Iterator[PerHead]:
    """Sinks, slopes, gates, biases of positions and norms with one value or row a head."""
    counts = [
        heads
        for heads, is_cut in (
            (attention.num_heads, attention.q_is_cut),
            (attention.num_kv_heads, attention.kv_is_cut),
        )
        if heads is not None and heads > 1 and is_cut
    ]
    for node in _beside(graph, attention):
        whole = node.layout is None or not node.layout.shards
        # A norm of one dim is over the dims of one head, however many heads there are.
        if whole and not (len(node.shape) == 1 and is_norm(graph, node)):
            for heads in counts:
                dim = _dim_of(graph, node, heads)
                if dim is not None:
                    owner = graph.module(node.parent)
                    yield PerHead(node.id, f"{owner.name}.{node.name}", heads, dim)
                    break


def _dim_of(graph: ModuleGraph, node: TensorNode, heads: int) -> int | None:
    """The dim that counts heads: rows, or of a table of positions (Swin, T5) the columns."""
    if not node.shape:
        return None
    if node.shape[0] == heads:
        return 0
    owner = graph.module(node.parent)
    table = "Embedding" in owner.spec.cls or node.name.endswith("table")
    return 1 if table and node.shape[1:] == (heads,) else None


def _beside(graph: ModuleGraph, attention: Attention) -> Iterator[TensorNode]:
    """The tensors of the attention module and of its children, projections aside."""
    projections = {p.weight for p in attention.projections}
    for child in graph.children(attention.owner):
        for node in graph.children(child.id) if isinstance(child, ModuleNode) else [child]:
            if isinstance(node, TensorNode) and node.id not in projections:
                yield node


def uncounted_integers(graph: ModuleGraph, attention: Attention) -> Iterator[tuple[int, str, int]]:
    """(module, name, value) of integers with an unknown name that are as large as the head count.

    Nothing says that they count heads; they are told so that a person can.
    """
    known = {*Q_COUNTS, *KV_COUNTS, *PROTECTED}
    numbers = {
        heads
        for heads, is_cut in (
            (attention.num_heads, attention.q_is_cut),
            (attention.num_kv_heads, attention.kv_is_cut),
        )
        if is_cut and heads is not None and heads > 2
    }
    for node in [graph.nodes[attention.owner], *graph.children(attention.owner)]:
        if isinstance(node, ModuleNode):
            for name, value in node.spec.attributes:
                is_known = name in known or _NO_COUNT.search(name.lower())
                if value in numbers and not is_known and f"attributes.{name}" not in node.props:
                    yield node.id, name, value
