"""Fused projections: which parameters hold several matrices, and whether a cut keeps them whole.

A plain cut of the packed dim of ``[q; k; v]`` goes across the parts and is silently wrong: with
rows q0..q3 k0 k1 v0 v1 and tp 2, rank 0 has to hold q0 q1 k0 v0. The pass pack-fused reorders them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from hpx.check.findings import Finding
from hpx.check.fused_heads import fused_heads, layers_beside, stands_apart
from hpx.check.quantised import scales_of
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.heads import HEAD_DIMS, KV_COUNTS, Q_COUNTS, attention_at
from hpx.mesh import divisors
from hpx.packing import Declared, declared_packed, order_for
from hpx.plan import Packed
from hpx.projections import is_projection_name, output_dim, role_of, role_of_name

if TYPE_CHECKING:
    from hpx.sharding import Decision

__all__ = ["fused_problem", "packed_dims", "packed_problem"]

_NAMES: Final = re.compile(
    r"""\w*(?:qkv|kqv|q_k_v|k_q_v|q_kv)\w* | wkv | k_?v | v_?k | \w+_(?:kv|k_v)
    | in_proj\w* | kv_a_proj\w* | \w*gate_up\w* | \w*up_gate\w* | gate_and_up\w*
    | w_?13 | w1_?w3 | w_?12 | w1_?w2 | fused_\w+ | \w+_fused | x_proj""",
    re.IGNORECASE | re.VERBOSE,
)
_SUFFIXES: Final = re.compile(r"_(weight|bias|blocks|scales?|scale_inv)$")


def fused_problem(
    graph: ModuleGraph,
    node: TensorNode,
    cuts: dict[int, int],
    decisions: Mapping[int, Decision],
    packed: Declared,
) -> Finding | None:
    """What speaks against cutting a parameter that is, or looks like, a fused projection.

    Args:
        graph: The graph.
        node: The parameter.
        cuts: Number of pieces by dim.
        decisions: The layouts of all parameters, its neighbours among them.
        packed: What the plan declares.
    """
    declared = declared_packed(graph, node, packed)
    if declared is not None:
        why = packed_problem(declared, node.shape, cuts) or _split_heads(
            graph, node, declared, cuts
        )
        if why is not None:
            what = "its packed parts cannot be cut like this"
            fix = _declared_sizes(declared, node.shape) or "replicate it, or use another tp"
            return Finding(node.id, what, why, fix)
        return _not_in_order(node, declared, cuts) or _scales_apart(graph, node)
    dims = [dim for dim in packed_dims(graph, node) if dim in cuts]
    if dims:
        dim, why = dims[0], "would be silently wrong"
    else:
        partner = fused_heads(graph, node, cuts, decisions)
        partner = partner or _wider_than_partner(graph, node, cuts, decisions)
        if partner is None:
            return None
        dim, why = partner[0], f"would be silently wrong: {partner[1]}"
    return Finding(
        node.id,
        f"it looks like a fused projection and is cut on dim {dim}",
        f"a plain cut in {cuts[dim]} goes across its parts and {why}",
        "replicate it, or declare how its parts lie under packed: in the plan, for pack-fused",
    )


def _declared_sizes(packed: Packed, shape: tuple[int, ...]) -> str | None:
    """What to declare where the sizes are not those of the dim, but maybe of one repeat."""
    total = sum(size for _, size in packed.parts)
    if not -len(shape) <= packed.dim < len(shape) or total == shape[packed.dim]:
        return None
    if total * packed.repeat != shape[packed.dim]:
        return f"declare parts that add up to {shape[packed.dim]}, all repeats together"
    sizes = ", ".join(f"{name}: {size * packed.repeat}" for name, size in packed.parts)
    return f"declare the sizes of all {packed.repeat} repeats together: {{{sizes}}}"


def _not_in_order(node: TensorNode, packed: Packed, cuts: Mapping[int, int]) -> Finding | None:
    """A declared parameter whose dim does not have the order that its cut needs."""
    wanted = order_for(packed, node.shape, cuts)
    if node.order == wanted:
        return None
    if node.order is not None:
        why = f"it was reordered as {node.order}, and needs {wanted or 'its own order'}"
        return Finding(
            node.id, "its packed dim has another order", why, "start from the model as it came"
        )
    return Finding(
        node.id,
        f"it is cut across its packed parts ({packed.where})",
        f"its parts stand one after the other along dim {packed.dim % len(node.shape)}, and a plain"
        f" cut in {cuts[packed.dim % len(node.shape)]} goes across them",
        "add pack-fused, which reorders them, to the pipeline; or replicate it",
    )


def _scales_apart(graph: ModuleGraph, node: TensorNode) -> Finding | None:
    """Scales of a reordered weight that stay in the model's order."""
    order = node.order
    for scale in scales_of(graph, node) if order is not None else ():
        if (
            order is not None
            and scale.order is None
            and scale.shape[order.dim : order.dim + 1] > (1,)
        ):
            return Finding(
                node.id,
                f"its rows are reordered, and those of {scale.name} are not",
                f"each scale of {list(scale.shape)} belongs to rows of its weight",
                "declare the parts of its scales under packed: as well, or replicate both",
            )
    return None


def _split_heads(
    graph: ModuleGraph, node: TensorNode, packed: Packed, cuts: Mapping[int, int]
) -> str | None:
    """A part of q, k and v whose heads the cut would go through."""
    found = role_of(graph, node)
    pieces = cuts.get(packed.dim % len(node.shape), 1)
    if found is None or found[1] is None or packed.repeat != 1 or pieces == 1:
        return None
    size = attention_at(graph, found[0]).head_dim
    if not size or any(rows % size for _, rows in packed.parts):
        return None
    for name, rows in packed.parts:
        heads = rows // size
        if heads % pieces:
            return (
                f"part {name} has {heads} head{'s' * (heads != 1)} of {size} rows, and {pieces}"
                f" ranks cannot share them: {heads} % {pieces} = {heads % pieces}"
            )
    return None


def packed_dims(graph: ModuleGraph, node: TensorNode) -> tuple[int, ...]:
    """The dims along which a parameter may hold several matrices; empty if it looks plain."""
    owner = graph.module(node.parent)
    own = _SUFFIXES.sub("", node.name)
    leaf = own in ("weight", "bias")
    if not _is_fused_name(owner.name if leaf else own) and not _is_triple(graph, node, owner):
        return ()
    if len(node.shape) >= 3:  # [E, 2F, H] or [E, H, 2F]: the expert dim is not packed
        return tuple(range(1, len(node.shape)))
    if len(node.shape) == 2 and not leaf and _stands_by_experts(graph, node):
        return (1,)  # a bias [E, 2F]
    return (output_dim(graph, node),) if node.shape else ()


def _is_fused_name(name: str) -> bool:
    """Whether parts stand one after the other; ``kv_b_proj`` goes head by head."""
    if _NAMES.fullmatch(name) or role_of_name(name) == "qkv":
        return True
    return role_of_name(name) == "kv" and not name.endswith("b_proj")


def _stands_by_experts(graph: ModuleGraph, node: TensorNode) -> bool:
    return any(
        isinstance(other, TensorNode) and len(other.shape) >= 3 and other.shape[0] == node.shape[0]
        for other in graph.children(node.parent)
    )


def _is_triple(graph: ModuleGraph, node: TensorNode, owner: ModuleNode) -> bool:
    """One matrix with three times as many outputs as inputs, alone in a module that has heads."""
    if len(node.shape) != 2 or node.name != "weight" or owner.parent < 0:
        return False
    dim = output_dim(graph, node)
    if node.shape[dim] != 3 * node.shape[1 - dim] or stands_apart(graph, node):
        return False
    known = {*Q_COUNTS, *KV_COUNTS, *HEAD_DIMS}
    return any(name in known for name, _ in graph.module(owner.parent).spec.attributes)


def _wider_than_partner(
    graph: ModuleGraph, node: TensorNode, cuts: dict[int, int], decisions: Mapping[int, Decision]
) -> tuple[int, str] | None:
    """The rowwise matrix beside a colwise one that takes a half or a third of what that gives.

    Between the two, gate and up (or q, k and v) are told apart, so one matrix holds both. Named
    projections have their own checks, and a single q may carry a gate beside each head.
    """
    owner = graph.module(node.parent)
    leaf = node.name == "weight"
    if len(node.shape) not in (2, 3) or is_projection_name(owner.name if leaf else node.name):
        return None
    for other in _matrices(graph, node, leaf=leaf):
        decision = decisions.get(other.id)
        if decision is None or other.id == node.id or len(other.shape) != len(node.shape):
            continue
        for gives, takes in _ways(graph, node, other):
            wide, narrow = node.shape[gives], other.shape[takes]
            if (
                gives in cuts
                and decision.layout.dim("tp") == takes
                and wide in (2 * narrow, 3 * narrow)
            ):
                return gives, f"it gives {wide}, and {graph.path(other.id)} takes {narrow}"
    return None


def _ways(graph: ModuleGraph, node: TensorNode, other: TensorNode) -> list[tuple[int, int]]:
    """(output dim of one matrix, input dim of the next); stacked ones may be stored either way."""
    if len(node.shape) == 3:
        return [(1, 2), (2, 1)]
    return [(output_dim(graph, node), 1 - output_dim(graph, other))]


def _matrices(graph: ModuleGraph, node: TensorNode, *, leaf: bool) -> Iterator[TensorNode]:
    """The weights of the layers beside a layer's, or the parameters beside a bare parameter."""
    if leaf and len(node.shape) == 2:
        for layer in layers_beside(graph, node)[1]:
            if not is_projection_name(layer.name):
                yield layer.node
        return
    for child in graph.children(node.parent):
        if isinstance(child, TensorNode):
            yield child


def packed_problem(packed: Packed, shape: tuple[int, ...], cuts: dict[int, int]) -> str | None:
    """What speaks against cutting a declared packed parameter, in whatever order its parts lie.

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
