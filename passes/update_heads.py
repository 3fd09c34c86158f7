"""Pass ``update-heads``: integers that count heads become those of one rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hpx.check.findings import Finding, grouped
from hpx.check.head_counts import declared_counts, head_problems, rule_of, unclear_counts
from hpx.check.per_head import (
    counts_above,
    counts_near,
    per_head_modules,
    per_head_tensors,
    uncounted_integers,
    uncounted_widths,
    wide_norms,
)
from hpx.errors import ManyErrors
from hpx.facts import HEADS_LOCAL, SHARDED
from hpx.graph import ModuleGraph
from hpx.heads import PROTECTED, Attention, Count, attentions
from hpx.pipeline import Pass, PassInfo, register
from hpx.pipeline.context import PassContext

__all__ = ["UpdateHeads"]


@register
@dataclass(frozen=True, kw_only=True)
class UpdateHeads(Pass):
    """Divide head counts by tp in the modules whose q, k or v is cut on heads.

    1. Only modules with a q, k, v or fused projection whose output dim is cut on tp.
    2. Divided: the known counts of query and key/value heads on the module and its children whose
       projections are cut, ``split_size`` and ``all_head_size`` where they equal a cut width, and
       what the plan declares under ``heads:``.
    3. Never divided, and said so: head dims, ``num_key_value_groups``, counts of heads that stay
       whole, counts further up, the config object, and widths that may be the model's own
       (``embed_dim``).
    4. A count that tp does not divide is an error that names all counts of the module and the tp
       sizes that divide them together; so are q, k and v that are not cut alike (one kv head that
       every rank holds is pointed out), a norm of q or k over all heads, and a list with one
       module a head.
    5. Counts come from attributes, else from the rows over the head dim, else from the config; a
       module with none is a warning.
    6. Declared attributes must exist, be positive, divide and stand by something cut; protected
       and automatic names are refused.
    7. A count of a module with cut layers of which none is known as q, k or v stays and is a
       warning, unless every layer of the module is cut and they are no mlp; ``heads:`` tells.
    8. Whole tensors with one value or row a head beside cut heads are pointed out, and so are
       integers of an unknown name that equal the head count or the width of a cut projection.
    """

    info = PassInfo(
        name="update-heads",
        requires={SHARDED},
        provides={HEADS_LOCAL},
        writes={"attributes"},
    )

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        """Check every count first, then divide."""
        size = ctx.mesh.size("tp", 1)
        if size == 1:
            ctx.note("tp is not active: every count stays")
            return
        found = attentions(graph, ctx.mesh)
        declared, findings = declared_counts(graph, ctx, found, size)
        problems = (f for one in found for f in head_problems(ctx, one, size))
        findings += grouped(ctx, problems, "heads")
        for name, check in (("head-norms", wide_norms), ("head-modules", per_head_modules)):
            findings += grouped(ctx, (f for one in found for f in check(graph, one)), name)
        if findings:
            raise ManyErrors.about("head counts", findings).located(f"pass {ctx.name}")
        edits = _edits(graph, found, declared, size)
        _divide(graph, ctx, edits)
        _report_unclear(graph, ctx, found)
        _report_uncounted(graph, ctx, found, {node for _, nodes in edits for node in nodes})
        _report_per_head(graph, ctx, found)


class _Edit(NamedTuple):
    """One decision for a regular group of modules: divide, or leave."""

    name: str
    old: int
    new: int | None
    why: str


def _edits(
    graph: ModuleGraph, found: Iterable[Attention], declared: Iterable[Count], size: int
) -> list[tuple[_Edit, list[int]]]:
    groups: dict[_Edit, list[int]] = {}

    def add(node: int, name: str, old: int, new: int | None, why: str) -> None:
        nodes = groups.setdefault(_Edit(name, old, new, why), [])
        if node not in nodes:
            nodes.append(node)

    for attention in found:
        for node, name, value, counts in attention.automatic:
            what = "width of a cut projection" if counts == "width" else "head count"
            add(node, name, value, value // size, f"{what} / tp {size}")
        for node, name, value, _ in attention.whole:
            add(node, name, value, None, "the projections that it counts are whole on every rank")
        told = {count[:2] for count in declared}
        for node, name, value, _ in attention.unclear:
            if (node, name) not in told:
                add(node, name, value, None, "whether what it counts is cut is not known")
        for node, name, value in attention.kept:
            add(node, name, value, None, _why_kept(name))
        for node, name, value in counts_above(graph, attention):
            add(node, name, value, None, "it is not on the attention module or its children")
    for node, name, value, _ in declared:
        add(node, name, value, value // size, f"declared under heads: / tp {size}")
    return list(groups.items())


def _why_kept(name: str) -> str:
    if name == "num_key_value_groups":
        return "query heads per kv head are the same on every rank"
    if name in PROTECTED:
        return "the size of one head is the same on every rank"
    return "it may be the model's width; declare it under heads: if it is the projection's"


def _divide(graph: ModuleGraph, ctx: PassContext, edits: list[tuple[_Edit, list[int]]]) -> None:
    for edit, nodes in edits:
        key = f"attributes.{edit.name}"
        if edit.new is None:
            ctx.skip(nodes, key=key, why=f"{edit.name} = {edit.old} stays: {edit.why}")
            continue
        done = [node for node in nodes if key in graph.nodes[node].props]
        for node in done:
            if graph.nodes[node].props[key] != edit.new:
                raise ctx.error(
                    f"{edit.name} was divided before, for another tp",
                    node=node,
                    why=f"{edit.old} became {graph.nodes[node].props[key]}, not {edit.new}",
                    fix="start from the model as it came",
                )
        if done:
            ctx.skip(done, key=key, why=f"{edit.name} is {edit.new} already")
        todo = [node for node in nodes if node not in done]
        if todo:
            ctx.set(todo, key, edit.new, why=f"{edit.why}: {edit.old} -> {edit.new}")


def _report_unclear(graph: ModuleGraph, ctx: PassContext, found: list[Attention]) -> None:
    """Counts that stay, though what they count may be cut."""
    groups: dict[Finding, list[int]] = {}
    for one in unclear_counts(graph, ctx.plan, found):
        groups.setdefault(one._replace(node=-1), []).append(one.node)
    for finding, nodes in groups.items():
        ctx.problem(
            f"{finding.what}: {finding.why}",
            nodes,
            hint=finding.fix or "",
            check="unclear-heads",
            numbers=finding.numbers,
        )


def _report_uncounted(
    graph: ModuleGraph, ctx: PassContext, found: list[Attention], divided: set[int]
) -> None:
    """Modules whose counts are read off shapes, are unknown, or may have another name."""
    derived: dict[str, list[int]] = {}
    unknown: list[int] = []
    one_kv_head: list[int] = []
    equal: dict[tuple[str, int], list[int]] = {}
    near: dict[tuple[str, int], list[int]] = {}
    wide: dict[tuple[str, int, str], list[int]] = {}
    for attention in found:
        nodes = {attention.owner, *(child.id for child in graph.children(attention.owner))}
        if not attention.automatic and attention.head_dim:
            counted = {"query": attention.num_heads, "kv": attention.num_kv_heads}
            text = ", ".join(f"{n} {kind} heads" for kind, n in counted.items() if n)
            text = text or f"heads of {attention.head_dim}"
            elsewhere = [
                (node, name, value)
                for node, name, value in counts_near(graph, attention)
                if f"attributes.{name}" not in graph.nodes[node].props
            ]
            for node, name, value in elsewhere:
                near.setdefault((name, value), []).append(node)
            stored = "a count is stored elsewhere" if elsewhere else "no count is stored"
            derived.setdefault(f"{text}; {stored}", []).append(attention.owner)
        elif not attention.automatic and not attention.unclear and not nodes & divided:
            unknown.append(attention.owner)
        if attention.cut("q") and not attention.kv_is_cut:
            one_kv_head.append(attention.owner)
        for node, name, value in uncounted_integers(graph, attention):
            equal.setdefault((name, value), []).append(node)
        for node, name, value, cut in uncounted_widths(graph, attention):
            wide.setdefault((name, value, cut), []).append(node)
    for text, owners in derived.items():
        ctx.skip(owners, why=f"derived from shape: {text}, views follow")
    for (name, value), nodes_of in near.items():
        ctx.problem(
            f"q is sharded on heads, and {name} = {value} near its module was not rewritten",
            nodes_of,
            hint=f"if its heads are counted by it, declare it under heads: in the plan: {name}",
            check="uncounted",
            numbers=((name, value),),
        )
    for (name, value), nodes_of in equal.items():
        ctx.problem(
            f"{name} = {value} equals the head count of its module, and is not divided",
            nodes_of,
            hint=f"if it counts heads, declare it under heads: in the plan: {name}",
            check="uncounted",
            numbers=((name, value),),
        )
    for (name, value, cut), nodes_of in wide.items():
        ctx.problem(
            f"{name} = {value} equals the width of {cut}, which is cut, and is not divided",
            nodes_of,
            hint=f"if outputs of {cut} are viewed or split by it, declare it under heads: in the"
            f" plan: {name}",
            check="uncounted",
            numbers=((name, value),),
        )
    if unknown and graph.has_structure:
        ctx.problem(
            "q is sharded on heads, no head count was rewritten",
            unknown,
            hint="declare the attributes that count heads under heads: in the plan",
            check="uncounted",
        )
    elif unknown:
        ctx.problem(
            "q is sharded on heads, and from names alone it is not known how many there are",
            unknown,
            hint="run on the model itself, or keep its config.json beside the file",
            check="uncounted",
        )
    if one_kv_head:
        ctx.problem(
            "q is cut on heads while the one kv head stays whole: query heads per kv head change",
            one_kv_head,
            hint="num_key_value_groups is not divided; see that the module does not repeat by it",
            check="heads",
        )


def _report_per_head(graph: ModuleGraph, ctx: PassContext, found: list[Attention]) -> None:
    """Whole tensors with one value (or row) a head, beside a projection that is cut on heads."""
    groups: dict[tuple[str, int, int], list[int]] = {}
    for attention in found:
        for node, name, heads, dim in per_head_tensors(graph, attention):
            groups.setdefault((name, heads, dim), []).append(node)
    for (name, heads, dim), nodes in groups.items():
        rule = rule_of(ctx, nodes[0])
        said = "the rule says replicate" if rule and rule.source != "default" else "no rule"
        ctx.skip(nodes, key="layout", why=f"replicated: {said}; size equals num_heads {heads}")
        ctx.problem(
            f"{name} is replicated, and its size {heads} equals the head count of its owner,"
            " whose projections are cut on heads",
            nodes,
            hint=f"if it holds one value a head, give it {{tp: S({dim})}} in the plan: {name}",
            check="per-head",
            numbers=(("heads", heads), ("dim", dim)),
        )
