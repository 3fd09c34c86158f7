"""The odd one out: siblings that nearly all are equal, and where the others differ.

1. Only a minority deviates: where more than half of some numbered siblings are equal.
2. A difference in shape, dtype, requires_grad, layout, deciding pass or tie is a deviation; so is a
   tensor that only some have, by itself or as a module of tensors or one more of a list. Another
   class, or modules on both sides that the other lacks, are another kind of sibling (the dense
   layers of a mixture of experts): shown as a variant, not reported.
3. Each deviating tensor is reported once, against the nearest siblings that it differs from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hpx._text import counted, printable, shape_text
from hpx.graph.fold import FoldedGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.ranges import fold_names
from hpx.render.placing import Placer
from hpx.render.subject import Decision

__all__ = ["Deviation", "find_deviations"]


class Deviation(NamedTuple):
    """Tensors (or modules that lack one) that differ from their siblings in the same way.

    Attributes:
        nodes: Their ids.
        text: One line that says how, and from how many.
    """

    nodes: tuple[int, ...]
    text: str


def find_deviations(
    folded: FoldedGraph, placer: Placer, decisions: Mapping[int, Decision]
) -> list[Deviation]:
    """The deviations of a folded graph, in the order of the tree."""
    nodes = folded.graph.nodes
    by_node: dict[int, tuple[str, str]] = {}
    for parent, (usual, *others) in folded.families():
        total = sum(len(folded.groups[g].members) for g in (usual, *others))
        most = len(folded.groups[usual].members)
        if 2 * most <= total:
            continue
        beside = f"the other {most}" if len(others) == 1 else f"most ({most} of {total})"
        context = f"unlike {beside} of {printable(folded.path(parent)) or 'the model'}"
        for other in others:
            for member in folded.groups[other].members:
                found = list(_differences(folded, folded.groups[usual].node, member))
                for theirs, mine in found:
                    text = _describe(theirs, mine, placer, decisions)
                    # Groups come outermost first, so the nearest siblings have the last word.
                    by_node[mine if isinstance(mine, int) else mine.id] = (text, context)
    same: dict[tuple[str, str], list[int]] = {}
    for node_id, found_text in by_node.items():
        same.setdefault(found_text, []).append(node_id)
    return [
        Deviation(tuple(ids), f"{_names(folded, ids)} {text}, {context}")
        for (text, context), ids in same.items()
        if all(node_id in nodes for node_id in ids)
    ]


def _names(folded: FoldedGraph, ids: list[int]) -> str:
    return _short(fold_names(folded.graph.path(node_id) for node_id in ids))


def _short(names: list[str]) -> str:
    shown = ", ".join(printable(name) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {counted(len(names) - 3, 'more name')}"


def _differences(
    folded: FoldedGraph, theirs: int, mine: int
) -> Iterator[tuple[TensorNode | str, TensorNode | int]]:
    """Pairs of tensors that differ; a tensor that one side lacks is given by name or owner.

    Gives nothing at all where they are different kinds of siblings.
    """
    nodes, keys = folded.graph.nodes, folded.keys
    found: list[tuple[TensorNode | str, TensorNode | int]] = []
    todo = [(theirs, mine)]
    while todo:
        a, b = nodes[todo[-1][0]], nodes[todo.pop()[1]]
        if keys[a.id] == keys[b.id]:
            continue
        if isinstance(a, TensorNode) and isinstance(b, TensorNode):
            found.append((a, b))
        elif isinstance(a, ModuleNode) and isinstance(b, ModuleNode):
            if a.spec.cls != b.spec.cls or _other_kind(folded, a, b):
                return
            for name in sorted(b.children.keys() - a.children.keys()):
                found.extend((name, tensor) for tensor in _tensors(folded, b.children[name]))
            if lacking := a.children.keys() - b.children.keys():
                found.append((_short(fold_names(sorted(lacking))), b.id))
            todo.extend(
                (a.children[name], b.children[name]) for name in a.children if name in b.children
            )
        else:
            return
    yield from found


def _other_kind(folded: FoldedGraph, a: ModuleNode, b: ModuleNode) -> bool:
    """Whether modules that only one side has make it another kind of sibling.

    A module that holds tensors alone, and one more or less in a numbered list, do not.
    """
    nodes = folded.graph.nodes
    sides = []
    for one, other in ((a, b), (b, a)):
        odd = [(name, nodes[one.children[name]]) for name in one.children.keys() - other.children]
        modules = [(name, node) for name, node in odd if isinstance(node, ModuleNode)]
        if any(not name.isdecimal() and _holds_modules(folded, node) for name, node in modules):
            return True
        sides.append(bool(modules))
    return all(sides)


def _holds_modules(folded: FoldedGraph, node: ModuleNode) -> bool:
    return any(isinstance(folded.graph.nodes[c], ModuleNode) for c in node.children.values())


def _tensors(folded: FoldedGraph, node_id: int) -> Iterator[TensorNode]:
    """The tensors at or below a node, further names left out."""
    todo = [(node_id, -1)]
    while todo:
        node, parent = folded.graph.nodes[todo[-1][0]], todo.pop()[1]
        if isinstance(node, TensorNode):
            yield node
        elif parent in (-1, node.parent):
            todo.extend((child, node.id) for child in reversed(node.children.values()))


def _describe(
    theirs: TensorNode | str,
    mine: TensorNode | int,
    placer: Placer,
    decisions: Mapping[int, Decision],
) -> str:
    if isinstance(mine, int):
        return f"has no {theirs}"
    if isinstance(theirs, str):
        return "is there"
    for what, usual, here in (
        ("has shape", shape_text(theirs.shape), shape_text(mine.shape)),
        ("is", theirs.spec.dtype, mine.spec.dtype),
        ("is", theirs.kind, mine.kind),
        ("is", _trained(theirs), _trained(mine)),
        ("has layout", placer.of(theirs).token, placer.of(mine).token),
        ("is decided by", _pass(decisions, theirs), _pass(decisions, mine)),
    ):
        if usual != here:
            return f"{what} {here}, not {usual}"
    return "has other ties" if mine.more or theirs.more else "lives on another mesh"


def _trained(node: TensorNode) -> str:
    return "trained" if node.spec.requires_grad else "frozen"


def _pass(decisions: Mapping[int, Decision], node: TensorNode) -> str:
    return decisions[node.id].pass_ if node.id in decisions else "no pass"
