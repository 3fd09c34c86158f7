"""Attention modules whose heads are cut by tp, and the integers in them that count heads.

Which modules: those with a q, k, v or fused qkv projection whose *output* dim is cut on tp, read
off the layouts in the graph. How many heads: their integer attributes, else the rows of the
projection over the head dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, NamedTuple, cast

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.mesh import MeshSpec
from hpx.projections import Role, is_projection, layer_weight, output_dim, role_of

__all__ = [
    "CONFIG",
    "KV_COUNTS",
    "PROTECTED",
    "Q_COUNTS",
    "Attention",
    "Count",
    "Heads",
    "Projection",
    "attention_at",
    "attentions",
    "heads_of",
    "is_projection",
    "output_dim",
]

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
CONFIG: Final = "config."
"""Before the name of a count that a module's code reads in its config, at each call."""
HEAD_DIMS: Final = ("head_dim", "head_size", "attention_head_size")
"""Attributes that are the size of one head; never divided."""
PROTECTED: Final = (*HEAD_DIMS, "num_key_value_groups")
"""Attributes that sharding leaves as they are."""


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
        unnamed: Where no projection has a telling name: whether those that the module counts are
            cut, are whole, or may be either.
    """

    owner: int
    projections: tuple[Projection, ...]
    counts: tuple[Count, ...]
    kept: tuple[tuple[int, str, int], ...]
    head_dim: int | None
    head_dim_from: str
    config: Mapping[str, int]
    unnamed: Literal["cut", "whole", "unclear"]

    @property
    def automatic(self) -> tuple[Count, ...]:
        """The attributes that ``update-heads`` divides without being told.

        Counts of heads whose projections stay whole are not among them.
        """
        return tuple(
            count
            for count in self.counts
            if count.counts == "width" or (self.q_is_cut if count.counts == "q" else self.kv_is_cut)
        )

    @property
    def whole(self) -> tuple[Count, ...]:
        """Counts that stay, as the projections that they count stay whole."""
        if self.unclear:
            return ()
        return tuple(count for count in self.counts if count not in self.automatic)

    @property
    def unclear(self) -> tuple[Count, ...]:
        """Counts of which nothing tells whether what they count is cut: they stay, unless declared.

        The module holds cut matrices and no known projection, and others may be its attention.
        """
        return self.counts if not self.projections and self.unnamed == "unclear" else ()

    @cached_property
    def q_is_cut(self) -> bool:
        """Whether a rank holds a part of the query heads."""
        if not self.projections:
            return self.unnamed == "cut"
        return bool(self.cut("q", "qkv"))

    @cached_property
    def kv_is_cut(self) -> bool:
        """Whether a rank holds a part of the key and value heads."""
        if any(p.role != "q" for p in self.projections):
            return bool(self.cut("k", "v", "kv", "qkv"))
        return self.q_is_cut  # nothing tells keys apart: they go with the queries

    @cached_property
    def num_heads(self) -> int | None:
        """Query heads before sharding."""
        return self._count("q", ("q",), "num_attention_heads")

    @cached_property
    def num_kv_heads(self) -> int | None:
        """Key and value heads before sharding; None where they are not told apart."""
        return self._count("kv", ("k", "v"), "num_key_value_heads")

    def _count(self, kind: str, roles: tuple[Role, ...], in_config: str) -> int | None:
        for count in self.counts:
            if count.counts == kind:
                return count.value
        configured = self.config.get(in_config) if self._fits_config() else None
        for projection in self.projections:
            if projection.role in roles and self.head_dim:
                heads, rest = divmod(projection.width, self.head_dim)
                # A query with a gate beside each head has twice the rows.
                if rest == 0 and heads != 2 * (configured or 0):
                    return heads
        return configured

    def label(self, kind: str) -> str:
        """What says how many heads of a kind there are: an attribute, shapes, or the config."""
        for count in self.counts:
            if count.counts == kind:
                return count.name
        roles = ("q",) if kind == "q" else ("k", "v")
        name = next((p.name for p in self.projections if p.role in roles), None)
        if name is not None and self.head_dim:
            return f"{kind} heads: {name} rows / {self.head_dim_from} {self.head_dim}"
        return f"{kind} heads of the config"

    def _fits_config(self) -> bool:
        """Whether the config's counts can be those of this module: it has to know its head dim."""
        return self.head_dim is not None or any(p.role in ("kv", "qkv") for p in self.projections)

    def cut(self, *roles: Role) -> list[Projection]:
        """The projections of these roles whose output is cut on tp."""
        return [p for p in self.projections if p.role in roles and p.cut]


def attentions(graph: ModuleGraph, mesh: MeshSpec) -> list[Attention]:
    """The attention modules with a projection cut on tp, in the order of the tree."""
    if mesh.size("tp", 1) == 1:
        return []
    named: dict[int, bool] = {}
    for node in graph.parameters():
        if node.layout is not None and node.layout.dim("tp") is not None:
            for owner, is_named in _owner_of_cut(graph, node):
                named[owner] = named.get(owner, False) or is_named
    # A layer that counts heads too is not the attention module, if that one is inside it.
    inner = {above for owner in named if named[owner] for above in _above(graph, owner)}
    return [_attention(graph, owner) for owner in named if named[owner] or owner not in inner]


def attention_at(graph: ModuleGraph, owner: int) -> Attention:
    """What is known of the heads of a module, whether anything in it is cut or not."""
    return _attention(graph, owner)


class Heads(NamedTuple):
    """How many heads lie along a dim: what says so, the number, and what all counts share."""

    label: str
    number: int
    common: int


def heads_of(graph: ModuleGraph, node: TensorNode, dim: int) -> Heads | None:
    """The heads along a dim of a projection's weight, or of the matrix that takes them.

    Args:
        graph: The graph; layouts do not matter.
        node: The weight.
        dim: The dim that would be cut.
    """
    found = role_of(graph, node)
    if found is None:
        return None
    owner, role = found
    attention = _attention(graph, owner)
    query = next((p for p in attention.projections if p.role == "q"), None)
    if role is None and (query is None or node.shape[dim] != query.width):
        return None
    kind = "kv" if role in ("k", "v") else "q"
    number = attention.num_kv_heads if kind == "kv" else attention.num_heads
    told = any(count.counts == "kv" for count in attention.counts)
    if query is not None and node.shape[dim] == query.width and not told:
        kind, number = "q", attention.num_heads  # as many keys as queries, and one count for both
    if not number:
        return None
    known = [n for n in (attention.num_heads, attention.num_kv_heads) if n]
    return Heads(attention.label(kind), number, math.gcd(*known))


def _above(graph: ModuleGraph, node_id: int) -> Iterator[int]:
    while (node_id := graph.nodes[node_id].parent) >= 0:
        yield node_id


def _owner_of_cut(graph: ModuleGraph, node: TensorNode) -> Iterator[tuple[int, bool]]:
    """The attention module of a projection whose outputs are cut, and whether a name tells it."""
    found = role_of(graph, node)
    if found is None or node.layout is None:
        return
    owner, role = found
    if node.layout.dim("tp") != output_dim(graph, node):
        return
    # Without a telling name the module itself has to count heads; a child that does (the attention
    # inside a decoder layer whose fc1 is cut) says nothing of this projection.
    if role is not None or any(name in Q_COUNTS for name, _ in graph.module(owner).spec.attributes):
        yield owner, role is not None


def _attention(graph: ModuleGraph, owner: int) -> Attention:
    counts = _counts(graph, owner)
    projections = tuple(_projections(graph, owner))
    attributes = list(_attributes(graph, owner))
    config = _config(graph)
    head_dim, told_by = _head_dim(attributes, counts, projections, config)
    widths = {p.width for p in projections if p.cut}
    if head_dim and any(p.cut and p.role == "qkv" for p in projections):
        widths |= {head_dim * count.value for count in counts}  # those of the parts
    orders = (graph.tensor(p.weight).order for p in projections if p.cut)
    widths |= {size for order in orders if order is not None for _, size in order.parts}
    counts += [
        Count(node, name, value, "width")
        for node, name, value in attributes
        if name in WIDTHS and value in widths
    ]
    kept = tuple(
        (node, name, value)
        for node, name, value in attributes
        if name in PROTECTED or (name in AMBIGUOUS_WIDTHS and value in widths)
    )
    unnamed: Literal["cut", "whole", "unclear"] = "cut"
    if not projections:
        unnamed = _unnamed(graph, owner)
    return Attention(owner, projections, tuple(counts), kept, head_dim, told_by, config, unnamed)


def _unnamed(graph: ModuleGraph, owner: int) -> Literal["cut", "whole", "unclear"]:
    """Whether the projections of a module are cut, where none of its layers has a telling name.

    They are where no other layer could be meant: every layer is cut, and they are not two of which
    one widens and the other narrows, as in an mlp.
    """
    if any(is_projection(graph, node) for node in graph.parameters(owner)):
        return "whole"  # in a module of its own; were they cut, this one would not be asked about
    widths: list[tuple[int, int]] = []
    narrowed: set[int] = set()
    whole = False
    for child in graph.children(owner):
        weight = layer_weight(graph, child) if isinstance(child, ModuleNode) else child
        if not isinstance(weight, TensorNode) or len(weight.shape) != 2:
            continue
        if weight.kind != "parameter" or "Embedding" in graph.module(weight.parent).spec.cls:
            continue
        dim = output_dim(graph, weight)
        cut = None if weight.layout is None else weight.layout.dim("tp")
        if cut is None:
            whole = True
        elif cut == dim:
            widths.append((weight.shape[1 - dim], weight.shape[dim]))
        else:
            narrowed.add(weight.shape[1 - dim])
    if not widths:
        return "cut"
    is_mlp = any(outputs > inputs and outputs in narrowed for inputs, outputs in widths)
    return "unclear" if whole or is_mlp else "cut"


def _config(graph: ModuleGraph) -> dict[str, int]:
    """The integers of the model's config; GPT-2 and its kin count heads as ``n_head``."""
    values = cast(dict[str, object], graph.hints.get("config", {}))
    found = {k: v for k, v in values.items() if isinstance(v, int) and not isinstance(v, bool)}
    if "n_head" in found:
        found.setdefault("num_attention_heads", found["n_head"])
    return found


def _attributes(graph: ModuleGraph, owner: int) -> Iterator[tuple[int, str, int]]:
    """The integers of the module and of its children, as they came."""
    for node in [graph.nodes[owner], *graph.children(owner)]:
        if isinstance(node, ModuleNode):
            for name, value in node.spec.attributes:
                yield node.id, name, value


def _counts(graph: ModuleGraph, owner: int) -> list[Count]:
    found: list[Count] = []
    for node, name, value in _attributes(graph, owner):
        if name.removeprefix(CONFIG) in Q_COUNTS:
            found.append(Count(node, name, value, "q"))
        elif name.removeprefix(CONFIG) in KV_COUNTS:
            found.append(Count(node, name, value, "kv"))
    return found


def _projections(graph: ModuleGraph, owner: int) -> Iterator[Projection]:
    for child in graph.children(owner):
        weight = layer_weight(graph, child) if isinstance(child, ModuleNode) else child
        if not isinstance(weight, TensorNode) or weight.kind != "parameter":
            continue
        found = role_of(graph, weight)
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
    config: Mapping[str, int],
) -> tuple[int | None, str]:
    for _, name, value in attributes:
        if name in HEAD_DIMS and value > 0:
            return value, name
    query = next((p for p in projections if p.role == "q"), None)
    if query is None:
        return None, ""
    heads = next((count for count in counts if count.counts == "q"), None)
    if heads is not None:
        if heads.value > 0 and query.width % heads.value == 0:
            return query.width // heads.value, f"{query.name} rows / {heads.name}"
        return None, ""
    configured = config.get("num_attention_heads", 0)
    size = config.get("head_dim") or (query.width // configured if configured else 0)
    if configured and query.width == configured * size:
        return size, "head_dim of the config"
    return None, ""
