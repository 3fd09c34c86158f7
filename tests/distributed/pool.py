"""The pool of `hpx.numeric.pool`, under the name that the tests know."""

from __future__ import annotations

from hpx.numeric.pool import Pool, RanksFailedError

__all__ = ["Pool", "RanksFailedError"]
