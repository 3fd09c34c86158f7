"""Fused projections: which parameters hold several matrices, and whether a cut keeps them whole.

A plain cut of the packed dim of ``[q; k; v]`` goes across the parts and is silently wrong: with
rows q0..q3 k0 k1 v0 v1 and tp 2, rank 0 has to hold q0 q1 k0 v0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.heads import HEAD_DIMS, KV_COUNTS, Q_COUNTS, output_dim
from hpx.mesh import divisors
from hpx.plan import Packed

__all__ = ["packed_dims", "packed_problem"]

_NAMES: Final = frozenset(
    [
        "qkv",
        "qkv_proj",
        "c_attn",
        "query_key_value",
        "in_proj",
        "in_proj_weight",
        "Wqkv",
        "wqkv",
        "to_qkv",
        "to_kv",
        "kv_proj",
        "gate_up_proj",
        "gate_up",
        "up_gate_proj",
        "w13",
        "w1w3",
        "gate_up_projs",
    ]
)


def packed_dims(graph: ModuleGraph, node: TensorNode) -> tuple[int, ...]:
    """The dims along which a parameter may hold several matrices; empty if it looks plain."""
    owner = graph.module(node.parent)
    own = node.name.removesuffix("_bias").removesuffix("_weight")
    if not _is_fused_name(node.name, own, owner) and not _is_triple(graph, node, owner):
        return ()
    if len(node.shape) >= 3:  # [E, 2F, H] or [E, H, 2F]: the expert dim is not packed
        return tuple(range(1, len(node.shape)))
    return (output_dim(graph, node),) if node.shape else ()


def _is_fused_name(name: str, own: str, owner: ModuleNode) -> bool:
    return name in _NAMES or own in _NAMES or (name in ("weight", "bias") and owner.name in _NAMES)


def _is_triple(graph: ModuleGraph, node: TensorNode, owner: ModuleNode) -> bool:
    """One matrix with three times as many outputs as inputs, alone in a module that has heads."""
    if len(node.shape) != 2 or node.name != "weight" or owner.parent < 0:
        return False
    dim = output_dim(graph, node)
    if node.shape[dim] != 3 * node.shape[1 - dim]:
        return False
    known = {*Q_COUNTS, *KV_COUNTS, *HEAD_DIMS}
    return any(name in known for name, _ in graph.module(owner.parent).spec.attributes)


def packed_problem(packed: Packed, shape: tuple[int, ...], cuts: dict[int, int]) -> str | None:
    """What speaks against cutting a declared packed parameter; None if the cut keeps parts right.

    Args:
        packed: Its declaration.
        shape: Its global shape.
        cuts: Number of pieces by dim.
    """
    return next(_packed_problems(packed, shape, cuts), None)


def _packed_problems(packed: Packed, shape: tuple[int, ...], cuts: dict[int, int]) -> Iterator[str]:
    if not -len(shape) <= packed.dim < len(shape):
        yield f"{packed.where} packs dim {packed.dim} of {len(shape)} dims"
        return
    dim = packed.dim % len(shape)
    total = sum(size for _, size in packed.parts)
    if total != shape[dim]:
        parts = " + ".join(f"{name} {size}" for name, size in packed.parts)
        yield f"{packed.where} declares {parts} = {total} rows, and dim {dim} has {shape[dim]}"
        return
    pieces = cuts.get(dim, 1)
    if pieces == 1 or packed.repeat % pieces == 0:
        return  # whole repeats stay together: a contiguous cut is the right one
    if packed.repeat > 1:
        sizes = ", ".join(map(str, divisors(packed.repeat)))
        yield (
            f"its parts repeat {packed.repeat} times along dim {dim}, which {pieces} ranks cannot"
            f" share evenly; use a tp of {sizes}"
        )
        return
    for name, size in packed.parts:
        if size % pieces:
            yield f"part {name} has {size} rows, {size} % {pieces} = {size % pieces}"
    yield (
        f"its parts stand one after the other along dim {dim}, and a plain cut in {pieces} goes"
        " across them; reordering the rows (pack-fused) is not available yet"
    )
