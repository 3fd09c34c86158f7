"""Load a ``torch.save`` file for real, for somebody who trusts it: what is in it runs.

Nothing comes here but by ``trust_pickle``, and nothing falls back to it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

from hpx.errors import HpxError, InputError
from hpx.graph.graph import ModuleGraph

__all__ = ["graph_from_pickle"]


def graph_from_pickle(path: Path, shown: str, source: str) -> ModuleGraph:
    """The graph of the module or of the state dict that loading a file gives.

    Args:
        path: The file.
        shown: How errors name it.
        source: How the graph names it.

    Raises:
        InputError: Loading it fails, or gives neither a module nor a mapping with one.
    """
    import torch
    from torch import nn

    from hpx.graph.from_module import graph_from_module

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content: object = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:  # noqa: BLE001 - whatever the file runs can raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InputError(
            f"loading {shown} failed",
            why=reason,
            fix="leave --trust-pickle out to read it without running anything",
        ) from None
    if isinstance(content, Mapping):
        modules = {key: value for key, value in content.items() if isinstance(value, nn.Module)}
        key = next((key for key in ("model", "module", *modules) if key in modules), None)
        if key is not None:
            content, source = modules[key], f"{source}[{key}]"
    try:
        if isinstance(content, nn.Module):
            return graph_from_module(content, source=source)
    except HpxError as error:
        raise error.located(shown) from None
    # A state dict holds nothing that loading it for real would tell better.
    from hpx.graph.from_files import graph_from_checkpoint
    from hpx.graph.reading import Reading

    return graph_from_checkpoint(path, shown, source, Reading(strict=False, modules=True))
