"""Tests on real gloo processes, which are started once for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from hpx.numeric.pool import PRELOAD, Pool

SHARED = (*PRELOAD, "hpx.numeric.ranks")
TRANSFORMERS = ("transformers.modeling_utils", "transformers.models.auto.modeling_auto")


@pytest.fixture(scope="session")
def gloo() -> Iterator[Pool]:
    """Up to 8 ranks: ``gloo.run(function, world_size, *args)`` gives the results in rank order."""
    with Pool(8, (*SHARED, *(TRANSFORMERS if find_spec("transformers") else ()))) as pool:
        yield pool


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "gloo" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.distributed)
