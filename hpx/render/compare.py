"""Draw what differs: the new side's graph, with what it lacks of the old one put back and marked.

1. What was removed stands where it stood, without a layout; it counts in no sum.
2. What changed says what it was: ``was layout tp:S(1)``.
3. Ids are those of the new side; what was put back has fresh ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hpx._text import printable
from hpx.diff import Change, diff_models
from hpx.errors import InputError
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import NO_PROPS, ModuleNode, ModuleSpec, TensorNode
from hpx.render.subject import Subject, run_until, subject_of
from hpx.render.viewmodel import Mark

if TYPE_CHECKING:
    from hpx.run import Run

__all__ = ["compared"]


def compared(old: Run | ModuleGraph, new: Run | ModuleGraph, step: int | None) -> Subject:
    """The comparison of two sides as one subject.

    Args:
        old: The old side.
        new: The new one, which is drawn.
        step: Of the old side, if it is a run: what it was after this step.

    Raises:
        UsageError: The old side has no such step.
        InputError: It is a saved run whose parameters are not those of its graph.
    """
    before = subject_of(old, step=step)
    if step is not None and not isinstance(old, ModuleGraph):
        old = run_until(old, step)
    after = subject_of(new)
    diff = diff_models(old, new)
    graph = ModuleGraph(
        dict(after.graph.nodes),
        source=after.graph.source,
        hints=after.graph.hints,
        has_structure=after.graph.has_structure,
        next_id=max(after.graph.nodes) + 1,  # a replayed graph did not take the ids it got
        flow=after.graph.flow,
    )
    marks: dict[int, Mark] = {}
    modules: dict[str, int] = {}
    was: dict[int, str] = {}
    for change in diff.changes:
        if change.what == "attribute":
            continue
        for name in change.names:
            node_id = graph.find(name)
            if change.what == "removed":
                marks[_put_back(graph, before.graph, name, modules)] = "removed"
            elif node_id is not None:
                marks[node_id] = "added" if change.what == "added" else "changed"
                if change.fields:  # of two that are tied now, both
                    was[node_id] = "; ".join(filter(None, (was.get(node_id), _was(change))))
    return replace(
        after,
        graph=graph,
        source=_sources(before, after),
        whole=after.graph,
        diff=diff,
        compared=marks,
        was=was,
    )


def _was(change: Change) -> str:
    """The old values, without those that follow from others."""
    found = {field: old for field, old, _ in change.fields}
    if "layout" in found:
        found.pop("mesh", None)
    if len(found) > 1:
        found.pop("rule", None)
    texts = [f"without {key}" if old == "none" else f"{key} {old}" for key, old in found.items()]
    return "; ".join(texts)


def _sources(before: Subject, after: Subject) -> str:
    old = before.source or "a model"
    if before.step:
        old = f"{old} ({before.step})"
    return f"{old} -> {after.source or 'a model'}"


def _put_back(graph: ModuleGraph, old: ModuleGraph, name: str, modules: dict[str, int]) -> int:
    """Add a tensor of the old graph under its name, with the modules that it needs.

    ``modules`` remembers where names lead to: thousands of names begin alike.
    """
    source_id = old.find(name)
    source = None if source_id is None else old.nodes[source_id]
    if not isinstance(source, TensorNode):
        raise InputError(
            f"the run of {old.source or 'a model'} is damaged",
            why=f"it lists a parameter '{printable(name)}', and its graph has none of that name",
            fix="run it again",
        )
    above, _, last = name.rpartition(".")
    here = _module_at(graph, old, above, modules)
    tensor = TensorNode(0, source.kind, 0, last, (), source.spec._replace(placed=None))
    return _add(graph, here, last, tensor)


def _module_at(graph: ModuleGraph, old: ModuleGraph, path: str, modules: dict[str, int]) -> int:
    """The module of this name, made like the old one where it is gone; inside its wrappers."""
    here = _inside(graph, graph.root)
    known = ""
    for part in path.split(".") if path else []:
        known = f"{known}.{part}" if known else part
        if known not in modules:
            found = graph.find(known)
            if found is None or not isinstance(graph.nodes[found], ModuleNode):
                found = _add(graph, here, part, _module(old, known))
            modules[known] = _inside(graph, found)
        here = modules[known]
    return here


def _inside(graph: ModuleGraph, module: int) -> int:
    while (wrapped := graph.module(module).spec.wrapper) is not None:
        module = graph.module(module).children[wrapped]
    return module


def _module(old: ModuleGraph, path: str) -> ModuleNode:
    found = old.find(path)
    node = None if found is None else old.nodes[found]
    cls = node.spec.cls if isinstance(node, ModuleNode) else ""
    return ModuleNode(0, 0, "", (), ModuleSpec(cls), {}, 0, NO_PROPS)


def _add(graph: ModuleGraph, parent: int, name: str, node: ModuleNode | TensorNode) -> int:
    """Put a node below a module; a name that is taken gets a mark of its own."""
    owner = graph.module(parent)
    while name in owner.children:
        name = f"{name} (old)"
    node_id = graph.take_id()
    if isinstance(node, ModuleNode):
        graph.nodes[node_id] = node._replace(id=node_id, parent=parent, name=name)
    else:
        graph.nodes[node_id] = node._replace(id=node_id, parent=parent, name=name)
    graph.nodes[parent] = owner._replace(children={**owner.children, name: node_id}, signature=0)
    graph.forget_order()
    return node_id
