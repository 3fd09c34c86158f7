"""Translate what others write as a plan: transformers' ``tp_plan``, ``parallelize_module`` as JSON.

1. Entries name modules (``layers.*.mlp.up_proj``) or stacked parameters; the prefix of a base model
   (``model.``) is found by what the model has.
2. A style that cuts a layer becomes a rule for its weight; the bias follows.
3. What hpx has no boundary for (a gathered output inside a block, packed experts on tp) stays
   whole, with the reason; entries that only prepare inputs make no rule.
4. An entry that names nothing, or an unknown style, is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from hpx.derive.decide import Decider
from hpx.derive.declared import COLWISE, ROWWISE
from hpx.derive.derive import as_rules_see_it, packed_facts, rules_of, tied_pairs
from hpx.derive.layers import layer_at
from hpx.derive.names import HEAD
from hpx.derive.types import Choice, cut
from hpx.errors import PlanError, did_you_mean
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
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
_HEADING: Final = "from the given plan"
_REST: Final = "not named in the given plan"


class _Entry(NamedTuple):
    pattern: str
    style: str
    found: tuple[int, ...]


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
    choices: dict[int, Choice] = {}
    for entry in _entries(seen, styles, where):
        for node_id in entry.found:
            for tensor, choice in _choices(seen, mesh, node_id, entry):
                choices.setdefault(tensor, choice)
    named: dict[str, Choice] = {}
    for node in seen.parameters():
        rest = Choice.whole("not named", _REST, "given")
        named[seen.path(node.id)] = choices.get(node.id, rest)
    return ShardingPlan(
        rules_of(seen, named),
        mesh=mesh,
        experts=None if unstacked is None else [],
        packed=packed_facts(seen, Decider(seen, mesh, ShardingPlan(), unstacked)),
        tied=tied_pairs(seen),
    )


def _items(value: object) -> Iterator[tuple[object, object]]:
    yield from value.items() if isinstance(value, Mapping) else ()


def _entries(graph: ModuleGraph, styles: Mapping[str, str], where: str) -> Iterator[_Entry]:
    names = {graph.path(node.id): node.id for node in graph.walk() if node.id != graph.root}
    for pattern, text in styles.items():
        bare = text.split("(", 1)[0].strip()
        style = _TORCH.get(bare, bare)
        if style not in _KNOWN:
            raise PlanError(
                f"style {text!r} of '{pattern}' is unknown",
                where=where,
                why=f"the styles are {', '.join(_KNOWN)}",
                fix=did_you_mean(bare, _KNOWN) or None,
            )
        for prefix in ("", "*."):
            parsed = Pattern.parse(f"{prefix}{pattern}")
            found = tuple(node for name, node in names.items() if parsed.matches(name))
            if found:
                yield _Entry(pattern, style, found)
                break
        else:
            if not _optional(graph, pattern, style):
                near = did_you_mean(pattern, list(names)[:2000])
                what = f"'{pattern}' names nothing in the model"
                raise PlanError(what, where=where, fix=near or None)


def _optional(graph: ModuleGraph, pattern: str, style: str) -> bool:
    """Whether an entry of the model's own plan is for models of its kind, not for this one."""
    return style in _MODULES or any(
        pattern == own or own.endswith(f".{pattern}")
        for key in ("tp_plan", "ep_plan")
        for own, _ in _items(graph.hints.get(key, {}))
        if isinstance(own, str)
    )


def _choices(
    graph: ModuleGraph, mesh: MeshSpec, node_id: int, entry: _Entry
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
                yield tensor.id, Choice.whole(why, _HEADING, "given")
        return
    dim, why = _cut_dim(graph, node, style, said)
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
    graph: ModuleGraph, node: ModuleNode | TensorNode, style: str, said: str
) -> tuple[int | None, str]:
    """Which dim of the weight a style cuts; None with the reason if it stays whole."""
    if style in _WHOLE:
        return None, said
    if style in _LOCAL or isinstance(node, TensorNode) or style.startswith("packed"):
        return None, f"{said}, for which hpx has no boundary: whole instead"
    if "Embedding" in node.spec.cls:
        if style in ROWWISE:
            return 0, said
        return None, f"{said}: an embedding cut on its width has no boundary in hpx: whole instead"
    layer = layer_at(graph, node)
    if layer is None:
        return None, f"{said}, and it is no linear layer: whole instead"
    inside = style in ("colwise_gather_output", "colwise_rep", "rowwise_split_input", "rowwise_rep")
    if inside and node.name not in HEAD:
        return None, f"{said}: hpx gathers and splits nothing inside a block: whole instead"
    return (layer.out_dim if style in COLWISE else 1 - layer.out_dim), said
