"""Pass ``localize``: what the module that owns a parameter sees of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpx.errors import did_you_mean
from hpx.facts import HEADS_LOCAL, LOCALIZED, SHARDED, SOURCE_INFO
from hpx.graph import ModuleGraph
from hpx.heads import attentions
from hpx.pipeline import Pass, PassInfo, register
from hpx.pipeline.context import PassContext
from hpx.plan import Pattern

__all__ = ["Localize"]


@register
@dataclass(frozen=True, kw_only=True)
class Localize(Pass):
    """Decide for every parameter with a layout whether its region sees a plain local tensor.

    1. ``mode=forward``: a DTensor at rest, the local tensor inside the forward of its module.
    2. ``mode=permanent``: an export mode; the plain local tensor stays, and the source-layout
       record becomes part of the model.
    3. Parameters under a pattern of ``exclude`` stay DTensors; a pattern that matches nothing is an
       error, and so is a projection whose head counts were divided for local tensors.
    4. Parameters without a layout are left alone.
    """

    info = PassInfo(
        name="localize",
        requires={SHARDED, HEADS_LOCAL, SOURCE_INFO},
        provides={LOCALIZED},
        writes={"localized"},
    )

    mode: Literal["forward", "permanent"] = "forward"
    """Local inside the forward only, or for good."""
    exclude: tuple[str, ...] = ()
    """Patterns of parameters or modules that stay DTensors."""

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        """Sort the parameters into localized and excluded ones."""
        patterns = [Pattern.parse(text) for text in self.exclude]
        used: set[str] = set()
        excluded: list[int] = []
        local: list[int] = []
        for node in graph.parameters():
            names = graph.names(node.id) if patterns else []
            hits = {str(p) for p in patterns for name in names if _covers(p, name)}
            used |= hits
            if node.layout is not None:
                (excluded if hits else local).append(node.id)
        for text in self.exclude:
            if text not in used:
                near = did_you_mean(text, [graph.path(node.id) for node in graph.modules()])
                raise ctx.error(f"exclude '{text}' matches no parameter", fix=near or None)
        _refuse_divided(graph, ctx, excluded)
        if local:
            where = "inside its module's forward" if self.mode == "forward" else "for good"
            ctx.set(local, "localized", self.mode, why=f"a plain local tensor {where}")
        if excluded:
            why = f"stays a DTensor: exclude={', '.join(self.exclude)}"
            ctx.set(excluded, "localized", "excluded", why=why)


def _refuse_divided(graph: ModuleGraph, ctx: PassContext, excluded: list[int]) -> None:
    """A DTensor has all heads, so the module that views it must count all of them."""
    gone = set(excluded)
    for attention in attentions(graph, ctx.mesh) if excluded else []:
        divided = [c.name for c in attention.counts if _is_divided(graph, c.node, c.name)]
        kept = [p.weight for p in attention.projections if p.cut and p.weight in gone]
        if divided and kept:
            raise ctx.error(
                "it cannot stay a DTensor",
                node=kept,
                why=f"{', '.join(divided)} of its module was divided for local tensors",
                fix="leave the module in, or take update-heads and the plan's cut of it out",
            )


def _is_divided(graph: ModuleGraph, node: int, name: str) -> bool:
    return f"attributes.{name}" in graph.nodes[node].props


def _covers(pattern: Pattern, name: str) -> bool:
    """Whether the pattern matches the name or a module above it."""
    parts = name.split(".")
    return any(pattern.matches(parts[:length]) for length in range(1, len(parts) + 1))
