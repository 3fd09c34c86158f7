"""The proof that every element is where the run says: ``verify="full"``.

The pieces that a rank was built from are checked against a second, straightforward computation:
put the originals together whole, then take the rank's index range. One parameter at a time.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor

from hpx.errors import HpxError
from hpx.lineage import Lineage, Permute, Source
from hpx.runtime.gather import current_parameter
from hpx.runtime.materialize import local_ranges, parameters_to_build
from hpx.runtime.record import Applied

__all__ = ["put_together", "verify_elements"]


def verify_elements(applied: Applied, originals: dict[int, torch.Tensor]) -> None:
    """Compare every element that this rank holds with the originals, bit for bit.

    Args:
        applied: What was applied.
        originals: The originals by entry id.

    Raises:
        HpxError: An element is not where the run says.
    """
    for node in parameters_to_build(applied.run):
        found = current_parameter(applied, node).detach()
        local = found.to_local() if isinstance(found, DTensor) else found
        if local.is_meta or isinstance(local, FakeTensor):
            continue
        whole = put_together(node.expression, originals)
        ranges = local_ranges(node, applied.meshes)
        expected = whole[tuple(slice(start, stop) for start, stop in ranges)]
        if not _same_bits(local, expected):
            raise HpxError(
                "its elements are not where the run says",
                where=applied.run.graph.path(node.id),
                why=f"this rank has to hold {ranges}",
                fix="this is a fault of hpx: please report it; the model is as it was before",
            )


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bytes, so that a NaN equals itself and -0.0 differs from 0.0."""
    if a.shape != b.shape:
        return False
    flat = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return torch.equal(flat[0], flat[1])


def put_together(lineage: Lineage, originals: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """The derived tensor, whole: straightforward, and without what `hpx.lineage.pull` computes."""
    if isinstance(lineage, Source):
        return originals[lineage.node]
    if isinstance(lineage, Permute):
        dim, parts, pieces = lineage.order
        whole = put_together(lineage.part, originals)
        cut = [
            part.chunk(pieces, dim) for part in torch.split(whole, [size for _, size in parts], dim)
        ]
        return torch.cat([part[piece] for piece in range(pieces) for part in cut], dim)
    return torch.stack([put_together(part, originals) for part in lineage.parts], lineage.dim)
