"""Attention modules whose heads are cut by tp, and the integers in them that count heads.

Which modules: those with a q, k, v or fused qkv projection whose *output* dim is cut on tp, read
off the layouts in the graph. How many heads: their integer attributes, else the rows of the
projection over the head dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, NamedTuple, TypeAlias, cast

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.mesh import MeshSpec

__all__ = [
    "KV_COUNTS",
    "PROTECTED",
    "Q_COUNTS",
    "Attention",
    "Count",
    "Projection",
    "attentions",
    "is_projection_name",
    "output_dim",
]

Role: TypeAlias = Literal["q", "k", "v", "qkv", "kv"]

Q_COUNTS: Final = (
    "num_heads",
    "num_attention_heads",
    "n_heads",
    "num_attn_heads",
    "n_head",
    "heads",
    "num_head",
    "n_local_heads",
)
"""Attributes that count query heads."""
KV_COUNTS: Final = ("num_key_value_heads", "num_kv_heads", "kv_heads", "n_kv_heads")
"""Attributes that count key and value heads."""
WIDTHS: Final = ("split_size", "all_head_size")
"""Attributes that are the width of a sharded projection, if equal to it."""
AMBIGUOUS_WIDTHS: Final = ("embed_dim", "hidden_size", "inner_dim", "d_model")
"""Attributes that may be the width of a projection or of the model."""
HEAD_DIMS: Final = ("head_dim", "head_size", "attention_head_size")
"""Attributes that are the size of one head; never divided."""
PROTECTED: Final = (*HEAD_DIMS, "num_key_value_groups")
"""Attributes that sharding leaves as they are."""

_ROLES: Final[Mapping[str, Role]] = {
    **dict.fromkeys(
        ("q", "q_proj", "wq", "query", "q_lin", "to_q", "q_b_proj", "query_proj", "q_linear"), "q"
    ),
    **dict.fromkeys(("k", "k_proj", "wk", "key", "k_lin", "to_k", "key_proj", "k_linear"), "k"),
    **dict.fromkeys(("v", "v_proj", "wv", "value", "v_lin", "to_v", "value_proj", "v_linear"), "v"),
    **dict.fromkeys(("kv_b_proj", "kv_proj", "to_kv", "wkv"), "kv"),
    **dict.fromkeys(
        ("qkv", "qkv_proj", "c_attn", "query_key_value", "in_proj", "in_proj_weight", "Wqkv")
        + ("wqkv", "to_qkv"),
        "qkv",
    ),
}


def is_projection_name(name: str) -> bool:
    """Whether a module or parameter of this name is usually a q, k, v or fused projection."""
    return name in _ROLES


class Projection(NamedTuple):
    """A q, k, v or fused projection: its weight, the module that owns it, its output width."""

    role: Role
    weight: int
    name: str
    width: int
    cut: bool
    """Whether its output dim is cut on tp."""


class Count(NamedTuple):
    """An integer attribute: on which module, its name and value, and what it counts."""

    node: int
    name: str
    value: int
    counts: Literal["q", "kv", "width"]


@dataclass(frozen=True)
class Attention:
    """An attention module of which a projection is cut on heads.

    Attributes:
        owner: The module that holds the projections.
        projections: All of them that were found, cut or not.
        counts: Attributes that count heads or are a cut width.
        kept: Attributes (node, name, value) that stay as they are.
        head_dim: Size of one head, or None where nothing tells.
        head_dim_from: What told it.
        config: Head counts of the model's config, a last resort.
    """

    owner: int
    projections: tuple[Projection, ...]
    counts: tuple[Count, ...]
    kept: tuple[tuple[int, str, int], ...]
    head_dim: int | None
    head_dim_from: str
    config: Mapping[str, int]

    @property
    def automatic(self) -> tuple[Count, ...]:
        """The attributes that ``update-heads`` divides without being told."""
        return self.counts

    @cached_property
    def num_heads(self) -> int | None:
        """Query heads before sharding."""
        return self._count("q", ("q", "qkv"), "num_attention_heads")

    @cached_property
    def num_kv_heads(self) -> int | None:
        """Key and value heads before sharding; None where they are not told apart."""
        return self._count("kv", ("k", "v"), "num_key_value_heads")

    def _count(self, kind: str, roles: tuple[Role, ...], in_config: str) -> int | None:
        for count in self.counts:
            if count.counts == kind:
                return count.value
        for projection in self.projections:
            if projection.role in roles and projection.role != "qkv" and self.head_dim:
                heads, rest = divmod(projection.width, self.head_dim)
                if rest == 0:
                    return heads
        return self.config.get(in_config) if self._fits_config() else None

    def _fits_config(self) -> bool:
        """Whether the config's counts can be those of this module: it has to know its head dim."""
        return self.head_dim is not None or any(p.role in ("kv", "qkv") for p in self.projections)

    def cut(self, *roles: Role) -> list[Projection]:
        """The projections of these roles whose output is cut on tp."""
        return [p for p in self.projections if p.role in roles and p.cut]


def output_dim(graph: ModuleGraph, node: TensorNode) -> int:
    """The dim of a projection's weight (or bias) that indexes its outputs."""
    owner = graph.nodes[node.parent]
    transposed = isinstance(owner, ModuleNode) and owner.spec.short_cls == "Conv1D"
    return 1 if transposed and len(node.shape) == 2 else 0


def attentions(graph: ModuleGraph, mesh: MeshSpec) -> list[Attention]:
    """The attention modules with a projection cut on tp, in the order of the tree."""
    if mesh.size("tp", 1) == 1:
        return []
    owners = dict.fromkeys(
        owner
        for node in graph.parameters()
        if node.layout is not None and node.layout.dim("tp") is not None
        for owner in _owner_of_cut(graph, node)
    )
    return [_attention(graph, owner) for owner in owners]


def _owner_of_cut(graph: ModuleGraph, node: TensorNode) -> Iterator[int]:
    """The attention module, if the node is a projection in it whose outputs are cut."""
    found = _role(graph, node)
    if found is None or node.layout is None:
        return
    owner, role = found
    if node.layout.dim("tp") != output_dim(graph, node):
        return
    # Without a telling name the module itself has to count heads; a child that does (the attention
    # inside a decoder layer whose fc1 is cut) says nothing of this projection.
    if role is not None or any(name in Q_COUNTS for name, _ in graph.module(owner).spec.attributes):
        yield owner


def _role(graph: ModuleGraph, node: TensorNode) -> tuple[int, Role | None] | None:
    """(attention module, role) of a projection's weight; the role is None where no name tells."""
    if len(node.shape) != 2:
        return None
    if node.name in _ROLES:
        return node.parent, _ROLES[node.name]
    owner = graph.module(node.parent)
    if node.name != "weight" or owner.parent < 0 or "Embedding" in owner.spec.cls:
        return None
    return owner.parent, _ROLES.get(owner.name)


def _attention(graph: ModuleGraph, owner: int) -> Attention:
    counts = _counts(graph, owner)
    projections = tuple(_projections(graph, owner))
    widths = {p.width for p in projections if p.cut}
    attributes = list(_attributes(graph, owner))
    counts += [
        Count(node, name, value, "width")
        for node, name, value in attributes
        if name in WIDTHS and value in widths
    ]
    config = {
        key: value
        for key, value in cast(dict[str, object], graph.hints.get("config", {})).items()
        if isinstance(value, int) and not isinstance(value, bool)
    }
    head_dim, told_by = _head_dim(attributes, counts, projections)
    kept = tuple(
        (node, name, value)
        for node, name, value in attributes
        if name in PROTECTED or (name in AMBIGUOUS_WIDTHS and value in widths)
    )
    return Attention(owner, projections, tuple(counts), kept, head_dim, told_by, config)


def _attributes(graph: ModuleGraph, owner: int) -> Iterator[tuple[int, str, int]]:
    """The integers of the module and of its children, as they came."""
    for node in [graph.nodes[owner], *graph.children(owner)]:
        if isinstance(node, ModuleNode):
            for name, value in node.spec.attributes:
                yield node.id, name, value


def _counts(graph: ModuleGraph, owner: int) -> list[Count]:
    found: list[Count] = []
    for node, name, value in _attributes(graph, owner):
        if name in Q_COUNTS:
            found.append(Count(node, name, value, "q"))
        elif name in KV_COUNTS:
            found.append(Count(node, name, value, "kv"))
    return found


def _projections(graph: ModuleGraph, owner: int) -> Iterator[Projection]:
    for child in graph.children(owner):
        weight = child
        if isinstance(child, ModuleNode):
            inner = child.children.get("weight")
            if inner is None:
                continue
            weight = graph.nodes[inner]
        if not isinstance(weight, TensorNode) or weight.kind != "parameter":
            continue
        found = _role(graph, weight)
        if found is None or found[0] != owner or found[1] is None:
            continue
        dim = output_dim(graph, weight)
        layout = weight.layout
        cut = layout is not None and layout.dim("tp") == dim
        yield Projection(found[1], weight.id, child.name, weight.shape[dim], cut)


def _head_dim(
    attributes: list[tuple[int, str, int]],
    counts: list[Count],
    projections: tuple[Projection, ...],
) -> tuple[int | None, str]:
    for _, name, value in attributes:
        if name in HEAD_DIMS and value > 0:
            return value, name
    heads = next((count for count in counts if count.counts == "q"), None)
    query = next((p for p in projections if p.role == "q"), None)
    if heads and query and heads.value > 0 and query.width % heads.value == 0:
        return query.width // heads.value, f"{query.name} rows / {heads.name}"
    return None, ""
