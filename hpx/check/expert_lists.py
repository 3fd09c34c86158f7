"""Numbered modules that may be experts and are not stacked: what tells, and how sure it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from hpx.experts import ExpertContainer, has_attention, has_matrix_beside, is_expert_name
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode
from hpx.ranges import fold_names

if TYPE_CHECKING:
    from hpx.pipeline.context import PassContext

__all__ = ["report_lists"]

_NUMBERED: Final = re.compile(r"([A-Za-z_]*)([0-9]+)")
_HINT: Final = "if they are experts, name the container under experts: in the plan"


def report_lists(
    graph: ModuleGraph, ctx: PassContext, containers: Sequence[ExpertContainer]
) -> None:
    """Tell of lists that look like experts, are in no container and so stay apart.

    It is a warning where the mesh has expert ranks and the list is named as experts are, equals
    experts that were found, or stands beside a matrix in a model that has such experts. A matrix
    alone is a remark: four layers beside a classifier of four classes look the same.
    """
    if ctx.plan.experts == ():
        return
    on_ep = ctx.mesh.size("ep", 1) > 1
    told: dict[tuple[bool, str], list[int]] = {}
    for node, text, sure in _lists(graph, containers):
        told.setdefault((on_ep and (sure or bool(containers)), text), []).append(node.id)
    for (warns, text), nodes in told.items():
        names = ", ".join(fold_names(map(graph.path, nodes)))
        ctx.problem(
            f"{text}, and not stacked{': whole on every ep rank' if warns else ''}: {names}",
            nodes,
            hint=_HINT,
            level="warning" if warns else "info",
            check="expert-lists",
        )


def _lists(
    graph: ModuleGraph, containers: Sequence[ExpertContainer]
) -> Iterator[tuple[ModuleNode, str, bool]]:
    """(module that holds a list, what tells, whether it is sure), outermost first."""
    signatures = {
        graph.module(child).signature for found in containers for _, _, child in found.experts
    } - {0}
    known = {found.id for found in containers}
    todo = [graph.root]
    seen: set[int] = set()
    while todo:
        node = graph.module(todo.pop())
        if node.id in seen or node.id in known:
            continue
        seen.add(node.id)
        numbered = _numbered(graph, node)
        told = _what_tells(graph, node, numbered, signatures) if len(numbered) > 1 else None
        if told is not None:
            yield node, *told
        else:
            below = [child.id for child in graph.children(node.id) if isinstance(child, ModuleNode)]
            todo.extend(reversed(below))


def _what_tells(
    graph: ModuleGraph,
    node: ModuleNode,
    numbered: tuple[tuple[int, str, int], ...],
    signatures: set[int],
) -> tuple[str, bool] | None:
    count = len(numbered)
    first = numbered[0][2]
    if not any(True for _ in graph.parameters(first)):
        return None
    if is_expert_name(node.name):
        return f"{count} modules named as experts are", True
    if graph.module(first).signature in signatures:
        return f"{count} numbered modules equal to experts", True
    if has_matrix_beside(graph, node, numbered, routers=False) and not has_attention(graph, first):
        return f"{count} numbered modules beside a matrix of {count} rows", False
    return None


def _numbered(graph: ModuleGraph, node: ModuleNode) -> tuple[tuple[int, str, int], ...]:
    """The modules whose names are one word and a number, by number; of the most common word."""
    words: dict[str, list[tuple[int, str, int]]] = {}
    for name, child in node.children.items():
        match = _NUMBERED.fullmatch(name)
        if match and isinstance(graph.nodes[child], ModuleNode):
            words.setdefault(match[1], []).append((int(match[2]), name, child))
    found = max(words.values(), key=lambda entries: len(entries), default=[])
    return tuple(sorted(found))
