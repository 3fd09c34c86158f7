"""What stands beside cut heads and counts them too: norms over all heads, vectors, integers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from hpx.check.findings import Finding
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.heads import AMBIGUOUS_WIDTHS, KV_COUNTS, PROTECTED, Q_COUNTS, WIDTHS, Attention
from hpx.projections import output_dim

__all__ = [
    "PerHead",
    "counts_above",
    "counts_near",
    "is_norm",
    "per_head_modules",
    "per_head_tensors",
    "role_of_norm",
    "uncounted_integers",
    "uncounted_widths",
    "wide_norms",
]

_Q_OR_K: Final = re.compile(r"(^|_)(q|k|query|key)(_|$)")
_NO_COUNT: Final = re.compile(
    r"dim|size|rank|width|idx|index|layer|id$|groups|len|max|window|bits|block|scale|step"
    r"|features|channels|embeddings|^n[fx]$|kernel|padding|dilation|stride"
)
_NO_WIDTH: Final = re.compile(
    r"idx|index|layer|id$|len|max|window|bits|block|scale|step|bucket|position|vocab|rank|group"
)
_OF_HEADS: Final = re.compile(r"(^|_)(q|k|v|kv|qkv|query|key|value|att(n|ention)?)(_|$)")
_WAY_OUT: Final = "keep q, k, v and o of this module whole (replicate), or use tp=1"
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
    for node in _beside(graph, attention):
        owner = graph.module(node.parent)
        role = role_of_norm(owner.name)
        cut = next((p for p in attention.projections if p.cut and p.role == role), None)
        if (
            cut is not None
            and node.name == "weight"
            and node.shape == (cut.width,)
            and cut.width != attention.head_dim
            and is_norm(graph, node)
        ):
            yield Finding(
                node.id,
                f"it normalises over all heads, and {cut.name} is cut on heads",
                f"its {cut.width} values are the whole width of {cut.name}, and a rank has a part",
                _WAY_OUT,
                numbers=(("width", cut.width), ("head dim", attention.head_dim or 0)),
            )


def role_of_norm(name: str) -> str | None:
    """``q`` or ``k`` where the name of a norm says that it normalises queries or keys."""
    found = _Q_OR_K.search(name)
    return found[2][0] if found else None


def per_head_modules(graph: ModuleGraph, attention: Attention) -> Iterator[Finding]:
    """Lists with one module a head: a rank would take the first ones, whichever heads it has."""
    numbers = _cut_counts(attention)
    for child in graph.children(attention.owner):
        for node in [child, *graph.children(child.id)]:
            if isinstance(node, ModuleNode) and len(node.children) in numbers:
                number = len(node.children)
                if all(name.isdigit() for name in node.children):
                    yield Finding(
                        node.id,
                        f"it holds one module for each of {number} heads, and heads are cut",
                        "every rank would take the first of them, whichever heads it has",
                        _WAY_OUT,
                        numbers=(("heads", number),),
                    )


def counts_above(graph: ModuleGraph, attention: Attention) -> Iterator[tuple[int, str, int]]:
    """(module, name, value) of head counts on the modules around the attention module."""
    above = graph.nodes[attention.owner].parent
    while above >= 0:
        module = graph.module(above)
        for name, value in module.spec.attributes:
            if name in (*Q_COUNTS, *KV_COUNTS) and value in _cut_counts(attention):
                yield module.id, name, value
        above = module.parent


def counts_near(graph: ModuleGraph, attention: Attention) -> Iterator[tuple[int, str, int]]:
    """(module, name, value) of head counts where they are not looked for, yet near.

    On the module around the attention module, and on modules two or more below it.
    """
    parent = graph.nodes[attention.owner].parent
    near = {attention.owner, *(child.id for child in graph.children(attention.owner))}
    for node, name, value in counts_above(graph, attention):
        if node == parent:
            yield node, name, value
    for module in graph.walk(attention.owner):
        if isinstance(module, ModuleNode) and module.id not in near:
            for name, value in module.spec.attributes:
                if name in (*Q_COUNTS, *KV_COUNTS) and value in _cut_counts(attention):
                    yield module.id, name, value


def _cut_counts(attention: Attention) -> list[int]:
    """How many heads there are before sharding, of those that are cut; one head counts nothing."""
    numbers = (
        (attention.num_heads, attention.q_is_cut),
        (attention.num_kv_heads, attention.kv_is_cut),
    )
    return [number for number, is_cut in numbers if is_cut and number is not None and number > 1]


def per_head_tensors(graph: ModuleGraph, attention: Attention) -> Iterator[PerHead]:
    """Sinks, slopes, gates, biases of positions and norms with one value or row a head."""
    counts = _cut_counts(attention)
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
    """The dim that counts heads: the first of more than one value, or a table's columns."""
    first = next((dim for dim, size in enumerate(node.shape) if size > 1), None)
    if first is None:
        return None
    if node.shape[first] == heads:
        return first  # [heads, ...], or [1, heads, 1, 1] as scores are multiplied by
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
    numbers = {number for number in _cut_counts(attention) if number > 2}
    for node in [graph.nodes[attention.owner], *graph.children(attention.owner)]:
        if isinstance(node, ModuleNode):
            for name, value in node.spec.attributes:
                is_known = name in known or _NO_COUNT.search(name.lower())
                if value in numbers and not is_known and f"attributes.{name}" not in node.props:
                    yield node.id, name, value


def uncounted_widths(
    graph: ModuleGraph, attention: Attention
) -> Iterator[tuple[int, str, int, str]]:
    """(module, name, value, projection) of integers that are as large as the width of a cut one.

    Those that may be the width of the stream are told only where their name is that of q, k or v.
    """
    widths = {p.width: p for p in attention.projections if p.cut}
    stream = set(_inputs(graph, attention))
    known = {*Q_COUNTS, *KV_COUNTS, *PROTECTED, *WIDTHS, *AMBIGUOUS_WIDTHS}
    module = graph.module(attention.owner)
    for name, value in module.spec.attributes:
        projection = widths.get(value)
        if projection is None or name in known or _NO_WIDTH.search(name.lower()):
            continue
        if value in stream and not _OF_HEADS.search(name.lower()):
            continue
        if f"attributes.{name}" not in module.props:
            yield module.id, name, value, projection.name


def _inputs(graph: ModuleGraph, attention: Attention) -> Iterator[int]:
    for projection in attention.projections:
        node = graph.tensor(projection.weight)
        yield node.shape[1 - output_dim(graph, node)]
