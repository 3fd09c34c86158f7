"""Configurations of transformers in the sizes of their classes, as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

__all__ = ["ARCHITECTURES", "config_file"]

ARCHITECTURES = {"bert": "BertForMaskedLM", "vit": "ViTForImageClassification"}


def config_file(folder: Path, family: str, **changes: Any) -> Path:
    """The ``config.json`` of a family, in full size."""
    pytest.importorskip("transformers")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    values = {**CONFIG_MAPPING[family]().to_dict(), **changes}
    if family in ARCHITECTURES:
        values["architectures"] = [ARCHITECTURES[family]]
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return path
