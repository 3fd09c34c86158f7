"""Find the attention in a module: which of its layers are q, k, v, o or latent, and how many heads.

Structure comes first (fused widths, what reads and gives what, integers that count heads), then the
model's own plan, then names as whole segments. What stands against a cut is said with the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from hpx.check.fused import packed_problem
from hpx.check.per_head import is_norm, role_of_norm
from hpx.derive.declared import Declared
from hpx.derive.fused import ALIBI, fused_attention, inputs_of, looks_fused
from hpx.derive.layers import Layer, has_convolution, layers_in
from hpx.derive.names import CROSS, LATENT, OUT
from hpx.derive.types import Block, Origin
from hpx.derive.untold import TORCH_ATTENTION
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.heads import HEAD_DIMS, KV_COUNTS, Q_COUNTS, Attention, attention_at
from hpx.mesh import divisors
from hpx.plan import Packed
from hpx.projections import Role, role_of_name

__all__ = ["attention_in"]

_COUNTS: Final = frozenset([*Q_COUNTS, *KV_COUNTS, *HEAD_DIMS])
_ROWS: Final = "row parallel, takes the heads that its rank has computed"


def attention_in(
    graph: ModuleGraph, module: ModuleNode, declared: Declared, tp: int
) -> Block | None:
    """The attention block whose q, k and v are children of a module; None if there is none.

    Args:
        graph: The graph.
        module: The module.
        declared: The model's own plan.
        tp: How many ranks would share the heads.
    """
    layers = layers_in(graph, module.id)
    if len(layers) < 2 or has_convolution(graph, module):
        return None
    found = (
        _by_structure(module, layers)
        or _by_names(module, layers)
        or _all_but_output(module, layers)
    )
    if found is None:
        return None
    columns, origin = found
    rest = [layer for layer in layers if layer not in columns]
    row = _output_layer(graph, module, columns, rest, declared)
    path = graph.path(module.id)
    told = [*columns, *([row] if row is not None else [])]
    if told and all(_is_declared(declared, path, layer, row) for layer in told):
        origin = "model"
    block = Block(
        kind="attention",
        owner=module.id,
        columns=tuple(columns),
        rows=(row,) if row is not None else (),
        origin=origin,
        heading="attention",
    )
    _Attention(graph, module, block, [layer for layer in rest if layer is not row], tp).settle()
    return block


def _is_declared(declared: Declared, path: str, layer: Layer, row: Layer | None) -> bool:
    style = declared.rowwise if layer is row else declared.colwise
    return style(f"{path}.{layer.name}" if path else layer.name)


def _roles(layers: Sequence[Layer]) -> dict[Role, list[Layer]]:
    found: dict[Role, list[Layer]] = {}
    for layer in layers:
        role = role_of_name(layer.name)
        if role is not None:
            found.setdefault(role, []).append(layer)
    return found


def _by_names(module: ModuleNode, layers: Sequence[Layer]) -> tuple[list[Layer], Origin] | None:
    """Layers with the names of q, k and v; one that is fused only beside a count of heads."""
    roles = _roles(layers)
    fused = "qkv" in roles and (_counts_heads(module) or not module.spec.cls)
    if not ({"q", "k", "v"} <= roles.keys() or {"q", "kv"} <= roles.keys() or fused):
        return None
    return [layer for layer in layers if role_of_name(layer.name) is not None], "names"


def _counts_heads(module: ModuleNode) -> bool:
    return any(name in _COUNTS for name, _ in module.spec.attributes)


def _by_structure(module: ModuleNode, layers: Sequence[Layer]) -> tuple[list[Layer], Origin] | None:
    """Layers of a module that counts heads: all but the one that gives back what they read."""
    if not _counts_heads(module) or len(layers) not in (2, 4):
        return None
    found: list[list[Layer]] = []
    for layer in layers:
        others = [other for other in layers if other is not layer]
        widths = [other.outputs for other in others]
        if {other.inputs for other in others} != {layer.outputs}:
            continue
        fused = len(others) == 1 and widths[0] == 3 * layer.inputs
        apart = len(others) == 3 and layer.inputs == max(widths) != layer.outputs
        if fused or apart:
            found.append(others)
    return (found[0], "structure") if len(found) == 1 else None


def _all_but_output(
    module: ModuleNode, layers: Sequence[Layer]
) -> tuple[list[Layer], Origin] | None:
    """Four square layers of a module that counts heads, one with the name of an output."""
    named = [layer for layer in layers if layer.name in OUT]
    square = len({(x.inputs, x.outputs) for x in layers}) == 1
    if not _counts_heads(module) or len(layers) != 4 or len(named) != 1 or not square:
        return None
    return [layer for layer in layers if layer is not named[0]], "names"


def _output_layer(
    graph: ModuleGraph,
    module: ModuleNode,
    columns: Sequence[Layer],
    rest: Sequence[Layer],
    declared: Declared,
) -> Layer | None:
    """The layer that takes what attention gives: in the module, or in one beside it."""
    streams = {layer.inputs for layer in columns}
    widths = {layer.outputs for layer in columns} | {x.outputs // 3 for x in columns}
    path = graph.path(module.id)
    plain = [layer for layer in rest if layer.name not in LATENT]
    stated = [x for x in plain if declared.rowwise(f"{path}.{x.name}" if path else x.name)]
    named = [layer for layer in plain if layer.name in OUT]
    if len(stated or named) == 1:
        return (stated or named)[0]
    if len(plain) == 1 and not named:
        only = plain[0]
        return only if only.outputs in streams else None
    if module.parent < 0 or plain:
        return None
    beside: list[Layer] = []
    for sibling in graph.children(module.parent):
        if isinstance(sibling, ModuleNode) and sibling.id != module.id:
            beside += [x for x in layers_in(graph, sibling.id) if x.inputs in widths]
    named = [layer for layer in beside if layer.name in OUT]
    return named[0] if len(named) == 1 and named[0].outputs in streams else None


def _column_roles(columns: Sequence[Layer]) -> dict[int, Role | None]:
    """What each column is: by name, else k and v by being narrower than q."""
    roles = {layer.weight: role_of_name(layer.name) for layer in columns}
    if len(columns) == 3 and not any(roles.values()):
        widest = max(layer.outputs for layer in columns)
        narrow: list[Role] = ["k", "v"]
        for layer in columns:
            if layer.outputs < widest and narrow:
                roles[layer.weight] = narrow.pop(0)
    return roles


class _Attention:
    """One attention block: its reasons, what is whole in it, and what stands against a cut."""

    def __init__(
        self, graph: ModuleGraph, module: ModuleNode, block: Block, rest: list[Layer], tp: int
    ) -> None:
        self.graph = graph
        self.module = module
        self.block = block
        self.rest = rest
        self.tp = tp
        self.heads: Attention = attention_at(graph, module.id)
        self.roles = _column_roles(block.columns)

    def settle(self) -> None:
        """Say why it is cut, or why not."""
        block = self.block
        block.inner = tuple(layer for layer in self.rest if self._is_latent(layer))
        block.vectors = sorted(self._vectors())
        block.tables = list(self._tables())
        fused = [layer for layer in block.columns if self._is_fused(layer)]
        facts = [fused_attention(self.graph, self.heads, layer) for layer in fused]
        block.packed = [fact for fact in facts if fact is not None]
        block.obstacle = next(self._obstacles(fused), None)
        q, kv = self.heads.num_heads, self.heads.num_kv_heads
        if q:
            text = f"column parallel, a rank holds whole heads ({q // self.tp} of {q}"
            if kv and kv != q:
                text += f", and {kv // self.tp} of {kv} for k and v"
            block.column_reason = text + ")"
        block.row_reason = _ROWS

    def _hidden(self) -> int:
        rows = self.block.rows
        return rows[0].outputs if rows else self.block.columns[0].inputs

    def _is_latent(self, layer: Layer) -> bool:
        """Whether a layer gives what a projection reads that does not read the stream."""
        if layer.name in LATENT:
            return True
        read = {x.inputs for x in self.block.columns} - {self._hidden()}
        return layer.inputs == self._hidden() and any(layer.outputs >= size for size in read)

    def _is_fused(self, layer: Layer) -> bool:
        role = self.roles[layer.weight]
        by_width = len(self.block.columns) == 1 and layer.outputs == 3 * layer.inputs
        return role == "qkv" or by_width or (role == "kv" and not layer.name.endswith("b_proj"))

    def _vectors(self) -> Iterator[int]:
        """Bare parameters with one value a head: ``[heads]``, ``[1, heads, 1, 1]``."""
        for child in self.graph.children(self.module.id):
            if not isinstance(child, TensorNode) or child.kind != "parameter":
                continue
            heads = self.heads.num_heads
            if heads in child.shape and child.spec.num_elements == heads:
                yield child.id

    def _tables(self) -> Iterator[int]:
        """Tables with one column a head, where it is known who is given what they hold."""
        if inputs_of(self.module) is None:
            return
        for child in self.graph.children(self.module.id):
            weight = child.children.get("weight") if isinstance(child, ModuleNode) else None
            if weight is None or "Embedding" not in child.spec.cls:
                continue
            if self.graph.tensor(weight).shape[1:] == (self.heads.num_heads,):
                yield weight

    # -- what stands against a cut ------------------------------------------------------------

    def _obstacles(self, fused: Sequence[Layer]) -> Iterator[str]:
        block = self.block
        name = self.module.name.lower()
        parent = (
            self.graph.nodes[self.module.parent].name.lower() if self.module.parent >= 0 else ""
        )
        known = inputs_of(self.module)
        if known is None and (name in CROSS or parent in CROSS):
            yield (
                "it attends to a second stream, and which of its inputs that is, is not known;"
                " declare its inputs under boundaries: to cut it"
            )
        queries = {x.inputs for x in block.columns if self.roles[x.weight] == "q"}
        keys = {x.inputs for x in block.columns if self.roles[x.weight] in ("k", "v")}
        if queries and keys and queries != keys:
            yield f"q reads {_list(queries)} values and k and v {_list(keys)}: two streams"
        if not block.rows:
            yield "the layer that takes what its heads give is not known"
        yield from self._counts()
        yield from self._class_facts()
        for layer in self.rest:
            if layer not in block.inner:
                yield (
                    f"what {layer.name} [{layer.outputs} x {layer.inputs}] does beside the heads is"
                    " not known"
                )
        yield from self._beside()
        for layer in fused:
            yield from self._fused(layer)

    def _counts(self) -> Iterator[str]:
        q, kv, tp = self.heads.num_heads, self.heads.num_kv_heads, self.tp
        if not q:
            own = [f"{n} = {v}" for n, v in self.module.spec.attributes if v > 1]
            more = f" ({', '.join(own)} may count them)" if own else ""
            if self.graph.has_structure:
                way = "cut q, k, v and o and declare the count under heads: if you know it"
            else:
                way = "names and shapes do not tell; keep the config.json beside the file, or plan"
                way += " on the model itself"
            yield f"how many heads it has is not known{more}; {way}"
            return
        counts = {"heads": q, "kv heads": kv or q}
        bad = {n: v for n, v in counts.items() if v % tp and not (n == "kv heads" and kv == q)}
        if bad:
            common = [s for s in divisors(q) if (kv or q) % s == 0]
            said = ", ".join(f"{v} {n}: {v} % {tp} = {v % tp}" for n, v in bad.items())
            way = ", or repeat the kv heads in the model" if kv and kv < tp and q % tp == 0 else ""
            yield f"tp={tp} cannot share {said}; a tp of {_list(common)} can{way}"
        for layer in self.block.columns:
            role = self.roles[layer.weight]
            number = (kv or q) if role in ("k", "v") else q
            if role != "qkv" and layer.outputs % number:
                yield f"{layer.name} gives {layer.outputs} values, no multiple of {number} heads"

    def _class_facts(self) -> Iterator[str]:
        cls = self.module.spec.cls
        config = self.graph.hints.get("config")
        slopes = isinstance(config, dict) and config.get("alibi")
        if cls in ALIBI or (cls.endswith(".FalconAttention") and slopes):
            yield "its forward is given the ALiBi slopes of all heads, and nobody cuts those"
        if "MultiheadAttention" in cls:
            yield TORCH_ATTENTION

    def _beside(self) -> Iterator[str]:
        """Norms over all heads; buffers, tables and layers with one entry a head."""
        graph, heads = self.graph, self.heads
        own = {x.weight for x in (*self.block.columns, *self.rest, *self.block.rows)}
        own.update(self.block.tables)
        widths = {x.outputs for x in self.block.columns} - {heads.head_dim}
        latent = {x.outputs for x in self.block.inner} | {x.inputs for x in self.block.columns}
        for child in graph.children(self.module.id):
            inner = graph.children(child.id) if isinstance(child, ModuleNode) else [child]
            for node in inner:
                if not isinstance(node, TensorNode) or node.id in own or not node.shape:
                    continue
                label = f"{child.name}.{node.name}" if child is not node else node.name
                if len(node.shape) == 1 and is_norm(graph, node):
                    if node.shape[0] in widths and node.shape[0] not in latent - {self._hidden()}:
                        yield self._norm(child.name, node.shape[0])
                elif node.id not in self.block.vectors and self._per_head(node):
                    yield f"{label} {list(node.shape)} has one entry a head and stays whole"

    def _norm(self, name: str, size: int) -> str:
        """What stands against cutting heads beside a norm as wide as all of them."""
        if size != self._hidden() or role_of_norm(name) is not None:
            return (
                f"{name} normalises over all heads together ({size} values), and a rank would have"
                " a part of them"
            )
        return (
            f"the module holds {name} too, whose {size} values are as many as the stream has and as"
            " all heads together: whether it normalises the stream before them is not known"
        )

    def _per_head(self, node: TensorNode) -> bool:
        """Whether a buffer or a table of the module counts heads along one of two dims."""
        counts = (self.heads.num_heads, self.heads.num_kv_heads)
        numbers = {number for number in counts if number and number > 1}
        return bool(numbers & set(node.shape[:2])) and (
            node.kind == "buffer" or len(node.shape) > 1
        )

    def _fused(self, layer: Layer) -> Iterator[str]:
        fact = next((f for f in self.block.packed if f.layer.weight == layer.weight), None)
        text = looks_fused(fact, layer, "q, k and v")
        if fact is None:
            yield text
            return
        packed = Packed(layer.name, layer.out_dim, fact.repeat, fact.parts)
        shape = self.graph.tensor(layer.weight).shape
        why = packed_problem(packed, shape, {layer.out_dim: self.tp})
        if why is not None:
            yield f"{text}: {why.removeprefix(packed.where).strip()}"


def _list(values: Sequence[int] | set[int]) -> str:
    return ", ".join(map(str, sorted(values)))
