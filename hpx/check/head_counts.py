"""Head counts that tp cannot divide, projections that are not cut alike, declared counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from hpx.check.findings import Finding
from hpx.errors import HpxError
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.heads import PROTECTED, Attention, Count
from hpx.mesh import divisors
from hpx.plan import Heads, Pattern, Rule, ShardingPlan

if TYPE_CHECKING:
    from hpx.pipeline.context import PassContext

__all__ = ["declared_counts", "head_problems", "rule_of", "unclear_counts"]

_WHOLE_Q_K_V_O: Final = "keep q, k, v and o of this module whole (replicate)"


def rule_of(ctx: PassContext, node: int) -> Rule | None:
    """The plan's rule that gave a parameter its layout."""
    event = ctx.decision(node, "layout")
    return event.rule if event else None


def head_problems(ctx: PassContext, attention: Attention, size: int) -> Iterator[Finding]:
    """What forbids cutting the heads of one module in ``size`` pieces."""
    counts = _counts(attention)
    if any(value <= 0 or value % size for value in counts.values()):
        yield _undivided(ctx, attention, size, counts)
    elif (error := _cut_apart(ctx, attention)) is not None:
        yield error


def _counts(attention: Attention) -> dict[str, int]:
    """What the cut projections have to divide, by attribute or by where it was read off."""
    counts = {count.name: count.value for count in attention.automatic}
    for kind, is_cut, number in (
        ("q", attention.q_is_cut, attention.num_heads),
        ("kv", attention.kv_is_cut, attention.num_kv_heads),
    ):
        told = any(count.counts == kind for count in attention.counts)
        if is_cut and number is not None and not told:
            counts[attention.label(kind)] = number
    return counts


def _undivided(
    ctx: PassContext, attention: Attention, size: int, counts: dict[str, int]
) -> Finding:
    """One error for all counts of a module, and the tp sizes that divide them together."""
    bad = {name: value for name, value in counts.items() if value <= 0 or value % size}
    cut = [p for p in attention.projections if p.cut]
    kv = attention.num_kv_heads
    counted = {"q": attention.num_heads, "k": kv, "v": kv}
    culprits = [p for p in cut if (counted.get(p.role) or 0) % size] or cut
    why = "; ".join(f"{value} % {size} = {value % size} ({name})" for name, value in bad.items())
    others = [f"{value} ({name})" for name, value in counts.items() if name not in bad]
    if others:
        why += f"; beside {', '.join(others)}"
    common = math.gcd(*counts.values())
    fix = f"use a tp of {', '.join(map(str, divisors(common)))}" if common > 0 else None
    if kv is not None and 0 < kv < size:
        fix = f"{fix}; or {_WHOLE_Q_K_V_O}, or repeat its {kv} kv head(s) to {size} in the model"
    names = ", ".join(p.name for p in culprits) or "its projections"
    return Finding(
        attention.owner,
        f"heads cannot be cut by tp={size}: {names} would split a head",
        why,
        fix,
        rule_of(ctx, culprits[0].weight) if culprits else None,
        numbers=(*counts.items(), ("tp", size), ("common", common)),
    )


def _cut_apart(ctx: PassContext, attention: Attention) -> Finding | None:
    """q, k and v have to be cut alike; one kv head that every rank holds whole serves all of q."""
    cut = [p for p in attention.projections if p.cut]
    whole = [p for p in attention.projections if not p.cut]
    only_q = all(p.role == "q" for p in cut) and all(p.role != "q" for p in whole)
    if not cut or not whole or (only_q and attention.num_kv_heads == 1):
        return None
    return Finding(
        attention.owner,
        f"{', '.join(p.name for p in cut)} cut on heads, {', '.join(p.name for p in whole)} whole",
        "a rank's query heads would meet the wrong key and value heads",
        f"cut q, k and v alike, or {_WHOLE_Q_K_V_O}",
        rule_of(ctx, cut[0].weight),
    )


def unclear_counts(
    graph: ModuleGraph, plan: ShardingPlan, found: Iterable[Attention]
) -> Iterator[Finding]:
    """Counts of heads of which neither layers nor plan tell whether what they count is cut."""
    entries = [(Pattern.parse(entry.pattern), entry.names) for entry in plan.heads]
    for attention in found:
        for node, name, value, _ in attention.unclear:
            told = any(
                (not names or name in names) and pattern.matches(path)
                for pattern, names in entries
                for path in graph.names(node)
            )
            if not told:
                yield Finding(
                    node,
                    f"{name} counts heads, and it is unknown whether what it counts is cut",
                    "layers of its module are cut, and none is known as q, k or v",
                    f"declare it under heads: in the plan, as [{name}] if q is cut, as [] if it"
                    " is whole",
                    numbers=((name, value),),
                )


# -- declared attributes -----------------------------------------------------------------------


def declared_counts(
    graph: ModuleGraph, ctx: PassContext, found: list[Attention], size: int
) -> tuple[list[Count], list[HpxError]]:
    """The counts that the plan declares under ``heads:``, and what is wrong with them."""
    automatic = {(count.node, count.name) for one in found for count in one.automatic}
    counts: list[Count] = []
    problems: list[HpxError] = []
    for entry in ctx.plan.heads:
        pattern = Pattern.parse(entry.pattern)
        modules = [
            node
            for node in graph.modules()
            if node.spec.wrapper is None
            and any(pattern.matches(name) for name in graph.names(node.id))
        ]
        if not modules:
            near = graph.names_near(entry.pattern.replace("*", "0"))
            hint = f"did you mean {', '.join(near)}?" if near else None
            what = f"{entry.where}: heads '{entry.pattern}' matches no module"
            problems.append(ctx.error(what, fix=hint, check="declared-heads"))
        if not entry.names:
            ids = {module.id for module in modules}
            for name in sorted({name for node, name in automatic if node in ids}):
                owners = [node for node, other in automatic if node in ids and other == name]
                what = f"{entry.where}: says that its counts stay, and '{name}' counts cut heads"
                fix = "take it out of heads:, or keep q, k, v and o whole"
                problems += [ctx.error(what, node=sorted(owners), fix=fix, check="declared-heads")]
        for module in modules:
            for name in entry.names:
                error = _wrong(graph, ctx, module, name, entry, size, automatic)
                if error is None:
                    value = dict(module.spec.attributes)[name]
                    counts.append(Count(module.id, name, value, "q"))
                else:
                    problems.append(error)
    return counts, problems


def _wrong(
    graph: ModuleGraph,
    ctx: PassContext,
    module: ModuleNode,
    name: str,
    entry: Heads,
    size: int,
    automatic: set[tuple[int, str]],
) -> HpxError | None:
    """What is wrong with one declared attribute of one module."""
    value = dict(module.spec.attributes).get(name)
    what, why, fix = "", None, "take it out of heads:"
    if name in PROTECTED:
        what = f"'{name}' is never divided"
        why = "it is the size of one head, or a ratio, on every rank"
    elif (module.id, name) in automatic:
        what = f"'{name}' is divided already without being declared"
    elif value is None:
        what = f"there is no integer attribute '{name}'"
        have = ", ".join(f"{k}={v}" for k, v in module.spec.attributes) or "none"
        why, fix = f"its integers: {have}", "name one of them"
    elif value <= 0 or value % size:
        what = f"{name} = {value} cannot be divided by tp={size}"
        fix = f"use a tp of {', '.join(map(str, divisors(value)))}" if value > 0 else fix
    elif not _near_a_cut(graph, module):
        what = f"{name} = {value} would be divided where nothing is cut on tp"
        why = "no parameter of the module or beside it is cut, so every rank counts all of it"
    if not what:
        return None
    numbers = () if value is None else ((name, value), ("tp", size))
    what = f"{entry.where}: {what}"
    check = "declared-heads"
    return ctx.error(what, node=module.id, why=why, fix=fix, check=check, numbers=numbers)


def _near_a_cut(graph: ModuleGraph, module: ModuleNode) -> bool:
    """Whether something is cut in the module, or in the one that holds it."""
    return any(
        isinstance(node, TensorNode)
        and node.layout is not None
        and node.layout.dim("tp") is not None
        for start in (module.id, module.parent)
        if start >= 0
        for node in graph.walk(start)
    )
