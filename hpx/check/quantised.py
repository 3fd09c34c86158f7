"""Block-quantised weights: a cut must not go through a block that shares one scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import TensorNode
from hpx.mesh import divisors

__all__ = ["KNOWN_CLASSES", "block_problem", "scale_of", "scales_of", "unsure_blocks"]

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

_ENDINGS: Final = ("scale_inv", "scale", "scales", "zero_point", "absmax")
_AFTER: Final = frozenset(f"_{ending}" for ending in _ENDINGS)
_BARE: Final = (*_ENDINGS, "block_scale", "block_scales", "weight_block_scale")
_WEIGHTS: Final = ("weight", "qweight", "weight_packed")
_USUAL: Final = 16
"""The smallest usual block of a power of two; below it the exact ratio is believed."""


def scales_of(graph: ModuleGraph, weight: TensorNode) -> Iterator[TensorNode]:
    """The tensors beside a weight that hold more than one scale for it."""
    owner = graph.module(weight.parent)
    near = [name for name in owner.children if name.endswith(_ENDINGS)]
    if not near or weight.name in near:
        return
    stem = weight.name.removesuffix("_packed")
    for name in near:
        bare = name in _BARE and weight.name in _WEIGHTS and len(weight.shape) > 1
        after = name.removeprefix(stem).removeprefix("_weight").removeprefix("_block")
        if not bare and after not in _AFTER:
            continue
        scale = graph.nodes[owner.children[name]]
        if isinstance(scale, TensorNode) and scale.spec.num_elements > 1:
            yield scale


def scale_of(graph: ModuleGraph, node: TensorNode) -> TensorNode | None:
    """The tensor of block scales that belongs to a weight, if its module has one."""
    for scale in scales_of(graph, node):
        if (
            len(scale.shape) == len(node.shape)
            and scale.spec.num_elements < node.spec.num_elements
            and all(a <= b for a, b in zip(scale.shape, node.shape, strict=True))
        ):
            return scale
    return None


def block_problem(
    graph: ModuleGraph, node: TensorNode, scale: TensorNode, cuts: dict[int, int]
) -> str | None:
    """What speaks against cutting a block-quantised weight; None if whole blocks stay together.

    Args:
        graph: The graph.
        node: The weight.
        scale: Its scales, one for each block.
        cuts: Number of pieces by dim.
    """
    for dim, pieces in cuts.items():
        size, blocks = node.shape[dim], scale.shape[dim]
        if blocks == 1:
            continue
        piece = -(-size // pieces)
        likely = _likely_blocks(graph, node, size, blocks)
        if any(piece % block == 0 for block in likely):
            continue
        block = next(iter(likely), -(-size // blocks))
        last = size - (blocks - 1) * block
        partly = f", the last of {last}" if last != block else ""
        allowed = [p for p in divisors(size) if (size // p) % block == 0]
        rest = f"{blocks} % {pieces} = {blocks % pieces}"
        return (
            f"dim {dim} of size {size} is quantised in {blocks} blocks of {block}{partly}"
            f" ({scale.name}), {rest if blocks % pieces else f'a rank would hold {piece}'};"
            f" allowed tp {', '.join(map(str, allowed)) or 1}"
            + (f"; block_size={size // blocks} on the module would say otherwise" if partly else "")
        )
    return None


def unsure_blocks(
    graph: ModuleGraph, node: TensorNode, scale: TensorNode, cuts: dict[int, int]
) -> str | None:
    """Which size of the blocks a cut relies on, where several fit the shapes; None if one does."""
    for dim, pieces in cuts.items():
        size, blocks = node.shape[dim], scale.shape[dim]
        likely = _likely_blocks(graph, node, size, blocks) if blocks > 1 else range(0)
        fits = [block for block in likely if -(-size // pieces) % block == 0]
        if 0 < len(fits) < len(likely):
            return (
                f"dim {dim} of size {size} has {blocks} scales, which does not tell their blocks:"
                f" cut in {pieces}, it is right for blocks of {fits[0]} alone"
            )
    return None


def _likely_blocks(graph: ModuleGraph, node: TensorNode, size: int, blocks: int) -> Sequence[int]:
    """The sizes of blocks that give so many: what the module says, a power of two, or the ratio.

    A last block may be smaller, so 192 rows in 2 blocks are 128 and 64 rows.
    """
    possible = range(-(-size // blocks), -(-size // (blocks - 1)))
    if not possible:
        return [max(1, size // blocks)]
    said = [
        value
        for name, value in graph.module(node.parent).spec.attributes
        if value in possible and ("block" in name or "group" in name)
    ]
    if said:
        return said[:1]
    power = 1 << (possible.start - 1).bit_length()
    if power in possible and (power >= _USUAL or size % blocks):
        return [power]
    if size % blocks == 0:
        return [size // blocks, power] if power in possible[1:] else [size // blocks]
    return possible
