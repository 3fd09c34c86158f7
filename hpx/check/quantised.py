"""Block-quantised weights: a cut must not go through a block that shares one scale."""

from __future__ import annotations

from typing import Final

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import TensorNode
from hpx.mesh import divisors

__all__ = ["KNOWN_CLASSES", "block_problem", "scale_of"]

KNOWN_CLASSES: Final = frozenset(
    [
        "Parameter",
        "torch.Tensor",
        "torch.nn.parameter.Parameter",
        "torch.nn.parameter.Buffer",
        "torch.distributed.tensor.DTensor",
        "torch._subclasses.fake_tensor.FakeTensor",
    ]
)
"""Tensor classes whose elements stand where their shape says; any other may be packed bits."""

_SUFFIXES: Final = (
    *("_scale_inv", "_scale", "_scales"),
    *("_weight_scale_inv", "_weight_scale", "_weight_scales"),  # beside a stacked weight
)


def scale_of(graph: ModuleGraph, node: TensorNode) -> TensorNode | None:
    """The tensor of block scales that belongs to a weight, if its module has one."""
    owner = graph.module(node.parent)
    for suffix in _SUFFIXES:
        child = owner.children.get(node.name.removesuffix("_packed") + suffix)
        scale = graph.nodes[child] if child is not None else None
        if (
            isinstance(scale, TensorNode)
            and len(scale.shape) == len(node.shape)
            and 1 < scale.spec.num_elements < node.spec.num_elements
        ):
            return scale
    return None


def block_problem(node: TensorNode, scale: TensorNode, cuts: dict[int, int]) -> str | None:
    """What speaks against cutting a block-quantised weight; None if whole blocks stay together.

    Args:
        node: The weight.
        scale: Its scales, one for each block.
        cuts: Number of pieces by dim.
    """
    for dim, pieces in cuts.items():
        blocks = scale.shape[dim]
        if blocks > 1 and blocks % pieces:
            block = -(-node.shape[dim] // blocks)
            allowed = ", ".join(map(str, divisors(blocks)))
            return (
                f"dim {dim} of size {node.shape[dim]} is quantised in {blocks} blocks of {block}"
                f" ({scale.name}), {blocks} % {pieces} = {blocks % pieces}; allowed tp {allowed}"
            )
    return None
