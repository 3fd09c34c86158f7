"""The proof that every element is where the run says: ``verify="full"``.

The pieces that a rank was built from are checked against a second, straightforward computation:
stack the originals whole, then take the rank's index range. One parameter at a time.
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from hpx.errors import HpxError
from hpx.lineage import Lineage, Source
from hpx.runtime.gather import current_parameter
from hpx.runtime.materialize import local_ranges, parameters_to_build
from hpx.runtime.record import Applied

__all__ = ["verify_elements"]


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
        if local.is_meta:
            continue
        whole = _whole(node.lineage or Source(node.id), originals)
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


def _whole(lineage: Lineage, originals: dict[int, torch.Tensor]) -> torch.Tensor:
    if isinstance(lineage, Source):
        return originals[lineage.node]
    return torch.stack([_whole(part, originals) for part in lineage.parts], lineage.dim)
