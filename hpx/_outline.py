"""A graph by path in plain values, and what differs between two of them: for tests of passes."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, Node
from hpx.layout import Layout
from hpx.lineage import Source, describe
from hpx.order import Order

__all__ = [
    "Changes",
    "Outline",
    "assert_same_graph",
    "assert_same_outline",
    "changed",
    "outline",
    "plain_value",
]

Changes: TypeAlias = Mapping[str, "Mapping[str, object] | None"]
"""What differs from the graph before: by path the keys that have another value; None for gone."""
Outline: TypeAlias = dict[str, dict[str, object]]
"""A graph by path: what each node is and what passes decided about it."""


def outline(graph: ModuleGraph, entry: ModuleGraph | None = None) -> Outline:
    """A graph by path, in plain values; what two graphs have to agree in to be the same.

    Args:
        graph: The graph.
        entry: The graph before any pass, whose names lineages are told in.

    >>> from hpx.testing import graph_of
    >>> outline(graph_of({"w": (4, 2)}))["w"]["shape"]
    [4, 2]
    """
    return {graph.path(node.id): dict(_facts(graph, node, entry or graph)) for node in graph.walk()}


def _facts(graph: ModuleGraph, node: Node, entry: ModuleGraph) -> Iterator[tuple[str, object]]:
    yield "kind", node.kind
    aliases = graph.paths(node.id)[1:]
    if aliases:
        yield "aliases", sorted(aliases)
    if isinstance(node, ModuleNode):
        yield "cls", node.spec.cls
        for field in ("container", "hooks", "wrapper", "parametrized"):
            value = getattr(node.spec, field)
            if value:
                yield field, plain_value(value)
        yield from node.attributes.items()
        yield "children", list(node.children)
    else:
        for field, value in node.spec._asdict().items():
            yield ("class" if field == "cls" else field), plain_value(value)
        if not isinstance(node.expression, Source):
            yield "lineage", describe(node.expression, entry.path)
    for key, value in node.props.items():
        if not key.startswith("attributes."):
            yield key, plain_value(value)


def plain_value(value: object) -> object:
    """The value as tests write it: layouts as text, tuples as lists."""
    if isinstance(value, Layout | Order):
        return str(value)
    if isinstance(value, (tuple, list)):
        return [plain_value(item) for item in value]
    return value


def assert_same_graph(
    got: ModuleGraph, expected: ModuleGraph, *, entry: ModuleGraph | None = None
) -> None:
    """Compare two graphs by path; ids may differ.

    Raises:
        AssertionError: They differ; the message shows where, path by path.
    """
    assert_same_outline(outline(got, entry), outline(expected, entry))


def assert_same_outline(got: Outline, expected: Outline) -> None:
    """Compare two outlines; an ``AssertionError`` shows where they differ, path by path."""
    if got == expected and list(got) == list(expected):
        return
    lines = list(
        difflib.unified_diff(_lines(expected), _lines(got), "expected", "got", n=0, lineterm="")
    )
    shown = [line for line in lines if not line.startswith("@@")]
    raise AssertionError("the graphs differ:\n" + "\n".join(shown))


def _lines(shape: Outline) -> list[str]:
    return [
        f"{path or '(root)'}  {key} = {value}"
        for path, facts in shape.items()
        for key, value in sorted(facts.items())
    ]


def changed(before: ModuleGraph, changes: Changes) -> Outline:
    """The outline that the changes make of a graph."""
    expected = outline(before)
    for path, change in changes.items():
        if change is None:
            if path not in expected:
                raise AssertionError(f"'{path}' is expected to go, and was never there")
            for name in [n for n in expected if n == path or n.startswith(f"{path}.")]:
                del expected[name]
        else:
            expected.setdefault(path, {}).update({k: plain_value(v) for k, v in change.items()})
    return expected
