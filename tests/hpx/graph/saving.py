"""Saves small checkpoints and their json in the current folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

__all__ = ["INDEX", "save", "save_index", "save_json"]

INDEX = "model.safetensors.index.json"


def save(file: str, *names: str) -> None:
    Path(file).parent.mkdir(exist_ok=True)
    save_file({name: np.zeros((4, 2), np.float32) for name in names}, file)


def save_json(file: str, content: object) -> None:
    Path(file).parent.mkdir(exist_ok=True)
    Path(file).write_text(json.dumps(content))


def save_index(weight_map: Mapping[str, object], folder: str = "shards") -> None:
    save_json(f"{folder}/{INDEX}", {"metadata": {}, "weight_map": weight_map})
