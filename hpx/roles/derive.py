"""How boundaries are found: cut matrices, what pairs with what, what nobody takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final, Literal

from hpx.check.findings import Finding
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.plan import Pattern, ShardingPlan
from hpx.projections import Role as ProjectionRole
from hpx.projections import is_projection, role_of, role_of_name
from hpx.regions import regions
from hpx.roles.declared import declare, declared_modules
from hpx.roles.flow import Flow, pairs
from hpx.roles.places import Places, of_all_layers
from hpx.roles.types import Cut, Role, Roles

__all__ = ["Deriver"]

_DECLARE: Final = "replicate it, or declare the module under boundaries: in the plan"


class Deriver:
    """Finds the boundaries of one graph."""

    def __init__(self, graph: ModuleGraph, plan: ShardingPlan) -> None:
        self.graph = graph
        declared, self.findings = declared_modules(graph, plan)
        found = regions(graph)
        self.undone = [one for one in found if one in declared and declared[one].none]
        self.places = Places(graph, set(found) - set(self.undone), declared)
        self.packed = [Pattern.parse(entry.pattern) for entry in plan.packed]
        self.found: dict[int, Role] = {}
        self.fed: set[int] = set()
        self.whole: list[int] = []
        self.partial: list[int] = []
        self.widths: list[tuple[int, str, int]] = []
        self.tables: list[Cut] = []
        self.columns: list[Cut] = []
        self.rows: list[Cut] = []
        for node, owner, name in _cut_edges(graph):
            self._sort(node, owner, name)

    def roles(self) -> Roles:
        """Everything that was found."""
        for cut in self.tables:
            self._add(Role(cut.owner, "embedding", "embedding", output="sum", size=cut.outputs))
        inside: dict[int | None, list[Cut]] = {}
        for row in self.rows:
            inside.setdefault(self.places.region_of(row.owner), []).append(row)
        columns: dict[int | None, list[Cut]] = {}
        for column in self.columns:
            columns.setdefault(self.places.region_of(column.owner), []).append(column)
        outer = inside.get(None, [])
        for region in self.places.regions:
            self._region(region, columns.get(region, []), inside.get(region, []), outer)
        for row in self.rows:
            self._rowwise(row, columns.get(None, []))
        for column in self.columns:
            self._colwise(column)
        embedded = {cut.weight for cut in self.tables}
        for column in columns.get(None, []):
            self._alone(column, embedded)
        for region in self.undone:
            self._undo(region)
        self.findings += declare(self.found, self.places, self.columns, self.rows)
        order = {node.id: at for at, node in enumerate(self.graph.modules())}
        boundaries = sorted(self.found.values(), key=lambda role: order[role.module])
        self.findings.sort(key=lambda finding: finding.node)
        return Roles(boundaries, self.findings, self.whole, self.partial, self.widths)

    # -- cut tensors -------------------------------------------------------------------------

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
            out = _output_dim(module, node)
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
                _DECLARE,
            )

    def _vector(self, node: TensorNode, module: ModuleNode) -> None:
        weight = module.children.get("weight") if node.name == "bias" else None
        sibling = self.graph.nodes[weight] if weight is not None else None
        if isinstance(sibling, TensorNode) and len(sibling.shape) == 2:
            if _tp_dim(sibling) is None:
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
                _DECLARE,
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
            self._find(cut.weight, "a bare matrix is rowwise outside any region", None, _DECLARE)
        if cut.name != "weight":
            return
        self._beside_base(cut)
        bias = self.graph.module(cut.owner).children.get("bias")
        path = None
        if bias is not None:
            path = places.relative(bias, cut.layer)
            if _tp_dim(self.graph.tensor(bias)) is not None:
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
            giving = self._by_place.get(place, columns)
        with_roles = [(cut, self._role(cut)) for cut in giving]
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
            self._check_whole(region, outputs, {row.layer for row in rows})
        output: Literal["sum"] | None = "sum" if bare else None
        role = "attention" if named else "mlp"
        self._add(Role(region, "region", role, output=output, rowwise=tuple(layers)))

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

    @cached_property
    def _by_place(self) -> dict[int, list[Cut]]:
        """The colwise matrices by the module around their layer."""
        found: dict[int, list[Cut]] = {}
        for cut in self.columns:
            found.setdefault(self.graph.nodes[cut.layer].parent, []).append(cut)
        return found

    def _role(self, cut: Cut) -> ProjectionRole | None:
        """What a colwise matrix is to attention; what is declared packed counts as fused."""
        node = self.graph.tensor(cut.weight)
        known = role_of(self.graph, node)
        if known is not None and known[1] is not None:
            return known[1]
        names = self.graph.names(node.id) if self.packed else []
        if any(pattern.matches(name) for pattern in self.packed for name in names):
            return "qkv"
        return role_of_name(self.graph.nodes[cut.layer].name) if cut.name == "weight" else None

    def _colwise(self, cut: Cut) -> None:
        """What holds for a colwise layer anywhere: its bias is cut with it."""
        owner = self.graph.module(cut.owner)
        if owner.spec.short_cls == "Conv1D" and dict(owner.spec.attributes).get("nf"):
            self.widths.append((cut.owner, "nf", cut.outputs))  # it views its outputs by it
        bias = owner.children.get("bias") if cut.name == "weight" else None
        if bias is not None and _tp_dim(self.graph.tensor(bias)) is None:
            self._find(
                bias,
                "the bias of a colwise layer is whole",
                "a rank computes some of the outputs",
                "leave it to its weight, or cut both",
            )

    def _alone(self, cut: Cut, embedded: set[int]) -> None:
        """A colwise layer outside any region: a region by itself, or a head."""
        if cut.name == "weight" and any(self.places.takes(row, cut) for row in self.rows):
            self._add(Role(cut.layer, "region", "colwise"))
            self._beside_base(cut)
        elif cut.name == "weight" and self.places.is_head(cut, embedded):
            self._add(Role(cut.layer, "head", "lm_head", output="gather", size=cut.outputs))
        elif not self.places.is_declared(cut.owner):
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

    # -- whole tensors inside regions --------------------------------------------------------

    def _check_whole(self, region: int, widths: set[int], summed: set[int]) -> None:
        """Whole tensors in a region as wide as the stream may stand before or after the sum."""
        fix = ""
        for node in self.graph.parameters(region):
            if node.layout is None or node.layout.shards or not node.shape:
                continue
            owner = self.graph.module(node.parent)
            other = is_projection(self.graph, node) or "Embedding" in owner.spec.cls
            if other or node.shape[_output_dim(owner, node)] not in widths:
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
        if hidden is not None and hidden.isdisjoint(row.outputs for row in self.rows):
            return f"{said}, as it stands before the cut layers or after the sum"
        return (
            f"{said} if it stands before the cut layers or after the sum, {{output: R}} if between"
            " them"
        )

    def _beside_base(self, cut: Cut) -> None:
        """Whole matrices of a LoRA layer: they read or give what is cut, or a part of a sum."""
        if cut.layer == cut.owner:
            return
        for node in self.graph.parameters(cut.layer):
            whole = node.layout is not None and not node.layout.shards
            if whole and len(node.shape) == 2 and not node.props.get("reduce"):
                self.partial.append(node.id)

    def _undo(self, region: int) -> None:
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
        widths = {row.outputs for row in self.rows}
        for node in self.graph.parameters(region):
            if not node.props.get("reduce"):
                continue
            owner = self.graph.module(node.parent)
            if node.shape and node.shape[_output_dim(owner, node)] in widths:
                continue
            if hidden is None or node.spec.num_elements == 1 or hidden & set(node.shape):
                yield node

    def _hidden(self, region: int) -> set[int] | None:
        """The widths between the cut layers of a region; None if they are not all known pairs."""
        inside = [cut for cut in self.columns if region in self.places.above(cut.owner)]
        columns = [(cut, self._role(cut)) for cut in inside]
        rows = [row for row in self.rows if region in self.places.above(row.owner)]
        flow = pairs(columns, rows)
        if any(role is not None or cut.weight not in flow.taken for cut, role in columns):
            return None
        return {width for cut in inside for width in (cut.outputs, *_takers(cut, rows))}

    def _add(self, role: Role) -> None:
        self.found[role.module] = role

    def _find(self, node: int, what: str, why: str | None, fix: str) -> None:
        self.findings.append(Finding(node, what, why, fix))


def _cut_edges(graph: ModuleGraph) -> Iterator[tuple[TensorNode, int, str]]:
    """Parameters that are cut on tp, with each owner and name that they have there."""
    for node in graph.parameters():
        if _tp_dim(node) is not None:
            for owner, name in ((node.parent, node.name), *node.more):
                yield node, owner, name


def _takers(cut: Cut, rows: Sequence[Cut]) -> Iterator[int]:
    """The widths that rowwise matrices take of what a colwise one gives."""
    return (row.inputs for row in rows if cut.outputs % row.inputs == 0)


def _tp_dim(node: TensorNode) -> int | None:
    return None if node.layout is None else node.layout.dim("tp")


def _output_dim(owner: ModuleNode, node: TensorNode) -> int:
    return 1 if len(node.shape) == 2 and owner.spec.short_cls == "Conv1D" else 0


def _is_norm(owner: ModuleNode) -> bool:
    return "norm" in (owner.spec.short_cls or owner.name).lower()
