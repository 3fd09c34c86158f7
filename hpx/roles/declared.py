"""What the plan says under ``boundaries:``, laid over the boundaries that were found."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import replace
from typing import Literal

from hpx.check.findings import Finding
from hpx.errors import PlanError, did_you_mean
from hpx.graph.graph import ModuleGraph
from hpx.plan import Pattern, ShardingPlan
from hpx.plan.boundary import Boundary
from hpx.roles.cuts import Cuts
from hpx.roles.places import Places, of_all_layers
from hpx.roles.types import Cut, Role

__all__ = ["declare", "declared_modules"]


def declared_modules(
    graph: ModuleGraph, plan: ShardingPlan
) -> tuple[dict[int, Boundary], list[Finding]]:
    """The entry for each module that has one, the first that matches; and entries without any."""
    entries = [(entry, Pattern.parse(entry.pattern)) for entry in plan.boundaries]
    if not entries:
        return {}, []
    found: dict[int, Boundary] = {}
    used: set[int] = set()
    for module in graph.modules():
        paths = graph.paths(module.id)
        for index, (entry, pattern) in enumerate(entries):
            if any(pattern.matches(path) for path in paths):
                used.add(index)
                found.setdefault(module.id, entry)
    won = {id(entry) for entry in found.values()}
    return found, [
        *_unused(graph, [entry for index, (entry, _) in enumerate(entries) if index not in used]),
        *_beaten(graph, [e for i, (e, _) in enumerate(entries) if i in used and id(e) not in won]),
    ]


def _unused(graph: ModuleGraph, entries: Sequence[Boundary]) -> Iterator[Finding]:
    names = [graph.path(module.id) for module in graph.modules()] if entries else []
    for entry in entries:
        what = f"{entry.where}: boundary '{entry.pattern}' matches no module"
        fix = did_you_mean(entry.pattern, names) or None
        yield Finding(graph.root, what, None, fix, kind=PlanError)


def _beaten(graph: ModuleGraph, entries: Iterable[Boundary]) -> Iterator[Finding]:
    for entry in entries:
        what = f"{entry.where}: boundary '{entry.pattern}' never wins"
        why = "all modules that it matches are won by entries before it"
        yield Finding(graph.root, what, why, "move it up, or remove it", kind=PlanError)


def declare(
    found: MutableMapping[int, Role],
    places: Places,
    cuts: Cuts,
) -> Iterator[Finding]:
    """Change, add and remove boundaries as the plan says.

    Args:
        found: The boundaries by module; changed here.
        places: The graph, and the plan's entries by module.
        cuts: All cut matrices.
    """
    columns, rows = cuts.columns, cuts.rows
    left: set[int] = set()
    for module, entry in places.declared.items():
        known = found.get(module)
        if known is not None and (entry.none or _is_left(known, entry)):
            left.add(module)
            del found[module]
    for module, entry in places.declared.items():
        if entry.none or module in left:
            continue
        known = found.get(module)
        inputs = None if entry.inputs is None else {name: str(e) for name, e in entry.inputs}
        mixed = _mixed(module, entry, columns, rows, places)
        if known is not None:
            yield from filter(None, (mixed,))
            found[module] = replace(
                known,
                declared=entry,
                inputs=known.inputs if inputs is None else inputs,
                output=_known_output(known, entry, left, places, rows),
            )
            continue
        problem = _nested(module, found, places) or mixed
        output, size, unknown = _output(module, entry, found, places, columns, rows)
        yield from filter(None, (problem, unknown))
        found[module] = Role(module, "region", "declared", inputs, output, size, declared=entry)


def _is_left(known: Role, entry: Boundary) -> bool:
    """Whether a layer that is nothing but a sum is left as it is."""
    return known.kind == "rowwise" and entry.output == "none"


def _known_output(
    known: Role, entry: Boundary, left: Collection[int], places: Places, rows: Collection[Cut]
) -> Literal["sum", "gather", "columns"] | None:
    """What is done to the output of a boundary that was found."""
    if entry.output == "none":
        return None
    unsummed = (
        row for row in rows if row.layer in left and known.module in places.above(row.layer)
    )
    if entry.output == "R" and known.kind == "region" and any(unsummed):
        return "sum"
    return known.output


def _nested(module: int, found: MutableMapping[int, Role], places: Places) -> Finding | None:
    for role in found.values():
        if role.kind != "rowwise" and role.module != module and module in places.above(role.module):
            return Finding(
                module,
                f"it is declared a boundary, and"
                f" '{of_all_layers(places.graph.path(role.module))}' inside it is"
                " one",
                "an input would be copied into a region twice",
                "declare one of them none",
            )
    return None


def _mixed(
    module: int,
    entry: Boundary,
    columns: Collection[Cut],
    rows: Collection[Cut],
    places: Places,
) -> Finding | None:
    """A whole matrix beside cut ones: its gradient would be summed over ranks that each have it."""
    if entry.output != "R":
        return None
    cut = {item.weight for item in (*columns, *rows)}
    for node in places.graph.parameters(module):
        whole = len(node.shape) == 2 and node.layout is not None and not node.layout.shards
        if whole and node.id not in cut and node.parent != module:
            return Finding(
                module,
                "it is declared a boundary with a whole output, and holds"
                f" '{of_all_layers(places.graph.path(node.id))}', whole, beside cut matrices",
                "each rank has that matrix's gradient in full, and the boundary would sum it",
                "declare the module around the cut matrices only, or cut this one too",
            )
    return None


def _output(
    module: int,
    entry: Boundary,
    found: MutableMapping[int, Role],
    places: Places,
    columns: Collection[Cut],
    rows: Collection[Cut],
) -> tuple[Literal["sum", "gather"] | None, int | None, Finding | None]:
    """How the output of a declared module becomes whole, and how wide it is then."""
    summed = any(
        role.kind == "rowwise" and module in places.above(role.module) for role in found.values()
    )
    if entry.output != "R" or summed:  # a rowwise layer inside is summed where it stands
        return None, None, None
    inside = [cut for cut in (*columns, *rows) if module in places.above(cut.owner)]
    if not inside or not all(cut in columns for cut in inside):
        return "sum", None, None
    widths = sorted({cut.outputs for cut in inside})
    if len(widths) == 1:
        return "gather", widths[0], None
    return (
        None,
        None,
        Finding(
            module,
            "its output is declared whole, and how wide it is, is not known",
            f"cut matrices inside it give {', '.join(map(str, widths))}",
            "declare each layer",
        ),
    )
