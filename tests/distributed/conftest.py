"""Tests on real gloo processes, which are started once for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.pool import Pool


@pytest.fixture(scope="session")
def gloo() -> Iterator[Pool]:
    """Up to 8 ranks: ``gloo.run(function, world_size, *args)`` gives the results in rank order."""
    with Pool() as pool:
        yield pool


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "gloo" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.distributed)
