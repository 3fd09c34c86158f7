"""Guards of packed parameters: their rows lie in another order than the model's own.

A stock state dict would save that order under the names of the model, and a stock one that is
loaded would put the model's order where the other is expected; nothing in the shapes tells. So both
are refused by the module that owns such a parameter. `hpx.state_dict` and `hpx.load_state_dict`
know the model's order, and `hpx.restore` takes the guards off. Who saves pieces to load the same
pieces again says so, with `in_rank_order`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from hpx.errors import HpxError
from hpx.run import Run
from hpx.runtime.journal import Journal
from hpx.runtime.record import applied_to

__all__ = ["RankOrder", "guard_packed", "in_rank_order"]


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
        self.open = False

    def on_save(self, module: nn.Module, prefix: str, keep_vars: bool) -> None:
        """Refuse a stock state dict."""
        del module, prefix, keep_vars
        if self.open:
            return
        raise HpxError(
            "a state dict would save its rows in the order of the ranks",
            where=", ".join(self.names.values()),
            why="pack-fused reordered its packed dim, and the names are those of the model's order",
            fix="use hpx.state_dict(model), which gives the original order; for checkpoints of"
            " pieces, hpx.in_rank_order(model)",
        )

    def on_load(
        self, module: nn.Module, state_dict: Mapping[str, Any], prefix: str, *_: object
    ) -> None:
        """Refuse to load rows in the model's order; keys that are not there change nothing."""
        del module
        for name, said in self.names.items():
            if f"{prefix}{name}" in state_dict and not self.open:
                raise HpxError(
                    "a state dict has its rows in the order of the model",
                    where=said,
                    why="pack-fused reordered its packed dim on the ranks",
                    fix="use hpx.load_state_dict(model, state); for checkpoints of pieces,"
                    " hpx.in_rank_order(model)",
                )


class RankOrder:
    """The orders of a model's packed dims, to be saved in a checkpoint and compared when it loads.

    It has ``state_dict`` and ``load_state_dict``, so torch's distributed checkpoint takes it as an
    entry of its own.
    """

    def __init__(self, orders: Mapping[str, str]) -> None:
        self.orders = dict(orders)

    def state_dict(self) -> dict[str, Any]:
        """The orders by name of the parameter."""
        return {"orders": dict(self.orders)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Compare with the orders of a checkpoint.

        Raises:
            HpxError: They differ: its rows are those of other ranks.
        """
        saved: Mapping[str, str] = state["orders"]
        for name in {**self.orders, **saved}:
            here, there = self.orders.get(name, "its own"), saved.get(name, "its own")
            if here != there:
                raise HpxError(
                    "the checkpoint has its rows in another order",
                    where=name,
                    why=f"saved as {there}, and the model has {here}",
                    fix="load it on the mesh and with the plan that it was saved with, and take"
                    " hpx.state_dict from there",
                )


@contextmanager
def in_rank_order(model: nn.Module) -> Iterator[RankOrder]:
    """Let stock state dicts have packed rows in the order of the ranks, inside a ``with`` block.

    For checkpoints of pieces that the same plan on the same ``tp`` loads again, optimizer state
    included: all of it is in the order that the ranks have. Save what the block gives beside them,
    as an entry of its own, so that a checkpoint with other orders is refused when it is loaded.

    Args:
        model: The model that `hpx.apply` changed.

    Yields:
        The orders.

    Raises:
        HpxError: Nothing was applied to the model.
    """
    applied = applied_to(model)
    if applied is None:
        raise HpxError(
            f"nothing was applied to this {type(model).__name__}",
            fix="give the module that hpx.apply was called with",
        )
    graph = applied.run.graph
    orders = {graph.path(n.id): str(n.order) for n in graph.parameters() if n.order is not None}
    hooks = [hook for m in model.modules() for hook in m._state_dict_pre_hooks.values()]
    owners = (getattr(hook, "__self__", None) for hook in hooks)
    guards = [owner for owner in owners if isinstance(owner, _Guard)]
    closed = [guard for guard in guards if not guard.open]  # a block around this one has others
    for guard in closed:
        guard.open = True
    try:
        yield RankOrder(orders)
    finally:
        for guard in closed:
            guard.open = False
