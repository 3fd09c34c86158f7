"""What a plan decides for each parameter of a graph, and what stands against carrying it out.

`decide` matches rules and lets biases follow their weights; `refusals` checks each cut against the
tensor it would cut. Both only read; the pass ``shard-params`` raises and sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpx.check.fused import packed_dims, packed_problem
from hpx.check.placed import placed_problem
from hpx.check.quantised import KNOWN_CLASSES, block_problem, scale_of
from hpx.errors import HpxError, LayoutError, PlacementMismatchError, PlanError
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import TensorNode
from hpx.heads import output_dim
from hpx.layout import REPLICATED, Layout, is_even, per_rank_sizes
from hpx.lineage import sources
from hpx.mesh import divisors
from hpx.plan import (
    MatchResult,
    Packed,
    Pattern,
    Rule,
    conflicting_names,
    fold_names,
    match_parameters,
    never_winning,
    uncovered,
    unmatched,
)

if TYPE_CHECKING:
    from hpx.pipeline.context import PassContext

__all__ = ["Choice", "Decision", "bias_layout", "decide", "refusals"]


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
    """

    decisions: dict[int, Decision]
    lost: dict[int, list[int]]
    findings: tuple[HpxError, ...]


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
        error
        for error, (index, _) in zip(unmatched(result, pointer), result.unmatched, strict=True)
        if index not in refused_rules
    ]
    findings += never_winning(result) + conflicting_names(result)
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
    return Choice(ordered, lost, tuple(findings))


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
                self.findings.append(error.located(where))
                found = REPLICATED
            self._known[key] = found
        return found


# -- biases ------------------------------------------------------------------------------------


def bias_layout(graph: ModuleGraph, weight: TensorNode, layout: Layout) -> Layout | None:
    """The layout that a linear's bias gets from its weight; None if the weight is not cut."""
    if not layout.shards or len(weight.shape) != 2:
        return None
    out = output_dim(graph, weight)
    return Layout(tuple((axis, 0) for axis, dim in layout.shards if dim == out))


def _follow_weight(
    graph: ModuleGraph, node: TensorNode, decisions: Mapping[int, Decision]
) -> Decision | None:
    owner = graph.module(node.parent)
    weight_id = owner.children.get("weight") if node.name == "bias" else None
    decided = decisions.get(weight_id) if weight_id is not None else None
    if weight_id is None or decided is None or len(node.shape) != 1:
        return None
    layout = bias_layout(graph, graph.tensor(weight_id), decided.layout)
    if layout is None or decided.rule is None:
        return None
    if layout.shards:
        why = "bias of a colwise layer: cut with its weight"
    else:
        why = "bias of a rowwise layer: replicated, added once after the reduction"
    return Decision(layout, why, decided.rule, follows=decided.rule.index)


# -- findings between plan and model -----------------------------------------------------------


def stacked_pointer(graph: ModuleGraph, entry: ModuleGraph) -> Callable[[str], str | None]:
    """For a pattern that matches nothing: the stacked names that replaced what it would match."""

    def pointer(text: str) -> str | None:
        pattern = Pattern.parse(text)
        for node in graph.parameters():
            if node.lineage is None:
                continue
            if any(pattern.matches(entry.path(source)) for source in sources(node.lineage)):
                parts = graph.path(node.id).split(".")
                return ".".join("*" if part.isdigit() else part for part in parts)
        return None

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
            )
        )
    return findings, rules


def _uncovered(
    graph: ModuleGraph, ctx: PassContext, result: MatchResult, decided: Mapping[int, Decision]
) -> list[HpxError]:
    """Expert weights without a rule in one finding, all other parameters in another."""
    if ctx.plan.default != "error":
        return []
    experts = [
        node_id
        for node_id in result.uncovered
        if node_id not in decided and graph.tensor(node_id).lineage is not None
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
                fix="add rules for these stacked names, such as {ep: S(0)}",
            )
        )
    return found + list(uncovered(result, ctx.plan, {*decided, *experts}))


# -- refusals ----------------------------------------------------------------------------------


def refusals(
    graph: ModuleGraph, ctx: PassContext, choice: Choice, *, uneven_allowed: bool
) -> Iterator[HpxError]:
    """What stands against a cut, one error for each parameter, in the order of the tree."""
    packed = [(Pattern.parse(entry.pattern), entry) for entry in ctx.plan.packed]
    yield from _unmatched_packed(graph, ctx, packed)
    for node_id, decision in choice.decisions.items():
        node = graph.tensor(node_id)
        view = ctx.mesh.view_of(decision.layout)
        if node.spec.placed is not None:
            problem = placed_problem(node, decision.layout, ctx.mesh)
            if problem is not None and ctx.mesh.active_axes:
                yield ctx.error(
                    "it is a DTensor already, and not as the plan says",
                    node=node_id,
                    why=problem[0],
                    fix=problem[1],
                    rule=decision.rule,
                    kind=PlacementMismatchError,
                )
                continue
        cuts: dict[int, int] = {}
        for axis, dim in decision.layout.shards:
            if view.size(axis) > 1:
                cuts[dim] = cuts.get(dim, 1) * view.size(axis)
        if cuts:
            yield from _refuse_cut(
                graph, ctx, node, decision, cuts, packed, uneven_allowed=uneven_allowed
            )


def _refuse_cut(
    graph: ModuleGraph,
    ctx: PassContext,
    node: TensorNode,
    decision: Decision,
    cuts: dict[int, int],
    packed: list[tuple[Pattern, Packed]],
    *,
    uneven_allowed: bool,
) -> Iterator[HpxError]:
    rule = decision.rule
    if node.spec.cls not in KNOWN_CLASSES:
        yield ctx.error(
            f"cannot shard type {node.spec.cls.rsplit('.', 1)[-1]}",
            node=node.id,
            why="where its elements stand is not known (a quantised or custom tensor)",
            fix="replicate it, or shard before quantising",
            rule=rule,
        )
        return
    scale = scale_of(graph, node)
    blocks = block_problem(node, scale, cuts) if scale is not None else None
    if blocks is not None:
        what = "the cut goes through a quantised block"
        yield ctx.error(what, node=node.id, why=blocks, rule=rule)
        return
    sizes = ctx.mesh.view_of(decision.layout).sizes
    if not is_even(node.shape, decision.layout, sizes) and (
        not uneven_allowed or decision.layout.dim("ep") is not None
    ):
        yield _uneven(ctx, node, decision, sizes)
        return
    yield from _refuse_fused(graph, ctx, node, decision, cuts, packed)


def _uneven(
    ctx: PassContext, node: TensorNode, decision: Decision, sizes: Mapping[str, int]
) -> HpxError:
    axis, dim = next((a, d) for a, d in decision.layout.shards if node.shape[d] % sizes[a])
    size, pieces = node.shape[dim], sizes[axis]
    would_do = ", ".join(map(str, divisors(size)))
    if axis == "ep":
        return ctx.error(
            f"{size} experts cannot be shared by ep={pieces}",
            node=node.id,
            why=f"E = {size}, ep = {pieces}, {size} % {pieces} = {size % pieces}",
            fix=f"use an ep of {would_do}",
            rule=decision.rule,
        )
    each = per_rank_sizes(size, pieces)
    shown = ",".join(map(str, each)) if pieces <= 16 else f"{each[0]} .. {each[-1]}"
    return ctx.error(
        f"dim {dim} of {list(node.shape)} cannot be cut evenly by {axis}={pieces}",
        node=node.id,
        why=f"{size} % {pieces} = {size % pieces}, ranks would hold {shown}",
        fix=f"use a {axis} of {would_do}, or shard-params{{uneven=allow}}",
        rule=decision.rule,
    )


def _refuse_fused(
    graph: ModuleGraph,
    ctx: PassContext,
    node: TensorNode,
    decision: Decision,
    cuts: dict[int, int],
    packed: list[tuple[Pattern, Packed]],
) -> Iterator[HpxError]:
    declared = next(
        (e for pattern, e in packed for name in graph.paths(node.id) if pattern.matches(name)), None
    )
    if declared is not None:
        problem = packed_problem(declared, node.shape, cuts)
        if problem is not None:
            yield ctx.error(
                "its packed parts cannot be cut like this",
                node=node.id,
                why=problem,
                fix="replicate it for now",
                rule=decision.rule,
            )
        return
    dims = [dim for dim in packed_dims(graph, node) if dim in cuts]
    if dims:
        yield ctx.error(
            f"it looks like a fused projection and is cut on dim {dims[0]}",
            node=node.id,
            why=f"a plain cut in {cuts[dims[0]]} goes across its parts and would be silently wrong",
            fix="declare its parts under packed: in the plan, or replicate it",
            rule=decision.rule,
        )


def _unmatched_packed(
    graph: ModuleGraph, ctx: PassContext, packed: list[tuple[Pattern, Packed]]
) -> Iterator[HpxError]:
    if not packed:
        return
    names = [name for node in graph.parameters() for name in graph.paths(node.id)]
    for pattern, entry in packed:
        if not any(pattern.matches(name) for name in names):
            yield ctx.error(f"{entry.where}: packed '{entry.pattern}' matches no parameter")
