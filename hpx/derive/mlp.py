"""Find feed-forward blocks: matrices that read the stream, and one that gives back to it.

Shapes tell which is which (``H -> F`` and ``F -> H``, H being the width of the stream); where F
equals H the model's own plan does, then names. Nothing else may stand between the two: what a norm
over F, a convolution or a bare vector does with a part of the channels is not known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from hpx.check.fused import packed_problem
from hpx.derive.declared import Declared
from hpx.derive.fused import fused_mlp, looks_fused
from hpx.derive.layers import Layer, has_convolution, layers_in
from hpx.derive.names import DOWN, SHARED, UP
from hpx.derive.types import Block, Origin
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.mesh import divisors
from hpx.plan import Packed

__all__ = ["mlp_in", "mlp_of_cousins"]

_BOTTLENECK: Final = 8
"""How many times narrower than the stream a block of two layers is left whole."""
_ROWS = "row parallel, takes the channels that its rank has computed"


def mlp_in(
    graph: ModuleGraph,
    module: ModuleNode,
    declared: Declared,
    tp: int,
    taken: Collection[int],
    streams: Collection[int] = (),
) -> Block | None:
    """The feed-forward block of a module's own layers; None if they make none.

    Args:
        graph: The graph.
        module: The module.
        declared: The model's own plan.
        tp: How many ranks would share the channels.
        taken: Weights that belong to other blocks.
        streams: Widths that streams of the model are known to have.
    """
    if has_convolution(graph, module):
        return None
    layers = [x for x in layers_in(graph, module.id) if x.weight not in taken]
    path = graph.path(module.id)
    found = _declared(layers, path, declared) or _by_shape(layers, streams) or _by_names(layers)
    if found is None:
        return None
    columns, row, origin = found
    block = _block(module, columns, row, origin, tp)
    rest = [x for x in layers if x not in columns and x is not row]
    block.obstacle = next(_obstacles(graph, module, block, rest, taken, tp), None)
    return block


def mlp_of_cousins(
    graph: ModuleGraph,
    module: ModuleNode,
    tp: int,
    taken: Collection[int],
) -> Block | None:
    """A block whose two layers stand in two children of a module, one in each (as in BERT)."""
    alone: list[tuple[ModuleNode, Layer]] = []
    for child in graph.children(module.id):
        if isinstance(child, ModuleNode):
            layers = layers_in(graph, child.id)
            if len(layers) == 1 and layers[0].weight not in taken:
                alone.append((child, layers[0]))
    pairs = [
        (up, down)
        for up in alone
        for down in alone
        if up[1].outputs == down[1].inputs != up[1].inputs == down[1].outputs
        and up[1].outputs > up[1].inputs
    ]
    if len(pairs) != 1:
        return None
    (holder, up), (_, down) = pairs[0]
    block = _block(module, [up], down, "structure", tp)
    problems = [_strange(graph, node) for node in _others(graph, holder, {up.weight, up.bias})]
    block.obstacle = next(iter([*problems, *_uneven(up.outputs, tp)]), None)
    return block


def _block(
    module: ModuleNode, columns: Sequence[Layer], row: Layer, origin: Origin, tp: int
) -> Block:
    shared = module.name in SHARED
    return Block(
        kind="mlp",
        owner=module.id,
        columns=tuple(columns),
        rows=(row,),
        origin=origin,
        heading="shared experts" if shared else "feed-forward",
        column_reason=f"column parallel, a rank holds {row.inputs // tp} of {row.inputs} channels"
        + ("; every token goes through the shared expert" if shared else ""),
        row_reason=_ROWS,
    )


def _declared(
    layers: Sequence[Layer], path: str, declared: Declared
) -> tuple[list[Layer], Layer, Origin] | None:
    def name(layer: Layer) -> str:
        return f"{path}.{layer.name}" if path else layer.name

    columns = [x for x in layers if declared.colwise(name(x))]
    rows = [x for x in layers if declared.rowwise(name(x))]
    if not columns or len(rows) != 1 or any(x.outputs != rows[0].inputs for x in columns):
        return None
    return columns, rows[0], "model"


def _by_shape(
    layers: Sequence[Layer], streams: Collection[int]
) -> tuple[list[Layer], Layer, Origin] | None:
    """The one layer whose inputs are what others give, in a block that widens and narrows.

    One that narrows and widens (an adapter, a shared expert) is told by the width of the stream.
    """
    found: list[tuple[list[Layer], Layer, Origin]] = []
    for row in layers:
        if row.inputs == row.outputs:
            continue
        reads = [x for x in layers if x is not row and x.inputs == row.outputs]
        plain = [x for x in reads if x.outputs == row.inputs]
        fused = [x for x in reads if x.outputs == 2 * row.inputs]
        if 1 <= len(plain) <= 2 and not fused:
            found.append((plain, row, "structure"))
        elif len(fused) == 1 and not plain:
            found.append((fused, row, "structure"))
    ends = [one for one in found if one[1].outputs in streams and one[1].inputs not in streams]
    if len(ends) == 1:
        return ends[0]
    wide = [one for one in found if one[1].inputs > one[1].outputs] if len(found) > 1 else found
    return wide[0] if len(wide) == 1 else None


def _by_names(layers: Sequence[Layer]) -> tuple[list[Layer], Layer, Origin] | None:
    """Square layers: whole names tell."""
    down = [x for x in layers if x.name in DOWN and x.name not in UP]
    up = [x for x in layers if x.name in UP]
    if len(down) != 1 or not 1 <= len(up) <= 2:
        return None
    fits = {x.outputs for x in up} in ({down[0].inputs}, {2 * down[0].inputs})
    return (up, down[0], "names") if fits and {x.inputs for x in up} == {down[0].outputs} else None


# -- what stands against a cut ------------------------------------------------------------------


def _obstacles(
    graph: ModuleGraph,
    module: ModuleNode,
    block: Block,
    rest: Sequence[Layer],
    taken: Collection[int],
    tp: int,
) -> Iterator[str]:
    (row,) = block.rows
    if len(block.columns) == 1 and row.inputs * _BOTTLENECK <= row.outputs:
        yield (
            f"an adapter of {row.inputs} channels beside {row.outputs} of the stream: a sum over tp"
            " would cost more than its parts save"
        )
    for layer in block.columns:
        if layer.outputs == 2 * row.inputs:
            yield from _fused(graph, module, block, layer, tp)
    for layer in rest:
        yield f"what {layer.name} [{layer.outputs} x {layer.inputs}] does beside it is not known"
    own = {x for layer in (*block.columns, row) for x in (layer.weight, layer.bias)}
    own |= {adapter.node for x in (*block.columns, row) for adapter in x.adapters}
    around = any(node.id in taken for node in graph.parameters(module.id))
    for node in _others(graph, module, own):
        inside = node.parent == module.id or graph.nodes[node.parent].parent == module.id
        if not around or (inside and row.inputs in node.shape):
            yield _strange(graph, node)
    yield from _uneven(row.inputs, tp)


def _fused(
    graph: ModuleGraph, module: ModuleNode, block: Block, layer: Layer, tp: int
) -> Iterator[str]:
    fact = fused_mlp(graph, module.id, layer)
    text = looks_fused(fact, layer, "gate and up")
    if fact is None:
        yield text
        return
    block.packed.append(fact)
    packed = Packed(layer.name, layer.out_dim, fact.repeat, fact.parts)
    why = packed_problem(packed, graph.tensor(layer.weight).shape, {layer.out_dim: tp})
    if why is not None:
        yield f"{text}: {why.removeprefix(packed.where).strip()}"


def _others(
    graph: ModuleGraph, module: ModuleNode, own: Collection[int | None]
) -> Iterator[TensorNode]:
    return (node for node in graph.parameters(module.id) if node.id not in own)


def _strange(graph: ModuleGraph, node: TensorNode) -> str:
    owner = graph.module(node.parent)
    name = f"{owner.name}.{node.name}" if owner.name else node.name
    cls = owner.spec.short_cls or "a module"
    return f"what {name} {list(node.shape)} of {cls} does between its matrices is not known"


def _uneven(width: int, tp: int) -> Iterator[str]:
    if width % tp:
        sizes = ", ".join(str(s) for s in divisors(width) if s <= 64)
        yield (
            f"tp={tp} cannot share its {width} channels, {width} % {tp} = {width % tp}; a tp of"
            f" {sizes} can"
        )
