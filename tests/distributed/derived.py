"""The models of families, on their derived plans."""

from __future__ import annotations

from typing import Any

from hpx.numeric.preparing import Subject, prepare
from tests.distributed.equality_models import PADDING, VOCABULARY
from tests.hpx.derive.models import family

__all__ = ["derived_subject"]

_CHANGES: dict[str, dict[str, Any]] = {
    "phi3": {"pad_token_id": PADDING},
    "gpt_oss": {"pad_token_id": PADDING},
    "t5": {"pad_token_id": PADDING},
}


def derived_subject(name: str, mesh: str, pipeline: str = "@run", **more: Any) -> Subject:
    """A small model of a family, on the plan that is derived from it."""
    model = family(name, "cpu", **{"vocab_size": VOCABULARY, **_CHANGES.get(name, {})})
    model.config._experts_implementation = "eager"
    return prepare(model, None, mesh, pipeline, **more)
