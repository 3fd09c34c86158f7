"""Pass ``update-heads``: integers that count heads become those of one rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hpx.errors import HpxError, ManyErrors
from hpx.facts import HEADS_LOCAL, SHARDED
from hpx.graph import ModuleGraph, ModuleNode, TensorNode
from hpx.heads import PROTECTED, Attention, Count, attentions
from hpx.mesh import divisors
from hpx.pipeline import Pass, PassInfo, register
from hpx.pipeline.context import PassContext
from hpx.plan import Heads, Pattern, Rule

__all__ = ["UpdateHeads"]


class _Edit(NamedTuple):
    """One decision for a regular group of modules: divide, or leave."""

    name: str
    old: int
    new: int | None
    why: str


@register
@dataclass(frozen=True, kw_only=True)
class UpdateHeads(Pass):
    """Divide head counts by tp in the modules whose q, k or v is cut on heads.

    1. Only modules with a q, k, v or fused projection whose output dim is cut on tp.
    2. Divided: the known counts of query and key/value heads on the module and its children,
       ``split_size`` and ``all_head_size`` where they equal a cut width, and what the plan declares
       under ``heads:``.
    3. Never divided, and said so: head dims, ``num_key_value_groups``, the config object; widths
       that may be the model's own (``embed_dim``) are pointed out.
    4. A count that tp does not divide is an error that names all counts of the module and the tp
       sizes that divide them together.
    5. Counts come from attributes, else from the rows over the head dim; a module with neither is
       a warning.
    6. Declared attributes must exist, be positive and divide; protected and automatic names are
       refused.
    7. Vectors with one value a head that stay whole beside a cut q are pointed out.
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
        declared = list(_declared(graph, ctx, found, size))
        findings = [item for item in declared if isinstance(item, HpxError)]
        findings += [error for one in found for error in _check(graph, ctx, one, size)]
        if findings:
            raise ManyErrors(
                f"{len(findings)} problem(s) with head counts; nothing was changed", findings
            ).located(f"pass {ctx.name}")
        _divide(graph, ctx, found, size, [item for item in declared if isinstance(item, tuple)])
        _report(graph, ctx, found, {node for node, _ in _pairs(declared)})


# -- checks ------------------------------------------------------------------------------------


def _check(
    graph: ModuleGraph, ctx: PassContext, attention: Attention, size: int
) -> Iterator[HpxError]:
    """One error for all counts of a module that tp does not divide."""
    counts: dict[str, int] = {}
    unnamed = not attention.projections
    if (unnamed or attention.cut("q", "qkv", "kv")) and attention.num_heads is not None:
        counts[_label(attention, "q")] = attention.num_heads
    if (unnamed or attention.cut("k", "v", "qkv")) and attention.num_kv_heads is not None:
        counts[_label(attention, "kv")] = attention.num_kv_heads
    for count in attention.automatic:
        if count.counts == "width":
            counts[count.name] = count.value
    bad = {name: value for name, value in counts.items() if value <= 0 or value % size}
    if not bad:
        return
    cut = [p for p in attention.projections if p.cut]
    kv = attention.num_kv_heads
    culprits = [p for p in cut if p.role in ("k", "v")] if kv is not None and kv % size else cut
    names = ", ".join(p.name for p in culprits)
    common = [d for d in divisors(min(counts.values())) if all(v % d == 0 for v in counts.values())]
    sizes = ", ".join(map(str, common))
    why = "; ".join(f"{value} % {size} = {value % size} ({name})" for name, value in bad.items())
    others = [f"{value} ({name})" for name, value in counts.items() if name not in bad]
    if others:
        why += f"; beside {', '.join(others)}"
    fix = f"use a tp of {sizes}"
    if kv is not None and kv < size:
        fix += (
            f"; or keep q, k, v and o of this module whole (replicate), or repeat its {kv} kv"
            f" head(s) to {size} in the model"
        )
    yield ctx.error(
        f"heads cannot be cut by tp={size}: {names} would split a head",
        node=attention.owner,
        why=why,
        fix=fix,
        rule=_rule_of(graph, ctx, culprits[0].weight if culprits else attention.owner),
    )


def _label(attention: Attention, kind: str) -> str:
    """What a count is called: its attribute, or where it was read off."""
    for count in attention.automatic:
        if count.counts == kind:
            return count.name
    roles = ("q", "qkv") if kind == "q" else ("k", "v", "kv")
    name = next((p.name for p in attention.projections if p.role in roles), kind)
    if attention.head_dim:
        return f"{kind} heads: {name} rows / {attention.head_dim_from} {attention.head_dim}"
    return f"{kind} heads of the config"


def _rule_of(graph: ModuleGraph, ctx: PassContext, node: int) -> Rule | None:
    event = ctx.decision(node, "layout")
    return event.rule if event else None


# -- declared attributes -----------------------------------------------------------------------


def _declared(
    graph: ModuleGraph, ctx: PassContext, found: list[Attention], size: int
) -> Iterator[tuple[int, Count] | HpxError]:
    automatic = {(count.node, count.name) for one in found for count in one.automatic}
    for entry in ctx.plan.heads:
        pattern = Pattern.parse(entry.pattern)
        modules = [node for node in graph.modules() if pattern.matches(graph.path(node.id))]
        if not modules:
            near = graph.names_near(entry.pattern.replace("*", "0"))
            hint = f"did you mean {', '.join(near)}?" if near else None
            yield ctx.error(f"{entry.where}: heads '{entry.pattern}' matches no module", fix=hint)
        for module in modules:
            for name in entry.names:
                yield _declared_count(ctx, module, name, entry, size, automatic)


def _declared_count(
    ctx: PassContext,
    module: ModuleNode,
    name: str,
    entry: Heads,
    size: int,
    automatic: set[tuple[int, str]],
) -> tuple[int, Count] | HpxError:
    value = module.attribute(name)
    if name in PROTECTED:
        return ctx.error(
            f"{entry.where}: '{name}' is never divided",
            node=module.id,
            why="it is the size of one head, or a ratio, on every rank",
            fix="take it out of heads:",
        )
    if (module.id, name) in automatic:
        return ctx.error(
            f"{entry.where}: '{name}' is divided already without being declared",
            node=module.id,
            fix="take it out of heads:",
        )
    if value is None:
        have = ", ".join(f"{k}={v}" for k, v in module.attributes.items()) or "none"
        return ctx.error(
            f"{entry.where}: there is no integer attribute '{name}'",
            node=module.id,
            why=f"its integers: {have}",
        )
    if value <= 0 or value % size:
        sizes = ", ".join(map(str, divisors(value))) if value > 0 else "none"
        return ctx.error(
            f"{entry.where}: {name} = {value} cannot be divided by tp={size}",
            node=module.id,
            fix=f"use a tp of {sizes}",
        )
    return module.id, Count(module.id, name, value, "q")


def _pairs(items: list[tuple[int, Count] | HpxError]) -> list[tuple[int, Count]]:
    return [item for item in items if isinstance(item, tuple)]


# -- edits and reports -------------------------------------------------------------------------


def _divide(
    graph: ModuleGraph,
    ctx: PassContext,
    found: list[Attention],
    size: int,
    declared: list[tuple[int, Count]],
) -> None:
    groups: dict[_Edit, list[int]] = {}
    for attention in found:
        for count in attention.automatic:
            if f"attributes.{count.name}" not in graph.nodes[count.node].props:
                what = "width of a cut projection" if count.counts == "width" else "head count"
                edit = _Edit(count.name, count.value, count.value // size, f"{what} / tp {size}")
                groups.setdefault(edit, []).append(count.node)
        for node, name, value in attention.kept:
            groups.setdefault(_Edit(name, value, None, _why_kept(name)), []).append(node)
    for node, count in declared:
        why = f"declared under heads: / tp {size}"
        groups.setdefault(_Edit(count.name, count.value, count.value // size, why), []).append(node)
    for edit, nodes in groups.items():
        key = f"attributes.{edit.name}"
        if edit.new is None:
            ctx.skip(nodes, key=key, why=f"{edit.name} = {edit.old} stays: {edit.why}")
        else:
            ctx.set(nodes, key, edit.new, why=f"{edit.why}: {edit.old} -> {edit.new}")


def _why_kept(name: str) -> str:
    if name == "num_key_value_groups":
        return "query heads per kv head are the same on every rank"
    if name in PROTECTED:
        return "the size of one head is the same on every rank"
    return "it may be the model's width; declare it under heads: if it is the projection's"


def _report(
    graph: ModuleGraph, ctx: PassContext, found: list[Attention], declared: set[int]
) -> None:
    derived: dict[str, list[int]] = {}
    unknown: list[int] = []
    split_groups: list[int] = []
    for attention in found:
        nodes = {attention.owner, *(child.id for child in graph.children(attention.owner))}
        if not attention.automatic and attention.head_dim:
            text = f"{attention.num_heads} query heads" + (
                f", {attention.num_kv_heads} kv heads" if attention.num_kv_heads else ""
            )
            derived.setdefault(text, []).append(attention.owner)
        elif not attention.automatic and not nodes & declared:
            unknown.append(attention.owner)
        whole = [p for p in attention.projections if p.role in ("k", "v") and not p.cut]
        if attention.cut("q") and whole and not attention.cut("k", "v"):
            split_groups.append(attention.owner)
    for text, owners in derived.items():
        ctx.skip(owners, why=f"derived from shape: {text}; no count is stored, views follow")
    if unknown:
        ctx.problem(
            "q is sharded on heads, no head count was rewritten",
            unknown,
            hint="declare the attributes that count heads under heads: in the plan",
        )
    if split_groups:
        ctx.problem(
            "q is cut on heads while k and v stay whole: query heads per kv head change",
            split_groups,
            hint="cut k and v too, or keep q whole",
        )
    _report_per_head(graph, ctx, found)


def _report_per_head(graph: ModuleGraph, ctx: PassContext, found: list[Attention]) -> None:
    """Whole tensors with one value (or row) a head, beside a q that is cut on heads."""
    groups: dict[tuple[str, int], list[int]] = {}
    for attention in found:
        heads = attention.num_heads
        if heads is None or not attention.cut("q", "qkv"):
            continue
        for node in _beside(graph, attention):
            if node.shape and node.shape[0] == heads and not (node.layout and node.layout.shards):
                groups.setdefault((_short_name(graph, node), heads), []).append(node.id)
    for (name, heads), nodes in groups.items():
        has_rule = _rule_of(graph, ctx, nodes[0])
        said = "the rule says replicate" if has_rule else "no rule"
        ctx.skip(nodes, key="layout", why=f"replicated: {said}; size equals num_heads {heads}")
        ctx.problem(
            f"{name} is replicated, and its size {heads} equals the head count of its owner,"
            " whose q is cut on heads",
            nodes,
            hint=f"if it holds one value a head, give it {{tp: S(0)}} in the plan: {name}",
        )


def _beside(graph: ModuleGraph, attention: Attention) -> Iterator[TensorNode]:
    for child in graph.children(attention.owner):
        inner = graph.children(child.id) if isinstance(child, ModuleNode) else [child]
        if "norm" in child.name.lower():
            continue
        for node in inner:
            if isinstance(node, TensorNode) and node.kind == "parameter":
                yield node


def _short_name(graph: ModuleGraph, node: TensorNode) -> str:
    owner = graph.module(node.parent)
    return f"{owner.name}.{node.name}"
