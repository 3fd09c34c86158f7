"""Guards of packed parameters: their rows lie in another order than the model's own.

A stock state dict would save that order under the names of the model, and a stock one that is
loaded would put the model's order where the other is expected; nothing in the shapes tells. So both
are refused by the module that owns such a parameter. `hpx.state_dict` and `hpx.load_state_dict` know
the model's order, and `hpx.restore` takes the guards off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from hpx.errors import HpxError
from hpx.run import Run
from hpx.runtime.journal import Journal

__all__ = ["guard_packed"]


def guard_packed(model: nn.Module, run: Run, journal: Journal) -> None:
    """Guard every module that owns a parameter with a reordered dim."""
    graph = run.graph
    guards: dict[int, dict[str, str]] = {}
    for node in graph.parameters():
        if node.order is not None:
            for parent, name in ((node.parent, node.name), *node.more):
                guards.setdefault(parent, {})[name] = f"{graph.path(node.id)} ({node.order})"
    for parent, names in guards.items():
        module = model.get_submodule(graph.registered_path(parent))
        guard = _Guard(names)
        journal.add_hook(module.register_state_dict_pre_hook, guard.on_save)
        journal.add_hook(module.register_load_state_dict_pre_hook, guard.on_load)


class _Guard:
    """The hooks of one module; ``names`` maps its own names to what to say of them."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def on_save(self, module: nn.Module, prefix: str, keep_vars: bool) -> None:
        """Refuse a stock state dict."""
        del module, prefix, keep_vars
        raise HpxError(
            "a state dict would save its rows in the order of the ranks",
            where=", ".join(self.names.values()),
            why="pack-fused reordered its packed dim, and the names are those of the model's order",
            fix="use hpx.state_dict(model), which gives the original order",
        )

    def on_load(
        self, module: nn.Module, state_dict: Mapping[str, Any], prefix: str, *_: object
    ) -> None:
        """Refuse to load rows in the model's order; keys that are not there change nothing."""
        del module
        for name, said in self.names.items():
            if f"{prefix}{name}" in state_dict:
                raise HpxError(
                    "a state dict has its rows in the order of the model",
                    where=said,
                    why="pack-fused reordered its packed dim on the ranks",
                    fix="use hpx.load_state_dict(model, state)",
                )
