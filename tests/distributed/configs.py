"""Configurations of transformers in the sizes of their classes, as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.hpx.derive.models import FAMILIES

__all__ = ["config_file"]


def config_file(folder: Path, family: str, **changes: Any) -> Path:
    """The ``config.json`` of a family, in full size."""
    transformers = pytest.importorskip("transformers")
    model_class, config_class, _ = FAMILIES[family]
    values = {**getattr(transformers, config_class)().to_dict(), **changes}
    path = folder / "config.json"
    path.write_text(json.dumps({**values, "architectures": [model_class]}))
    return path
