"""The matrices that are cut on tp, and what is cut and cannot be computed so."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Final

from hpx.check.findings import Finding
from hpx.check.quantised import scales_of
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.plan import Pattern, ShardingPlan
from hpx.projections import Role as ProjectionRole
from hpx.projections import role_of, role_of_name
from hpx.roles.places import Places
from hpx.roles.types import Cut

__all__ = ["DECLARE", "Cuts", "output_dim_of", "tp_dim"]

DECLARE: Final = "replicate it, or declare the module under boundaries: in the plan"
"""The ways out where a cut tensor is in no layer that is known."""


class Cuts:
    """All matrices of a graph that are cut on tp.

    Attributes:
        tables: Embeddings cut on their rows.
        columns: Colwise matrices.
        rows: Rowwise ones.
        findings: What is cut and cannot be computed so.
    """

    def __init__(self, graph: ModuleGraph, plan: ShardingPlan, places: Places) -> None:
        self.graph = graph
        self.places = places
        self.findings: list[Finding] = []
        self.tables: list[Cut] = []
        self.columns: list[Cut] = []
        self.rows: list[Cut] = []
        self._packed = [Pattern.parse(entry.pattern) for entry in plan.packed]
        found = list(_cut_edges(graph))
        scales = {scale.id for node, _, _ in found for scale in scales_of(graph, node)}
        for node, owner, name in found:
            if node.id not in scales:  # cut with its weight, which is what counts
                self._sort(node, owner, name)

    @cached_property
    def by_place(self) -> dict[int, list[Cut]]:
        """The colwise matrices by the module around their layer."""
        found: dict[int, list[Cut]] = {}
        for cut in self.columns:
            found.setdefault(self.graph.nodes[cut.layer].parent, []).append(cut)
        return found

    def role(self, cut: Cut) -> ProjectionRole | None:
        """What a colwise matrix is to attention; what is declared packed counts as fused."""
        node = self.graph.tensor(cut.weight)
        known = role_of(self.graph, node)
        if known is not None and known[1] is not None:
            return known[1]
        names = self.graph.names(node.id) if self._packed else []
        if any(pattern.matches(name) for pattern in self._packed for name in names):
            return "qkv"
        return role_of_name(self.graph.nodes[cut.layer].name) if cut.name == "weight" else None

    def _sort(self, node: TensorNode, owner: int, name: str) -> None:
        """Note a cut matrix; find fault with what is cut and cannot be computed so."""
        assert node.layout is not None
        dim = node.layout.dim("tp")
        module = self.graph.module(owner)
        if node.props.get("localized") == "excluded":
            self._find(
                node.id,
                "it is cut and stays a DTensor",
                "boundaries take local tensors",
                "take it out of localize's exclude",
            )
        elif "Embedding" in module.spec.cls and len(node.shape) == 2:
            if dim == 0:
                sizes = (node.shape[1], node.shape[0])
                self.tables.append(Cut(node.id, owner, name, *sizes, owner))
            elif not self.places.counts_heads(module.parent, node.shape[1]):
                self._find(
                    node.id,
                    "an embedding is cut on its width",
                    "nothing puts its columns together",
                    "cut it on dim 0, or replicate it",
                )
        elif len(node.shape) == 2:
            out = output_dim_of(module, node)
            layer = self.places.layer(owner) if name == "weight" else owner
            cut = Cut(node.id, owner, name, node.shape[1 - out], node.shape[out], layer)
            (self.columns if dim == out else self.rows).append(cut)
        elif len(node.shape) == 1:
            self._vector(node, module)
        elif not (
            self.places.is_declared(owner) or self.places.counts_heads(owner, node.shape[dim or 0])
        ):
            self._find(
                node.id,
                f"it is cut on tp, and has {len(node.shape)} dims",
                "boundaries are known for linear layers and embeddings",
                DECLARE,
            )

    def _vector(self, node: TensorNode, module: ModuleNode) -> None:
        weight = module.children.get("weight") if node.name == "bias" else None
        sibling = self.graph.nodes[weight] if weight is not None else None
        if isinstance(sibling, TensorNode) and len(sibling.shape) == 2:
            if tp_dim(sibling) is None:
                self._find(
                    node.id,
                    "a bias is cut, and its layer is whole",
                    None,
                    "leave it to its weight, or replicate it",
                )
        elif self.places.region_of(module.id) is None and not self.places.is_declared(module.id):
            self._find(
                node.id,
                "a vector is cut on tp outside any region",
                "what it is added to or multiplied with is whole",
                DECLARE,
            )

    def _find(self, node: int, what: str, why: str | None, fix: str) -> None:
        self.findings.append(Finding(node, what, why, fix))


def _cut_edges(graph: ModuleGraph) -> Iterator[tuple[TensorNode, int, str]]:
    """Parameters that are cut on tp, with each owner and name that they have there."""
    for node in graph.parameters():
        if tp_dim(node) is not None:
            for owner, name in ((node.parent, node.name), *node.more):
                yield node, owner, name


def tp_dim(node: TensorNode) -> int | None:
    """The dim that tp cuts, if any."""
    return None if node.layout is None else node.layout.dim("tp")


def output_dim_of(owner: ModuleNode, node: TensorNode) -> int:
    """The dim of a layer's tensor that counts its outputs."""
    return 1 if len(node.shape) == 2 and owner.spec.short_cls == "Conv1D" else 0
