"""In float64 a sharded step computes what the unsharded one does: all outputs and gradients."""

from __future__ import annotations

import pytest

from tests.distributed.equality import MODELS, deviations
from tests.distributed.pool import Pool


@pytest.mark.parametrize("mesh", ["tp=2", "dp=2,tp=2"])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_equals_the_unsharded_one(name: str, mesh: str, gloo: Pool) -> None:
    size = 2 if mesh == "tp=2" else 4
    for found in gloo.run(deviations, size, name, mesh):
        assert len(found) > 20
        assert max(found.values()) <= 1e-9, [k for k, v in found.items() if v > 1e-9]
