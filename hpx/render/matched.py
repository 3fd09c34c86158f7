"""Find the nodes that patterns name: one walk down the tree with all of them at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from hpx.errors import UsageError, nearest
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode
from hpx.plan import Pattern
from hpx.plan.automaton import RuleSet, State

__all__ = ["matched_names", "matched_tensors"]

_MAX_NAMES: Final = 2000
_NUMBER: Final = re.compile(r"(?<![^.])[0-9]+(?![^.])")


def matched_tensors(graph: ModuleGraph, patterns: Sequence[str], option: str) -> set[int]:
    """The tensors that patterns name, themselves or through a module above them.

    Args:
        graph: The graph.
        patterns: As in plan files.
        option: What asked for them, for messages.

    Raises:
        UsageError: A pattern matches nothing; has the nearest names.
        PlanError: A pattern is malformed.
    """
    return {
        node_id
        for node_id, accepted, above in _matched(graph, patterns, option)
        if (accepted or above) and not isinstance(graph.nodes[node_id], ModuleNode)
    }


def matched_names(graph: ModuleGraph, patterns: Sequence[str], option: str) -> set[int]:
    """The nodes, modules too, that patterns name themselves.

    Raises:
        UsageError: A pattern matches nothing; has the nearest names.
        PlanError: A pattern is malformed.
    """
    return {node_id for node_id, accepted, _ in _matched(graph, patterns, option) if accepted}


def _matched(
    graph: ModuleGraph, patterns: Sequence[str], option: str
) -> list[tuple[int, tuple[int, ...], bool]]:
    """As `_walk`; every pattern has to match something."""
    found = _walk(graph, RuleSet([Pattern.parse(pattern) for pattern in patterns]))
    used = {index for _, accepted, _ in found for index in accepted}
    _refuse_unused(graph, patterns, used, option)
    return found


def _walk(graph: ModuleGraph, rules: RuleSet) -> list[tuple[int, tuple[int, ...], bool]]:
    """Every place of every node below the root: its id, what accepts it, whether one above is."""
    nodes = graph.nodes
    found: list[tuple[int, tuple[int, ...], bool]] = []
    todo: list[tuple[int, State, bool, tuple[int, ...]]] = [
        (graph.root, rules.start(), False, (graph.root,))
    ]
    while todo:
        node_id, state, above, shared = todo.pop()
        node = nodes[node_id]
        assert isinstance(node, ModuleNode)
        for name, child_id in node.children.items():
            child = nodes[child_id]
            wrapped = name == node.spec.wrapper
            following = rules.through(state, name) if wrapped else state[name]
            found.append((child_id, following.accepted, above))
            if not isinstance(child, ModuleNode):
                continue
            inside = above or bool(following.accepted)
            if not child.more:
                todo.append((child_id, following, inside, shared))
            elif child_id not in shared:  # one that contains itself ends
                todo.append((child_id, following, inside, (*shared, child_id)))
    return found


def _refuse_unused(
    graph: ModuleGraph, patterns: Sequence[str], used: set[int], option: str
) -> None:
    for index, pattern in enumerate(patterns):
        if index in used:
            continue
        close = _near(graph, pattern)
        raise UsageError(
            f"{option} {pattern!r} matches nothing in {graph.source or 'the model'}",
            fix=f"did you mean {', '.join(close)}?" if close else None,
        )


def _near(graph: ModuleGraph, pattern: str) -> list[str]:
    """What looks like the pattern: names, or patterns of names that it comes furthest on."""
    if not set("*{[") & set(pattern):
        return graph.names_near(pattern)
    parsed = Pattern.parse(pattern)
    reached: dict[int, dict[str, None]] = {}
    for node in graph.walk():
        name = graph.path(node.id)
        progress = parsed.progress(name) if name else None
        if progress is not None:
            reached.setdefault(progress.matched, {})[_NUMBER.sub("*", name)] = None
    names = list(reached[max(reached)])[:_MAX_NAMES] if reached else []
    return nearest(pattern, names, similarity=0.0)
