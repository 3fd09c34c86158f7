"""Keep the part of a graph that somebody asked for, with the modules above it.

1. ``focus`` keeps what one of its patterns matches; ``ignore`` leaves out what one of its own does.
2. ``only`` keeps the parameters of some kinds. What needs layouts is refused where none are known.
3. A tied tensor is kept as one, under all of its names; it is left out if every name is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from hpx.errors import UsageError
from hpx.experts import is_expert_name
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, Node, TensorNode
from hpx.lineage import Stack
from hpx.render.matched import matched_tensors
from hpx.render.options import Only, Options
from hpx.render.placing import Placer
from hpx.render.subject import Subject
from hpx.render.tied import below_shared

__all__ = ["has_layouts", "ids_of_kind", "keep", "selected"]

_NEEDS_LAYOUTS: Final = frozenset(["unsharded", "replicated", "unset"])


def selected(subject: Subject, options: Options) -> set[int] | None:
    """The ids of the tensors that ``focus`` and ``ignore`` leave; None for all.

    Raises:
        UsageError: A pattern matches nothing.
        PlanError: A pattern is malformed.
    """
    graph = subject.graph
    if not options.focus and not options.ignore:
        return None
    found = (
        matched_tensors(graph, options.focus, "--focus")
        if options.focus
        else {node.id for node in graph.walk() if isinstance(node, TensorNode)}
    )
    if options.ignore:
        found -= matched_tensors(graph, options.ignore, "--ignore")
    return found


def ids_of_kind(subject: Subject, kind: Only, option: str = "--only") -> set[int]:
    """The ids of the parameters of one kind.

    Args:
        subject: What is looked at.
        kind: See `Only`.
        option: What asked, for messages.

    Raises:
        UsageError: It takes layouts, a run or a comparison to tell, and there is none.
    """
    graph = subject.graph
    if kind in _NEEDS_LAYOUTS and not has_layouts(subject):
        raise UsageError(
            f"{option} {kind} asks for layouts, and none are known",
            why=f"{subject.source or 'the model'} has none of its own",
            fix="give a run, or --mesh and --plan",
        )
    if kind == "conflict":
        return {n for p in subject.problems if p.level == "error" for n in p.nodes}
    if kind == "changed":
        return set(_changed(subject, option))
    test = _tests(subject)[kind]
    # What is gone has no layout, which is no fault of it.
    gone = subject.gone if kind in _NEEDS_LAYOUTS else frozenset[int]()
    return {node.id for node in graph.parameters() if test(node) and node.id not in gone}


def has_layouts(subject: Subject) -> bool:
    """Whether any parameter has a layout, by a pass or as a DTensor."""
    return any(
        node.layout is not None or node.spec.placed is not None
        for node in subject.graph.parameters()
    )


def _tests(subject: Subject) -> Mapping[str, Callable[[TensorNode], bool]]:
    graph = subject.graph
    placer = Placer(subject.mesh)
    inside = _expert_modules(graph)
    shared = below_shared(graph)
    return {
        "unsharded": lambda node: placer.of(node).token in ("R", "-"),
        "replicated": lambda node: placer.of(node).token == "R",
        "unset": lambda node: not placer.of(node).decided,
        "tied": lambda node: bool(node.more) or node.parent in shared,
        "experts": lambda node: node.parent in inside or isinstance(node.lineage, Stack),
    }


def _expert_modules(graph: ModuleGraph) -> set[int]:
    """Modules with the usual name of an expert container, and all below them."""
    found: set[int] = set()
    for node in graph.modules():
        if node.parent in found or is_expert_name(node.name):
            found.add(node.id)
    return found


def _changed(subject: Subject, option: str) -> Collection[int]:
    """What a comparison found; of a run alone, what passes made, tied or renamed."""
    if subject.diff is not None:
        return subject.compared.keys()
    if subject.run is None:
        raise UsageError(
            f"{option} changed has nothing to compare with", fix="give a run, or add --diff OTHER"
        )
    kinds = ("derive", "alias", "rename")
    return {n for event in subject.run.events if event.kind in kinds for n in event.nodes}


def keep(graph: ModuleGraph, tensors: Collection[int]) -> ModuleGraph:
    """The graph with these tensors alone, and the modules that hold them; ids stay."""
    nodes = graph.nodes
    kept: set[int] = {graph.root}
    for node_id in tensors:
        node = nodes[node_id]
        for parent, _ in ((node.parent, ""), *node.more):
            _add_above(nodes, parent, kept)
    kept.update(tensors)
    for node in graph.modules():  # whoever asks what a wrapper wraps has to find it
        if node.id in kept and node.spec.wrapper is not None:
            kept.add(node.children[node.spec.wrapper])
    left: dict[int, Node] = {}
    for node_id, node in nodes.items():
        if node_id not in kept:
            continue
        if isinstance(node, ModuleNode):
            children = {name: child for name, child in node.children.items() if child in kept}
            if len(children) != len(node.children):
                node = node._replace(children=children, signature=0)
            more = tuple(edge for edge in node.more if edge[0] in kept)
            node = node if len(more) == len(node.more) else node._replace(more=more)
        left[node_id] = node
    return ModuleGraph(
        left,
        source=graph.source,
        hints=graph.hints,
        has_structure=graph.has_structure,
        next_id=max(nodes) + 1,
        flow=graph.flow,
    )


def _add_above(nodes: Mapping[int, Node], parent: int, kept: set[int]) -> None:
    todo = [parent]
    while todo:
        module = todo.pop()
        if module < 0 or module in kept:
            continue
        kept.add(module)
        node = nodes[module]
        todo.append(node.parent)
        todo.extend(above for above, _ in node.more)
