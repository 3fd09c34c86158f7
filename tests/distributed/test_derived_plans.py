"""A step under a derived plan equals the unsharded one, in float64, for every family."""

from __future__ import annotations

import pytest

from tests.distributed.derived import derived_deviations
from tests.distributed.pool import Pool
from tests.hpx.derive.models import FAMILIES

LIMIT = 1e-9
"""Of ``max|a-b| / max|b|``, per tensor."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "vit"])
def test_a_step_under_a_derived_plan_equals_the_unsharded_one(name: str, gloo: Pool) -> None:
    pytest.importorskip("transformers")
    for rules, found in gloo.run(derived_deviations, 2, name, "tp=2"):
        assert rules >= 2
        assert len(found) > 20
        assert {key: far for key, far in found.items() if far > LIMIT} == {}
