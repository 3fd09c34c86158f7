"""What a plan decides for each parameter of a graph, and what stands against carrying it out.

`decide` matches rules and lets biases follow their weights; `hpx.check.cuts` checks each cut
against the tensor it would cut. Both only read; the pass ``shard-params`` raises and sets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpx.errors import HpxError, LayoutError, PlanError
from hpx.experts import is_expert_name
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import TensorNode
from hpx.layout import REPLICATED, Layout
from hpx.lineage import sources
from hpx.plan import (
    MatchResult,
    Pattern,
    Rule,
    conflicting_names,
    fold_names,
    match_parameters,
    never_winning,
    uncovered,
    unmatched,
)
from hpx.plan.pattern_text import one_pattern
from hpx.projections import output_dim

if TYPE_CHECKING:
    from hpx.pipeline.context import PassContext

__all__ = ["Choice", "Decision", "bias_layout", "decide", "weight_of"]


@dataclass(frozen=True)
class Decision:
    """A resolved layout, why, and the rule behind it.

    Attributes:
        layout: Resolved on the mesh.
        why: The reason, for people.
        rule: The rule that decided; None for the plan's default.
        follows: Index of the rule of the weight that a bias follows.
    """

    layout: Layout
    why: str
    rule: Rule | None
    follows: int | None = None


@dataclass(frozen=True)
class Choice:
    """What the plan decides.

    Attributes:
        decisions: By parameter id, in the order of the tree.
        lost: By index of a rule, the parameters that it matches and an earlier rule won.
        findings: What is wrong between the plan and the model.
        num_parameters: How many parameters there are, decided or not.
    """

    decisions: dict[int, Decision]
    lost: dict[int, list[int]]
    findings: tuple[HpxError, ...]
    num_parameters: int


def decide(graph: ModuleGraph, ctx: PassContext) -> Choice:
    """Match the plan's rules and decide a layout for every parameter."""
    plan = ctx.plan
    result = match_parameters(graph, plan.params)
    layouts = _Layouts(graph, ctx)
    decisions: dict[int, Decision] = {}
    bare: list[int] = []
    for node_id in result.winner:
        rule = result.rule(node_id)
        if rule is None:
            bare.append(node_id)
            continue
        layout = layouts.resolve(rule, graph.tensor(node_id))
        decisions[node_id] = Decision(layout, _why(rule), rule)
    followers = {
        node_id: decision
        for node_id in bare
        if (decision := _follow_weight(graph, graph.tensor(node_id), decisions)) is not None
    }
    findings: list[HpxError] = [*layouts.findings]
    parametrized, refused_rules = _parametrized(graph, ctx, result, decisions)
    findings += parametrized
    pointer = stacked_pointer(graph, ctx.entry)
    findings += [
        error.found_by("existence")
        for error, (index, _) in zip(unmatched(result, pointer), result.unmatched, strict=True)
        if index not in refused_rules
    ]
    findings += [error.found_by("never-winning") for error in never_winning(result)]
    findings += [error.found_by("tied-rules") for error in conflicting_names(result)]
    findings += _uncovered(graph, ctx, result, followers)
    fallback = plan.fallback
    for node_id in bare:
        if node_id in followers:
            decisions[node_id] = followers[node_id]
        elif fallback is not None:
            why = "no rule matches: the plan's default is replicate"
            decisions[node_id] = Decision(REPLICATED, why, fallback)
    lost: dict[int, list[int]] = {}
    for node_id, indices in result.losers.items():
        for index in indices:
            lost.setdefault(index, []).append(node_id)
    ordered = {node_id: decisions[node_id] for node_id in result.winner if node_id in decisions}
    return Choice(ordered, lost, tuple(findings), len(result.winner))


def _why(rule: Rule) -> str:
    said = "rule says replicate" if not rule.layout.shards else f"rule says {rule.layout}"
    return f"{said}: {rule.reason}" if rule.reason else said


class _Layouts:
    """Resolved layouts by rule and number of dims; one error for each that cannot be."""

    def __init__(self, graph: ModuleGraph, ctx: PassContext) -> None:
        self._graph = graph
        self._ctx = ctx
        self._known: dict[tuple[int, int], Layout] = {}
        self.findings: list[HpxError] = []

    def resolve(self, rule: Rule, node: TensorNode) -> Layout:
        key = (rule.index, len(node.shape))
        found = self._known.get(key)
        if found is None:
            try:
                found = rule.layout.resolve(self._ctx.mesh, len(node.shape))
            except LayoutError as error:
                where = f"{rule.where}: {self._graph.path(node.id)} {list(node.shape)}"
                names = [self._graph.path(node.id)]
                error.nodes = (node.id,)
                self.findings.append(error.located(where).found_by("layouts", names))
                found = REPLICATED
            self._known[key] = found
        return found


# -- biases ------------------------------------------------------------------------------------


def bias_layout(graph: ModuleGraph, weight: TensorNode, layout: Layout) -> Layout | None:
    """The layout that a layer's bias gets from its weight; None if nothing can be told.

    A weight of stacked experts is ``[E, out, in]`` and its bias ``[E, out]``.
    """
    if not layout.shards:
        return None
    if weight.lineage is not None:
        if len(weight.shape) != 3:
            return None
        return Layout(tuple((axis, dim) for axis, dim in layout.shards if dim < 2))
    owner = graph.module(weight.parent)
    convolution = re.fullmatch(r"Conv[123]d", owner.spec.short_cls) is not None
    if len(weight.shape) != 2 and not convolution:
        return None
    if not owner.spec.cls and len(set(weight.shape)) == 1 and _has_transposed(graph):
        return None  # names alone, and as many outputs as inputs: which dim is which is not known
    out = output_dim(graph, weight)
    return Layout(tuple((axis, 0) for axis, dim in layout.shards if dim == out))


def _has_transposed(graph: ModuleGraph) -> bool:
    """Whether a tree of names holds weights that are stored ``[in, out]``, as GPT-2's are."""
    return any(
        node.name == "weight" and len(node.shape) == 2 and output_dim(graph, node) == 1
        for node in graph.parameters()
    )


def weight_of(graph: ModuleGraph, bias: TensorNode) -> TensorNode | None:
    """The weight beside a bias: ``weight`` of ``bias``, of stacked ``w1_bias`` it is ``w1``."""
    for parent, name in ((bias.parent, bias.name), *bias.more):
        if name == "bias":
            name = "weight"
        elif bias.lineage is not None and name.endswith("_bias"):
            name = name.removesuffix("_bias")
        else:
            continue
        found = graph.module(parent).children.get(name)
        node = graph.nodes[found] if found is not None else None
        if isinstance(node, TensorNode) and node.kind == "parameter":
            return node
    return None


def _follow_weight(
    graph: ModuleGraph, node: TensorNode, decisions: Mapping[int, Decision]
) -> Decision | None:
    weight = weight_of(graph, node)
    decided = decisions.get(weight.id) if weight is not None else None
    if weight is None or decided is None or len(node.shape) != (1 if node.lineage is None else 2):
        return None
    layout = bias_layout(graph, weight, decided.layout)
    if layout is None or decided.rule is None:
        return None
    if layout.dim("ep") is not None:
        why = "bias of experts: on ep with their weights"
    elif layout.shards:
        why = "bias of a colwise layer: cut with its weight"
    else:
        why = "bias of a rowwise layer: replicated, added once after the reduction"
    return Decision(layout, why, decided.rule, follows=decided.rule.index)


# -- findings between plan and model -----------------------------------------------------------


def stacked_pointer(graph: ModuleGraph, entry: ModuleGraph) -> Callable[[str], str | None]:
    """For a pattern that matches nothing: the stacked names that replaced what it would match."""

    def pointer(text: str) -> str | None:
        pattern = Pattern.parse(text)
        found: list[str] = []
        for node in graph.parameters():
            if node.lineage is None:
                continue
            parts = graph.path(node.id).split(".")
            name = ".".join("*" if part.isdigit() else part for part in parts)
            if name not in found and any(
                pattern.matches(entry.path(source)) for source in sources(node.lineage)
            ):
                found.append(name)
        return (one_pattern(found) or found[0]) if found else None

    return pointer


def _parametrized(
    graph: ModuleGraph,
    ctx: PassContext,
    result: MatchResult,
    decisions: Mapping[int, Decision],
) -> tuple[list[HpxError], set[int]]:
    """Parametrised modules that a rule would cut, whole; and the rules that name them."""
    findings: list[HpxError] = []
    rules: set[int] = set()
    for module in graph.modules():
        if not module.spec.parametrized:
            continue
        path = graph.path(module.id)
        names = [f"{path}.{name}" if path else name for name in module.spec.parametrized]
        named = [
            rule
            for rule in result.rules
            if rule.layout.shards and any(rule.parsed.matches(name) for name in names)
        ]
        cut = [
            decisions[node.id].rule
            for node in graph.parameters(module.id)
            if node.id in decisions and decisions[node.id].layout.shards
        ]
        culprits = [rule for rule in [*named, *cut] if rule is not None]
        if not culprits:
            continue
        rules.update(rule.index for rule in named)
        findings.append(
            ctx.error(
                f"{', '.join(names)} cannot be sharded",
                node=module.id,
                why="it is computed from other parameters at each forward (weight_norm or a"
                " parametrization), so its parts cannot be cut alone",
                fix="remove the parametrization first, or replicate the module's parameters",
                rule=culprits[0],
                check="parametrised",
            )
        )
    return findings, rules


def _is_expert(graph: ModuleGraph, node_id: int) -> bool:
    if graph.tensor(node_id).lineage is not None:
        return True
    return any(is_expert_name(part) for part in graph.path(node_id).split("."))


def _uncovered(
    graph: ModuleGraph, ctx: PassContext, result: MatchResult, decided: Mapping[int, Decision]
) -> list[HpxError]:
    """Expert weights without a rule in one finding, all other parameters in another."""
    if ctx.plan.default != "error":
        return []
    experts = [
        node_id
        for node_id in result.uncovered
        if node_id not in decided and _is_expert(graph, node_id)
    ]
    found: list[HpxError] = []
    if experts:
        names = ", ".join(fold_names(graph.path(node_id) for node_id in experts))
        count = "1 expert weight" if len(experts) == 1 else f"{len(experts)} expert weights"
        found.append(
            PlanError(
                f"{count} with no rule",
                where=ctx.plan.file,
                why=names,
                fix="add rules for these names, such as {ep: S(0)}",
            ).found_by("uncovered", names.split(", "), (("parameters", len(experts)),))
        )
    others = uncovered(result, ctx.plan, {*decided, *experts})
    return [*found, *(error.found_by("uncovered") for error in others)]
