"""Whole tensors beside cut ones: on which side of a sum they stand, and whose gradient is partial.

Before a region's sum a rank has a part of a tensor's gradient, and after it all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpx.check.findings import Finding
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.projections import is_projection
from hpx.roles.cuts import Cuts, output_dim_of
from hpx.roles.flow import pairs
from hpx.roles.places import Places, of_all_layers
from hpx.roles.types import Cut

__all__ = ["WholeTensors"]


class WholeTensors:
    """The whole tensors of a graph in and around its regions.

    Attributes:
        findings: Those of which the side is not known.
        whole: Ids of those whose gradient is whole, as the plan says that their module is no
            region.
        partial: Ids of those in LoRA layers, of whose gradient every rank has a part.
    """

    def __init__(self, graph: ModuleGraph, places: Places, cuts: Cuts) -> None:
        self.graph = graph
        self.places = places
        self.cuts = cuts
        self.findings: list[Finding] = []
        self.whole: list[int] = []
        self.partial: list[int] = []

    def check_region(self, region: int, widths: set[int], summed: set[int]) -> None:
        """Whole tensors in a region as wide as the stream may stand before or after the sum."""
        fix = ""
        for node in self.graph.parameters(region):
            if node.layout is None or node.layout.shards or not node.shape:
                continue
            owner = self.graph.module(node.parent)
            other = is_projection(self.graph, node) or "Embedding" in owner.spec.cls
            if other or node.shape[output_dim_of(owner, node)] not in widths:
                continue
            if node.name == "bias" and "weight" in owner.children and not _is_norm(owner):
                continue  # that of a rowwise layer, or as its whole weight
            if not summed.isdisjoint(self.places.above(node.parent)):
                continue
            self._find(
                node.id,
                "it is whole, inside a region, and as wide as the region's output",
                "before the region's sum a rank has a part of its gradient, and after it all of it;"
                " which it is, is not known",
                fix := fix or self._way_out(region),
            )

    def _way_out(self, region: int) -> str:
        """What can be said under ``boundaries:`` of whole tensors in a region."""
        path = of_all_layers(self.graph.path(region))
        if any(self._between(region)):  # none would be refused
            return (
                "replicate the cut layers of the region, or hold them in a module of their own;"
                f' if it stands between them, declare "{path}": {{output: R}} under boundaries:'
            )
        said = f'say so under boundaries: in the plan: "{path}": none'
        hidden = self._hidden(region)
        if hidden is not None and hidden.isdisjoint(row.outputs for row in self.cuts.rows):
            return f"{said}, as it stands before the cut layers or after the sum"
        return (
            f"{said} if it stands before the cut layers or after the sum, {{output: R}} if between"
            " them"
        )

    def beside_base(self, cut: Cut) -> None:
        """Whole matrices of a LoRA layer: they read or give what is cut, or a part of a sum."""
        if cut.layer == cut.owner:
            return
        for node in self.graph.parameters(cut.layer):
            whole = node.layout is not None and not node.layout.shards
            if whole and len(node.shape) == 2 and not node.props.get("reduce"):
                self.partial.append(node.id)

    def undo(self, region: int) -> None:
        """A region that the plan says is none: whole tensors in it stand outside the cut part."""
        for node in self._between(region):
            self._find(
                node.id,
                "it is whole, and may be read between cut layers",
                f"boundaries: says that '{of_all_layers(self.graph.path(region))}' is no region",
                "replicate the cut layers, or hold them in a module of their own",
            )
        self.whole += [n.id for n in self.graph.parameters(region) if n.props.get("reduce")]

    def _between(self, region: int) -> Iterator[TensorNode]:
        """Whole tensors of a region that may be read between its cut layers.

        Those that give as much as the stream are not. If all cut layers are pairs of which one
        takes what the other gives, only what has that width may be.
        """
        hidden = self._hidden(region)
        widths = {row.outputs for row in self.cuts.rows}
        for node in self.graph.parameters(region):
            if not node.props.get("reduce"):
                continue
            owner = self.graph.module(node.parent)
            if node.shape and node.shape[output_dim_of(owner, node)] in widths:
                continue
            if hidden is None or node.spec.num_elements == 1 or hidden & set(node.shape):
                yield node

    def _hidden(self, region: int) -> set[int] | None:
        """The widths between the cut layers of a region; None if they are not all known pairs."""
        inside = [cut for cut in self.cuts.columns if region in self.places.above(cut.owner)]
        columns = [(cut, self.cuts.role(cut)) for cut in inside]
        rows = [row for row in self.cuts.rows if region in self.places.above(row.owner)]
        flow = pairs(columns, rows)
        if any(role is not None or cut.weight not in flow.taken for cut, role in columns):
            return None
        return {width for cut in inside for width in (cut.outputs, *_takers(cut, rows))}

    def _find(self, node: int, what: str, why: str | None, fix: str) -> None:
        self.findings.append(Finding(node, what, why, fix))


def _takers(cut: Cut, rows: Sequence[Cut]) -> Iterator[int]:
    """The widths that rowwise matrices take of what a colwise one gives."""
    return (row.inputs for row in rows if cut.outputs % row.inputs == 0)


def _is_norm(owner: ModuleNode) -> bool:
    return "norm" in (owner.spec.short_cls or owner.name).lower()
