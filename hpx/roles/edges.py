"""What crosses the edges of boundaries: the layout that one gives is the one that the next takes.

On tp an activation is in one of four states: ``R`` (whole on every rank), ``P`` (every rank has a
part of a sum), ``S(-1)`` (columns: heads, channels, tokens of a vocabulary) or ``S(1)`` (positions
of a sequence). `check_sums` reads what it can off the tree: a sum that is missing, and one of what
is whole already; `hpx.roles.traced` follows the states along traced dataflow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final, Literal, TypeAlias

from hpx.check.findings import Finding
from hpx.graph.graph import ModuleGraph
from hpx.roles.cuts import Cuts, tp_dim
from hpx.roles.places import Places, of_all_layers
from hpx.roles.types import Cut, Role, Roles

__all__ = ["State", "check_sums", "gives", "takes", "texts"]

State: TypeAlias = Literal["R", "P", "S(-1)", "S(1)"]
_TEXTS: Final[Mapping[State, str]] = {
    "R": "R, whole on every rank",
    "P": "P, a part of a sum on every rank",
    "S(-1)": "S(-1), some columns on every rank",
    "S(1)": "S(1), some positions on every rank",
}


def texts(state: State) -> str:
    """A state with what it means."""
    return _TEXTS[state]


def takes(role: Role) -> State:
    """The state in which a boundary takes its input."""
    if role.kind == "rowwise":
        return "S(-1)"
    return "S(1)" if role.sequence or role.kind == "whole" else "R"


def gives(graph: ModuleGraph, found: Roles, role: Role) -> State:
    """The state in which a boundary gives its output."""
    stream: State = "S(1)" if role.sequence or role.kind == "whole" else "R"
    if role.output == "columns":
        return "S(-1)"
    if role.kind != "region" or role.output is not None or role.rowwise:
        return stream
    inside = {node.id for node in graph.modules(role.module)}
    summed = any(other.kind == "rowwise" and other.module in inside for other in found.boundaries)
    return stream if summed else "S(-1)"


def check_sums(
    graph: ModuleGraph, found: Mapping[int, Role], places: Places, cuts: Cuts
) -> Iterator[Finding]:
    """Parts of sums that nobody sums, sums of what is whole, and columns that are gathered twice.

    Args:
        graph: The graph.
        found: The boundaries by module, as they will be installed.
        places: The graph, and the plan's entries by module.
        cuts: All cut matrices.
    """
    for row in cuts.rows:
        summing = list(_summing(row, found, places))
        if not summing and not _left_alone(row, places):
            yield _missing(graph, row)
        for inner, outer in pairwise(summing):
            yield _again(graph, outer, inner, "summed")
    for role in found.values():
        if role.role != "declared":
            continue
        heads: list[Role] = [
            other for other in found.values() if _gathers_inside(other, role, places)
        ]
        if role.output == "gather" and heads:
            yield _again(graph, role, heads[0], "gathered")
        if role.output == "sum" and all(tp_dim(n) is None for n in graph.parameters(role.module)):
            yield Finding(
                role.module,
                "its output is R already, and declared to be summed",
                "nothing inside it is cut on tp: every rank has all of it, and the sum would be as"
                " many times as large as there are ranks",
                "take output: R out of its entry under boundaries:",
            )


def _summing(row: Cut, found: Mapping[int, Role], places: Places) -> Iterator[Role]:
    """The boundaries that sum what a rowwise matrix gives, from the inside out."""
    for module in places.above(row.owner):
        role = found.get(module)
        if role is None:
            continue
        if module == row.layer if role.kind == "rowwise" else role.output == "sum":
            yield role


def _left_alone(row: Cut, places: Places) -> bool:
    """Whether the plan says of a module around a matrix that its output is left as it is."""
    entries = (places.declared.get(module) for module in places.above(row.owner))
    return any(entry is not None and entry.output == "none" for entry in entries)


def _gathers_inside(inner: Role, outer: Role, places: Places) -> bool:
    return inner.kind == "head" and outer.module in places.above(inner.module) and inner != outer


def _missing(graph: ModuleGraph, row: Cut) -> Finding:
    return Finding(
        row.weight,
        "its output is P, a part of a sum, and nothing sums it",
        f"each rank has the products of its own of {row.inputs} inputs, and what follows"
        f" '{of_all_layers(graph.path(row.layer))}' expects R",
        "take none out for it under boundaries:, or declare a module around it {output: R}; if the"
        " model sums by itself, {output: none}",
    )


def _again(graph: ModuleGraph, outer: Role, inner: Role, what: str) -> Finding:
    name = of_all_layers(graph.path(inner.module))
    return Finding(
        outer.module,
        f"its output is R already, and would be {what} again",
        f"'{name}' inside it ({inner.role}) is {what} where it stands",
        "declare one of the two none under boundaries: in the plan",
    )
