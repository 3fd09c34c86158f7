"""Translate what others write as a plan: transformers' ``tp_plan``, ``parallelize_module`` as JSON.

1. Entries name modules (``layers.*.mlp.up_proj``) or stacked parameters; the prefix of a base model
   (``model.``) is found by what the model has.
2. A style that cuts a layer becomes a rule for its weight; the bias follows.
3. What hpx has no boundary for (a gathered output inside a block, packed or single experts on tp)
   stays whole, with the reason; entries that only prepare inputs make no rule.
4. ``ColwiseParallel(output_layouts=Replicate())`` is a gathered output, in the words that torch
   prints for its style.
5. An entry that names nothing, or nothing that its style could cut, an unknown style, and two names
   of one parameter with different styles, are errors.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from hpx.derive.decide import Decider
from hpx.derive.declared import COLWISE, ROWWISE
from hpx.derive.derive import as_rules_see_it, packed_facts, rules_of, tied_pairs
from hpx.derive.ends import ENDS
from hpx.derive.layers import layer_at
from hpx.derive.names import HEAD
from hpx.derive.types import Choice, cut
from hpx.errors import PlanError, did_you_mean
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.lineage import sources
from hpx.mesh import MeshSpec
from hpx.plan import Pattern, ShardingPlan

__all__ = ["plan_from_styles", "read_styles"]

_TORCH: Final[Mapping[str, str]] = {
    "ColwiseParallel": "colwise",
    "RowwiseParallel": "rowwise",
    "SequenceParallel": "replicate",
    "PrepareModuleInput": "module",
    "PrepareModuleOutput": "module",
    "PrepareModuleInputOutput": "module",
    "NoParallel": "replicate",
}
_WHOLE: Final = frozenset(["replicate", "replicated_with_grad_allreduce", "sequence_parallel"])
_MODULES: Final = frozenset(
    ["module", "moe_tp_experts", "ep_dispatch_experts", "gather", "ep_router"]
)
_EXPERTS: Final = frozenset(["grouped_gemm"])
_LOCAL: Final = frozenset(
    ["local_colwise", "local_rowwise", "local_packed_rowwise", "mla_kv_a_proj"]
)
_KNOWN: Final = (
    *(*sorted(COLWISE), *sorted(ROWWISE), *sorted(_WHOLE)),
    *(*sorted(_MODULES), *sorted(_EXPERTS), *sorted(_LOCAL), *_TORCH),
)
_LAYOUTS: Final = re.compile(r"(input|output)_layouts=\(?(\w+)\((?:dim=)?(-?\d*)")
_HEADING: Final = "from the given plan"
_REST: Final = "not named in the given plan"


class _Entry(NamedTuple):
    pattern: str
    style: str
    found: tuple[int, ...]
    optional: bool = False


def read_styles(value: object, where: str) -> dict[str, str]:
    """The entries of a plan as JSON or YAML holds it; a text such as ``ColwiseParallel()`` will do.

    Raises:
        PlanError: It is no mapping from names to styles.
    """
    if isinstance(value, Mapping) and isinstance(value.get("base_model_tp_plan"), Mapping):
        value = value["base_model_tp_plan"]
    if not isinstance(value, Mapping) or not value:
        raise PlanError(
            f"{where} is no plan of module names and styles",
            fix='write {"layers.*.mlp.up_proj": "colwise", ...}',
        )
    for pattern, style in value.items():
        if not isinstance(style, str):
            raise PlanError(
                f"the style of '{pattern}' is {style!r}",
                where=where,
                fix="write the name of a style, such as colwise or ColwiseParallel",
            )
    return {str(pattern): str(style) for pattern, style in value.items()}


def plan_from_styles(
    graph: ModuleGraph, mesh: MeshSpec, styles: Mapping[str, str], where: str
) -> ShardingPlan:
    """The plan that entries of styles amount to on a model.

    Args:
        graph: The model.
        mesh: The mesh.
        styles: Styles by pattern.
        where: What errors call the plan.

    Raises:
        PlanError: A style is unknown, or an entry names nothing.
    """
    seen, unstacked = as_rules_see_it(graph, mesh)
    if mesh.has("ep") and isinstance(seen.hints.get("ep_plan"), dict):
        styles = {**styles, **{str(k): str(v) for k, v in _items(seen.hints["ep_plan"])}}
    decider = Decider(seen, mesh, ShardingPlan(), unstacked)
    heads = {node for node, choice in decider.choices.items() if choice.heading == ENDS}
    choices = _all_choices(seen, mesh, list(_entries(graph, seen, styles, where)), heads, where)
    named: dict[str, Choice] = {}
    for node in seen.parameters():
        rest = Choice.whole("not named", _REST, "given")
        named[seen.path(node.id)] = choices.get(node.id, rest)
    return ShardingPlan(
        rules_of(seen, named),
        mesh=mesh,
        experts=None if unstacked is None else [],
        packed=packed_facts(seen, decider),
        tied=tied_pairs(seen),
    )


def _items(value: object) -> Iterator[tuple[object, object]]:
    yield from value.items() if isinstance(value, Mapping) else ()


def _all_choices(
    graph: ModuleGraph,
    mesh: MeshSpec,
    entries: list[_Entry],
    heads: Collection[int],
    where: str,
) -> dict[int, Choice]:
    """The choices that all entries make; of several with one name the first."""
    choices: dict[int, Choice] = {}
    said: dict[int, tuple[int, _Entry]] = {}
    for entry in entries:
        made = 0
        for node_id in entry.found:
            for tensor, choice in _choices(graph, mesh, node_id, entry, heads):
                made += 1
                place, before = said.setdefault(tensor, (node_id, entry))
                known = choices.setdefault(tensor, choice)
                if place != node_id and known.layout != choice.layout:
                    raise PlanError(
                        f"'{before.pattern}' is {before.style} and '{entry.pattern}' is"
                        f" {entry.style}, and both name {graph.path(tensor)}",
                        where=where,
                        why="tied names hold one parameter",
                        fix="cut both on the vocabulary: rowwise for an embedding, colwise for the"
                        " layer that scores",
                    )
        if not made and entry.style not in _MODULES | _WHOLE and not entry.optional:
            first = graph.nodes[entry.found[0]]
            name = graph.path(first.id) or "the model"
            cls = f" ({first.spec.short_cls})" if isinstance(first, ModuleNode) else ""
            raise PlanError(
                f"'{entry.pattern}' is {entry.style}, and {name}{cls} holds no parameter itself",
                where=where,
                fix="name its layers",
            )
    return choices


def _entries(
    entry_graph: ModuleGraph, graph: ModuleGraph, styles: Mapping[str, str], where: str
) -> Iterator[_Entry]:
    names = {graph.path(node.id): node.id for node in graph.walk() if node.id != graph.root}
    for pattern, text in styles.items():
        style = _style(text)
        if style not in _KNOWN:
            bare = text.split("(", 1)[0].strip()
            raise PlanError(
                f"style {text!r} of '{pattern}' is unknown",
                where=where,
                why=f"the styles are {', '.join(_KNOWN)}",
                fix=did_you_mean(bare, _KNOWN) or None,
            )
        optional = _optional(graph, pattern, style)
        found = _found(graph, names, pattern) or _stacked(entry_graph, graph, pattern)
        if found:
            yield _Entry(pattern, style, found, optional)
        elif not optional:
            near = did_you_mean(pattern, list(names)[:2000])
            what = f"'{pattern}' names nothing in the model"
            raise PlanError(what, where=where, fix=near or None)


def _style(text: str) -> str:
    """A style in transformers' words, which have one for each way that torch's can be called."""
    bare = text.split("(", 1)[0].strip()
    layouts = {side: (kind, dim) for side, kind, dim in _LAYOUTS.findall(text)}
    if bare == "ColwiseParallel" and layouts.get("output", ("Shard", "-1")) != ("Shard", "-1"):
        return "colwise_gather_output"
    if bare == "RowwiseParallel" and layouts.get("input", ("Shard", "-1")) != ("Shard", "-1"):
        return "rowwise_split_input"
    return _TORCH.get(bare, bare)


def _found(graph: ModuleGraph, names: Mapping[str, int], pattern: str) -> tuple[int, ...]:
    """What a pattern names; the weight or bias of a layer stands for the layer."""
    if not pattern:
        return (graph.root,)
    for prefix in ("", "*."):
        parsed = Pattern.parse(f"{prefix}{pattern}")
        found = [node for name, node in names.items() if parsed.matches(name)]
        if found:
            return tuple(dict.fromkeys(_layer_of(graph, node) for node in found))
    return ()


def _layer_of(graph: ModuleGraph, node_id: int) -> int:
    node = graph.nodes[node_id]
    if isinstance(node, TensorNode) and node.name in ("weight", "bias"):
        owner = graph.module(node.parent)
        if layer_at(graph, owner) is not None or "Embedding" in owner.spec.cls:
            return owner.id
    return node_id


def _stacked(entry: ModuleGraph, graph: ModuleGraph, pattern: str) -> tuple[int, ...]:
    """Stacked parameters that hold what a pattern names in the model as it was."""
    derived = [node for node in graph.parameters() if node.lineage is not None]
    for prefix in ("", "*.") if derived else ():
        parsed = Pattern.parse(f"{prefix}{pattern}")
        found = [
            node.id
            for node in derived
            if node.lineage is not None
            and any(
                parsed.matches(name) or parsed.matches(name.rpartition(".")[0])
                for name in map(entry.path, sources(node.lineage))
            )
        ]
        if found:
            return tuple(found)
    return ()


def _optional(graph: ModuleGraph, pattern: str, style: str) -> bool:
    """Whether an entry of the model's own plan is for models of its kind, not for this one."""
    return style in _MODULES or any(
        pattern == own or own.endswith(f".{pattern}")
        for key in ("tp_plan", "ep_plan")
        for own, _ in _items(graph.hints.get(key, {}))
        if isinstance(own, str)
    )


def _choices(
    graph: ModuleGraph, mesh: MeshSpec, node_id: int, entry: _Entry, heads: Collection[int]
) -> Iterator[tuple[int, Choice]]:
    """The choices for the tensors that one entry means."""
    style = entry.style
    said = style
    node = graph.nodes[node_id]
    if style in _MODULES:
        return
    if style in _EXPERTS:
        tensors = [node] if isinstance(node, TensorNode) else list(graph.parameters(node_id))
        for tensor in tensors:
            ep = mesh.size("ep", 1)
            if mesh.has("ep") and tensor.shape[0] % ep == 0:
                yield tensor.id, Choice(cut("ep", 0), said, "given", _HEADING)
            else:
                why = f"{said}, and {tensor.shape[0]} experts cannot be shared by ep={ep}"
                why = why if mesh.has("ep") else f"{said}, and the mesh has no ep axis"
                yield tensor.id, Choice.whole(why, _HEADING, "given")
        return
    dim, why = _cut_dim(graph, node, style, said, heads)
    if not mesh.has("tp") and dim is not None:
        dim, why = None, f"{said}, and the mesh has no tp axis"
    for name, tensor in _tensors(graph, node):
        choice = Choice.whole(why, _HEADING, "given")
        if dim is not None and name == "weight":
            choice = Choice(cut("tp", dim), why, "given", _HEADING)
        elif dim is not None:
            is_column = style in COLWISE
            choice = Choice(cut("tp", 0), f"{why}: with its weight", "given", _HEADING)
            if not is_column:
                text = f"{why}: added once, after the sum over tp"
                choice = Choice.whole(text, _HEADING, "given")
        yield tensor.id, choice


def _tensors(graph: ModuleGraph, node: ModuleNode | TensorNode) -> Iterator[tuple[str, TensorNode]]:
    if isinstance(node, TensorNode):
        yield "weight", node
        return
    layer = layer_at(graph, node)
    for name, child in node.children.items():
        found = graph.nodes[child]
        if isinstance(found, TensorNode) and found.kind == "parameter":
            yield name, found
    if layer is not None and "weight" not in node.children:
        yield "weight", graph.tensor(layer.weight)


def _cut_dim(
    graph: ModuleGraph,
    node: ModuleNode | TensorNode,
    style: str,
    said: str,
    heads: Collection[int],
) -> tuple[int | None, str]:
    """Which dim of the weight a style cuts; None with the reason if it stays whole."""
    if style in _WHOLE:
        return None, said
    if isinstance(node, TensorNode) and node.lineage is not None:
        return None, f"{said} of experts, which hpx cuts on ep alone: whole instead"
    if style in _LOCAL or isinstance(node, TensorNode) or style.startswith("packed"):
        return None, f"{said}, for which hpx has no boundary: whole instead"
    if "Embedding" in node.spec.cls:
        if style in ROWWISE:
            return 0, said.removesuffix("_split_input")  # ids are whole whatever the style
        return None, f"{said}: an embedding cut on its width has no boundary in hpx: whole instead"
    layer = layer_at(graph, node)
    if layer is None:
        return None, f"{said}, and it is no linear layer: whole instead"
    inside = style in ("colwise_gather_output", "colwise_rep", "rowwise_split_input", "rowwise_rep")
    if inside and node.name not in HEAD and layer.weight not in heads:
        return None, f"{said}: hpx gathers and splits nothing inside a block: whole instead"
    return (layer.out_dim if style in COLWISE else 1 - layer.out_dim), said
