"""How boundaries are found: cut matrices, what pairs with what, what nobody takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from hpx.check.findings import Finding
from hpx.graph.graph import ModuleGraph
from hpx.plan import ShardingPlan
from hpx.projections import Role as ProjectionRole
from hpx.projections import is_projection
from hpx.regions import regions
from hpx.roles.cuts import DECLARE, Cuts, tp_dim
from hpx.roles.declared import declare, declared_modules
from hpx.roles.edges import check_sums
from hpx.roles.flow import Flow, pairs
from hpx.roles.places import Places
from hpx.roles.types import Cut, Role, Roles
from hpx.roles.whole import WholeTensors

__all__ = ["Deriver"]


class Deriver:
    """Finds the boundaries of one graph."""

    def __init__(self, graph: ModuleGraph, plan: ShardingPlan) -> None:
        self.graph = graph
        declared, self.findings = declared_modules(graph, plan)
        found = regions(graph)
        self.undone = [one for one in found if one in declared and declared[one].none]
        self.places = Places(graph, set(found) - set(self.undone), declared)
        self.cuts = Cuts(graph, plan, self.places)
        self.beside = WholeTensors(graph, self.places, self.cuts)
        self.found: dict[int, Role] = {}
        self.fed: set[int] = set()
        self.widths: list[tuple[int, str, int]] = []

    def roles(self) -> Roles:
        """Everything that was found."""
        for cut in self.cuts.tables:
            self._add(Role(cut.owner, "embedding", "embedding", output="sum", size=cut.outputs))
        inside: dict[int | None, list[Cut]] = {}
        for row in self.cuts.rows:
            inside.setdefault(self.places.region_of(row.owner), []).append(row)
        columns: dict[int | None, list[Cut]] = {}
        for column in self.cuts.columns:
            columns.setdefault(self.places.region_of(column.owner), []).append(column)
        outer = inside.get(None, [])
        for region in self.places.regions:
            self._region(region, columns.get(region, []), inside.get(region, []), outer)
        for row in self.cuts.rows:
            self._rowwise(row, columns.get(None, []))
        for column in self.cuts.columns:
            self._colwise(column)
        embedded = {cut.weight for cut in self.cuts.tables}
        for column in columns.get(None, []):
            self._alone(column, embedded)
        for region in self.undone:
            self.beside.undo(region)
        self.findings += [*self.cuts.findings, *self.beside.findings]
        self.findings += declare(self.found, self.places, self.cuts)
        self.findings += check_sums(self.graph, self.found, self.places, self.cuts)
        order = {node.id: at for at, node in enumerate(self.graph.modules())}
        boundaries = sorted(self.found.values(), key=lambda role: order[role.module])
        self.findings.sort(key=lambda finding: finding.node)
        return Roles(
            boundaries,
            self.findings,
            self.beside.whole,
            self.beside.partial,
            self.widths,
            columns={cut.owner: cut.outputs for cut in self.cuts.columns},
        )

    # -- boundaries --------------------------------------------------------------------------

    def _rowwise(self, cut: Cut, columns: list[Cut]) -> None:
        """A rowwise layer is summed; its input has to come from a colwise one.

        Args:
            cut: The layer.
            columns: The colwise layers outside of any region.
        """
        places = self.places
        outside = places.region_of(cut.owner) is None and not places.is_declared(cut.owner)
        if (
            outside
            and cut.weight not in self.fed
            and not any(places.takes(cut, column) for column in columns)
        ):
            self._not_fed(cut)
        elif outside and cut.name != "weight":
            self._find(cut.weight, "a bare matrix is rowwise outside any region", None, DECLARE)
        if cut.name != "weight":
            return
        self.beside.beside_base(cut)
        bias = self.graph.module(cut.owner).children.get("bias")
        path = None
        if bias is not None:
            path = places.relative(bias, cut.layer)
            if tp_dim(self.graph.tensor(bias)) is not None:
                self._find(
                    bias,
                    "the bias of a rowwise layer is cut",
                    "it is added once, after the sum, and whole",
                    "leave it to its weight, or replicate it",
                )
        known = self.found.get(cut.layer)
        if known is None:
            self._add(Role(cut.layer, "rowwise", "rowwise", output="sum", bias=path))
        elif path is not None:
            self._add(replace(known, bias=path))

    def _region(
        self, region: int, columns: list[Cut], rows: list[Cut], outer: Sequence[Cut]
    ) -> None:
        """A region: what its colwise layers give is taken inside it, or beside it.

        Args:
            region: The region.
            columns: The colwise matrices in it.
            rows: The rowwise ones in it.
            outer: Those outside of any region.
        """
        place, giving = region, columns
        if "base_layer" in self.graph.module(region).children:  # LoRA around one of q, k and v
            place = self.graph.nodes[region].parent
            giving = self.cuts.by_place.get(place, columns)
        with_roles = [(cut, self.cuts.role(cut)) for cut in giving]
        beside = [] if rows else [row for row in outer if self.places.beside(row, region)]
        flow = pairs(with_roles, rows or beside)
        taken = [row for row in rows or beside if row.weight in flow.fed]
        whole = self.places.whole_inputs(place)
        if not rows and any(cut.outputs in whole for cut in giving):
            taken = []  # what takes them stands in the region, and is whole
        self.fed.update(row.weight for row in taken)
        if rows and region not in self.places.declared:
            self._widths_meet(with_roles, rows, flow, whole)
        elif not taken:
            for cut in columns:
                self._not_taken(cut, "the module would give a part of its result on every rank")
        bare = [row for row in rows if row.name != "weight"]
        if bare and len(bare) < len(rows):
            for row in bare:
                self._find(
                    row.weight,
                    "a bare rowwise matrix beside rowwise layers",
                    "what is summed where, is not known",
                    "replicate it",
                )
        layers = {self.places.relative(row.layer, region): None for row in rows if row not in bare}
        named = any(is_projection(self.graph, self.graph.tensor(cut.weight)) for cut in columns)
        if region not in self.places.declared:
            outputs = {row.outputs for row in rows or taken if not self._is_adapter(row)}
            self.beside.check_region(region, outputs, {row.layer for row in rows})
        output: Literal["sum"] | None = "sum" if bare else None
        role = "attention" if named else "mlp"
        inside = {
            self.places.relative(column.layer, region): None
            for column in columns
            if column.name == "weight" and column.layer != region
        }
        rowwise, colwise = tuple(layers), tuple(inside)
        self._add(Role(region, "region", role, output=output, rowwise=rowwise, colwise=colwise))

    def _is_adapter(self, cut: Cut) -> bool:
        """Whether a matrix is LoRA's own, which gives the rank of the adapter."""
        return cut.layer != cut.owner and self.graph.module(cut.owner).name != "base_layer"

    def _widths_meet(
        self,
        columns: Sequence[tuple[Cut, ProjectionRole | None]],
        rows: Sequence[Cut],
        flow: Flow,
        whole: Mapping[int, str],
    ) -> None:
        """In a region: what a rowwise matrix takes, and what takes the outputs of a colwise one."""
        for row in rows:
            if row.weight not in flow.fed:
                self._not_fed(row)
        for cut, role in columns:
            if cut.weight in flow.taken:
                continue
            taker = whole.get(cut.outputs)
            if taker is not None:
                self._not_taken(cut, f"{taker} takes as many, and is whole")
            elif role is not None:
                self._not_taken(cut, "what takes heads beside it has another width, or is whole")

    def _colwise(self, cut: Cut) -> None:
        """What holds for a colwise layer anywhere: its bias is cut with it."""
        owner = self.graph.module(cut.owner)
        if owner.spec.short_cls == "Conv1D" and dict(owner.spec.attributes).get("nf"):
            self.widths.append((cut.owner, "nf", cut.outputs))  # it views its outputs by it
        bias = owner.children.get("bias") if cut.name == "weight" else None
        if bias is not None and tp_dim(self.graph.tensor(bias)) is None:
            self._find(
                bias,
                "the bias of a colwise layer is whole",
                "a rank computes some of the outputs",
                "leave it to its weight, or cut both",
            )

    def _alone(self, cut: Cut, embedded: set[int]) -> None:
        """A colwise layer outside any region: a region by itself, or a head."""
        if cut.name == "weight" and any(self.places.takes(row, cut) for row in self.cuts.rows):
            self._add(Role(cut.layer, "region", "colwise"))
            self.beside.beside_base(cut)
        elif cut.name == "weight" and self.places.is_head(cut, embedded):
            self._add(Role(cut.layer, "head", "lm_head", output="gather", size=cut.outputs))
        elif not self.places.is_declared(cut.owner):
            around = self.graph.nodes[cut.layer].parent
            taker = self.places.whole_inputs(around).get(cut.outputs) if around >= 0 else None
            if taker is not None:
                self._not_taken(cut, f"{taker} takes as many, and is whole")
            else:
                self._not_taken(cut, f"it has {cut.outputs}, and no layer near it takes as many")

    def _not_fed(self, cut: Cut) -> None:
        self._find(
            cut.weight,
            "a rowwise matrix takes what no colwise one gives",
            f"a rank takes some of {cut.inputs} inputs, and what comes in is whole",
            "cut the layer before it on its outputs, or replicate it",
        )

    def _not_taken(self, cut: Cut, why: str) -> None:
        self._find(
            cut.weight,
            "its outputs are cut, and no rowwise matrix takes them",
            why,
            "cut the matrix that follows on its inputs, or replicate it",
        )

    def _add(self, role: Role) -> None:
        self.found[role.module] = role

    def _find(self, node: int, what: str, why: str | None, fix: str) -> None:
        self.findings.append(Finding(node, what, why, fix))
