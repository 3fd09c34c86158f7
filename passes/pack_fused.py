"""Pass ``pack-fused``: fused parts are reordered, so that a contiguous cut is the right one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hpx.facts import EXPERTS_STACKED, PACKED, TIED
from hpx.graph import ModuleGraph
from hpx.order import Order
from hpx.packing import Packing, packings
from hpx.pipeline import Pass, PassInfo, register
from hpx.pipeline.context import PassContext
from hpx.plan import Rule

__all__ = ["PackFused"]


@register
@dataclass(frozen=True, kw_only=True)
class PackFused(Pass):
    """Reorder the parts of fused projections, so that each rank's piece holds its share of each.

    1. Only what the plan declares under ``packed:`` and cuts on the packed dim; a bias has the
       declaration of its weight, and stacked experts are declared by their stacked name.
    2. ``repeat: 1``, parts one after the other (``[q; k; v]``, ``[gate; up]``): each part is cut in
       as many pieces as there are ranks, and the pieces are regrouped by rank. Parts may differ in
       size, and the dim may be any (dim 1 of a ``Conv1D``).
    3. ``repeat: n`` that the ranks share evenly (head by head, group by group): whole repeats stay
       together, so the order stays.
    4. What cannot be shared evenly is left to ``shard-params``, which refuses it with the numbers.
    5. Original order comes back with ``hpx.restore`` and ``hpx.state_dict``.
    """

    info = PassInfo(
        name="pack-fused",
        requires={TIED, EXPERTS_STACKED},
        provides={PACKED},
        before={"shard-params"},
        writes={"order"},
    )

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        """Group the parameters that need one and the same order, and set it."""
        if not ctx.plan.packed:
            ctx.note("the plan declares nothing under packed:")
            return
        todo: dict[_Decision, list[int]] = {}
        left: dict[_Decision, list[int]] = {}
        for packing in packings(graph, ctx.plan, ctx.mesh):
            decision = _decide(packing)
            (left if decision.stays else todo).setdefault(decision, []).append(packing.node.id)
        for decision, nodes in todo.items():
            ctx.set(nodes, "order", decision.order, why=decision.why, rule=decision.rule)
        for decision, nodes in left.items():
            ctx.skip(nodes, key="order", why=decision.why, rule=decision.rule)
        if not todo and not left:
            ctx.note("nothing that is declared under packed: is cut on its packed dim")


class _Decision(NamedTuple):
    """What is done to a regular group of parameters, and why."""

    order: Order | None
    why: str
    rule: Rule | None
    stays: bool


def _decide(packing: Packing) -> _Decision:
    packed, pieces = packing.packed, packing.pieces
    if packing.node.order is not None and packing.node.order == packing.order:
        return _Decision(packing.order, "it has this order already", packing.rule, stays=True)
    if packing.order is not None:
        parts = ", ".join(name for name, _ in packed.parts)
        why = f"{packed.where}: {parts} stand one after the other; each rank gets its part of each"
        return _Decision(packing.order, why, packing.rule, stays=False)
    if packed.repeat % pieces == 0 or len(packed.parts) == 1:
        why = f"its parts repeat {packed.repeat} times, {pieces} ranks share whole repeats"
        if len(packed.parts) == 1:
            why = "it has one part"
        return _Decision(None, f"{packed.where}: {why}: a plain cut", packing.rule, stays=True)
    return _Decision(
        None, f"{packed.where}: {pieces} ranks cannot share its parts", packing.rule, stays=True
    )
