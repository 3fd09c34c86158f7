"""Process groups in which this process plays one rank and nobody plays the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist
from torch.distributed.tensor import debug
from torch.testing._internal.distributed.fake_pg import FakeStore

FakeGroup = Callable[[int, int], None]
"""Makes this process rank ``rank`` of ``world_size``, in place of what it was before."""


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    # What DTensor remembers holds meshes whose groups are gone.
    debug._clear_sharding_prop_cache()  # type: ignore[no-untyped-call]


@pytest.fixture
def fake_group() -> Iterator[FakeGroup]:
    """Torch's fake process group; its collectives return at once and exchange nothing."""

    def enter(rank: int, world_size: int) -> None:
        leave()
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)

    leave()
    yield enter
    leave()
