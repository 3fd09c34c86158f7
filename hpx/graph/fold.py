"""Fold a graph: equal siblings with numeric names become one group, ``layers.0-29,31-57``.

1. Every node gets a key, bottom-up and without recursion: of a tensor its kind, shape, dtype and
   ``requires_grad``; of a module its class, the names of its children and their keys. Folding by
   layout adds a tensor's layout, mesh view and deciding pass, and a module's edited attributes.
2. Ties count relative to where they stand: a head tied to the embedding differs from one that is
   not, and layers that are each tied within themselves are equal.
3. Siblings with numeric names and equal keys fold, whether neighbours or not. Other siblings stay.
4. Nothing is dropped: every node of the graph belongs to exactly one group.
5. A node that is set apart folds with no sibling; neither do the modules above it, unless their
   other siblings hold one at the same place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, Node, TensorNode
from hpx.ranges import number_text

__all__ = ["FoldBy", "FoldedGraph", "Group", "fold_graph"]

FoldBy: TypeAlias = Literal["structure", "layout", "none"]
"""What has to be equal for siblings to fold; ``none`` folds nothing."""


@dataclass(frozen=True, slots=True)
class Group:
    """Equal siblings, drawn once.

    Attributes:
        index: Its place among the groups, which are in preorder.
        parent: The index of the group above, -1 for the root.
        name: The registered name, or the numbers of all members: ``0-29,31-57``.
        members: The ids of the siblings below *one* parent; the first stands for all.
        count: How often it occurs in the whole graph: its members times those above.
        children: The groups below the first member, by index.
        link: Whether it is a further name of a node that belongs to a group elsewhere.
    """

    index: int
    parent: int
    name: str
    members: tuple[int, ...]
    count: int
    children: tuple[int, ...]
    link: bool

    @property
    def node(self) -> int:
        """The id of the first member."""
        return self.members[0]


class FoldedGraph:
    """The groups of a graph in preorder, and which nodes each stands for.

    Attributes:
        graph: The graph that was folded.
        by: What had to be equal.
        groups: The groups; the first is the root.
        keys: A number for every node; equal for nodes that fold.
        opened: The nodes that were set apart, and the modules above them.
    """

    def __init__(
        self,
        graph: ModuleGraph,
        by: FoldBy,
        groups: list[Group],
        keys: dict[int, int],
        opened: Collection[int] = (),
    ) -> None:
        self.graph = graph
        self.by: FoldBy = by
        self.groups = groups
        self.keys = keys
        self.opened = opened

    def child_at(self, index: int, name: str) -> int | None:
        """The group that a child name of the modules of a group belongs to."""
        first = self.graph.nodes[self.groups[index].node]
        if not isinstance(first, ModuleNode) or name not in first.children:
            return None
        return self._names_below(first, index).get(name)

    def owner_of(self) -> dict[int, int]:
        """The group of every node, by id; what is below any member counts to that of the first."""
        graph, nodes, start = self.graph, self.graph.nodes, self.groups[0].node
        found = {graph.root: 0, start: 0}
        below: list[dict[str, int] | None] = [None] * len(self.groups)
        for node in graph.walk(None if start == graph.root else start):
            if not isinstance(node, ModuleNode):
                continue
            group = found[node.id]
            names = below[group]
            if names is None:
                first = nodes[self.groups[group].node]
                assert isinstance(first, ModuleNode)
                names = below[group] = self._names_below(first, group)
            for name, child in node.children.items():
                there = nodes[child]
                if not there.more or (there.parent == node.id and there.name == name):
                    found[child] = names[name]
        return found

    def _names_below(self, first: ModuleNode, group: int) -> dict[str, int]:
        """Which group each child name of a module belongs to."""
        names: dict[str, int] = {}
        by_member = {
            (member, self.groups[child].link): child
            for child in self.groups[group].children
            for member in self.groups[child].members
        }
        nodes = self.graph.nodes
        for name, child_id in first.children.items():
            link = (nodes[child_id].parent, nodes[child_id].name) != (first.id, name)
            names[name] = by_member[child_id, link]
        return names

    def families(self) -> Iterator[tuple[int, list[int]]]:
        """Numbered siblings of one kind that fell into several groups.

        Yields:
            The group above, and the groups, largest first. Only where at least two siblings are
            equal: otherwise there is nothing that one could differ from. What was set apart is
            in none: it is there to be seen as it is.
        """
        for parent, same in self._kinds():
            same.sort(key=lambda child: -len(self.groups[child].members))
            if len(self.groups[same[0]].members) > 1:
                yield parent, same

    def unlike(self) -> Iterator[tuple[int, list[int]]]:
        """Numbered sibling modules of one kind of which no two are equal, in order."""
        for parent, same in self._kinds():
            alone = all(len(self.groups[child].members) == 1 for child in same)
            if alone and isinstance(self.graph.nodes[self.groups[same[0]].node], ModuleNode):
                yield parent, same

    def _kinds(self) -> Iterator[tuple[int, list[int]]]:
        """The group above, and two or more groups of numbered siblings of one kind."""
        nodes = self.graph.nodes
        for group in self.groups:
            if len(group.children) < 2:
                continue
            kinds: dict[str, list[int]] = {}
            for child in group.children:
                one = self.groups[child]
                if one.node in self.opened:
                    continue
                if (len(one.members) > 1 or _is_number(one.name)) and not one.link:
                    node = nodes[one.node]
                    kind = node.spec.cls if isinstance(node, ModuleNode) else f" {node.kind}"
                    kinds.setdefault(kind, []).append(child)
            yield from ((group.index, same) for same in kinds.values() if len(same) > 1)

    def path(self, index: int) -> str:
        """The canonical name of a group, numbers folded: ``model.layers.0-57.mlp``."""
        parts: list[str] = []
        while index >= 0:
            group = self.groups[index]
            above = self.groups[group.parent] if group.parent >= 0 else None
            owner = self.graph.nodes[above.node] if above is not None else None
            wrapped = isinstance(owner, ModuleNode) and owner.spec.wrapper == group.name
            if group.name and not wrapped and above is not None:
                parts.append(group.name)
            index = group.parent
        return ".".join(reversed(parts))


def fold_graph(
    graph: ModuleGraph,
    by: FoldBy = "structure",
    *,
    decided: Mapping[int, str] | None = None,
    tags: Mapping[int, str] | None = None,
    apart: Collection[int] = (),
    start: int | None = None,
) -> FoldedGraph:
    """Fold equal siblings with numeric names.

    Args:
        graph: The graph; it stays as it is.
        by: ``structure``, ``layout``, or ``none`` to give every node a group of its own.
        decided: The pass that decided a parameter's layout, by node id; counts by layout only.
        tags: What else has to be equal, by node id.
        apart: Ids of nodes that do not fold, and of modules whose children do not.
        start: Id of the node to begin at; the root if not given.
    """
    ties = _relative_ties(graph)
    notes = dict(tags or {})
    for node_id in apart:
        notes[node_id] = f"{notes.get(node_id, '')} apart"
    keys = _keys(graph, by, decided or {}, notes, ties)
    first = graph.root if start is None else start
    groups = _groups(graph, keys, first, frozenset(apart), fold=by != "none")
    return FoldedGraph(graph, by, groups, keys, _with_above(graph, apart))


def _with_above(graph: ModuleGraph, apart: Collection[int]) -> set[int]:
    """The nodes that were set apart, children of such modules, and the modules above."""
    found: set[int] = set()
    for node_id in apart:
        node = graph.nodes[node_id]
        if isinstance(node, ModuleNode):
            found.update(node.children.values())
        while node_id >= 0 and node_id not in found:
            found.add(node_id)
            node_id = graph.nodes[node_id].parent
    return found


# -- keys --------------------------------------------------------------------------------------


def _keys(
    graph: ModuleGraph,
    by: FoldBy,
    decided: Mapping[int, str],
    tags: Mapping[int, str],
    ties: Mapping[tuple[int, str], object],
) -> dict[int, int]:
    numbers: dict[object, int] = {}
    number_of = numbers.setdefault
    keys: dict[int, int] = {}
    key_of = keys.__getitem__
    by_layout = by == "layout"
    # The walk has parents first; backwards, children come first.
    for node in reversed(list(graph.walk())):
        key: object
        if isinstance(node, TensorNode):
            spec = node.spec
            key = (node.kind, spec.shape, spec.dtype, spec.requires_grad)
            if by_layout:
                key = (key, node.layout, node.mesh, decided.get(node.id), spec.placed)
        else:
            children = node.children
            below = (
                _child_keys(node, keys, numbers, ties) if ties else map(key_of, children.values())
            )
            key = (node.spec.cls, *children, *below)
            if by_layout and node.props:
                edited = [(k, v) for k, v in node.props.items() if k.startswith("attributes.")]
                key = (key, repr(sorted(edited)))
        if node.more:
            key = (key, ties[node.parent, node.name])
        if node.id in tags:
            key = (key, tags[node.id])
        keys[node.id] = number_of(key, len(numbers))
    return keys


def _child_keys(
    node: ModuleNode,
    keys: Mapping[int, int],
    numbers: dict[object, int],
    ties: Mapping[tuple[int, str], object],
) -> list[int]:
    found: list[int] = []
    for name, child in node.children.items():
        tie = ties.get((node.id, name))
        # A further name is told apart by where its node lives; an owner's key has its ties in it.
        if isinstance(tie, str):
            found.append(numbers.setdefault(tie, len(numbers)))
        else:
            found.append(keys[child])
    return found


def _relative_ties(graph: ModuleGraph) -> dict[tuple[int, str], object]:
    """What ties say about every place of a node that has several.

    Of a further name it is the way to the first, as text; of the first the ways to the others.
    """
    found: dict[tuple[int, str], object] = {}
    for node in graph.nodes.values():
        if not node.more:
            continue
        first = (node.parent, node.name)
        home = _parts(graph, first)
        ways: set[str] = set()
        for place in node.more:
            away = _parts(graph, place)
            ways.add(_way(home, away))
            found[place] = _way(away, home)
        found[first] = frozenset(ways)
    return found


def _parts(graph: ModuleGraph, place: tuple[int, str]) -> list[str]:
    parent, name = place
    parts = [name]
    while parent >= 0:
        node = graph.nodes[parent]
        parts.append(node.name)
        parent = node.parent
    parts.reverse()
    return parts


def _way(start: list[str], end: list[str]) -> str:
    """The way from one place to another; where it branches between numbers, whichever they are."""
    same = 0
    while same < min(len(start), len(end)) - 1 and start[same] == end[same]:
        same += 1
    down = end[same:]
    if _is_number(start[same]) and _is_number(down[0]):
        down = ["#", *down[1:]]
    # Layer i of one list tied to layer i of another: the number is that of the way's start.
    down = [
        "#"
        if place and _is_number(part) and start[same + place : same + place + 1] == [part]
        else part
        for place, part in enumerate(down)
    ]
    return "/".join([".."] * (len(start) - same - 1) + down)


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and (name == "0" or name[0] != "0")


# -- groups ------------------------------------------------------------------------------------


def _groups(
    graph: ModuleGraph,
    keys: dict[int, int],
    start: int,
    apart: frozenset[int],
    *,
    fold: bool,
) -> list[Group]:
    groups: list[Group] = []
    children: list[list[int]] = []
    todo: list[tuple[int, str, tuple[int, ...], int, bool]] = [
        (-1, graph.nodes[start].name, (start,), 1, False)
    ]
    while todo:
        parent, name, members, count, link = todo.pop()
        index = len(groups)
        groups.append(Group(index, parent, name, members, count, (), link))
        children.append([])
        if parent >= 0:
            children[parent].append(index)
        node = graph.nodes[members[0]]
        if isinstance(node, ModuleNode) and not link:
            below = [
                (index, text, ids, count * len(ids), is_link)
                for text, ids, is_link in _siblings(graph.nodes, node, keys, apart, fold=fold)
            ]
            todo.extend(reversed(below))
    return [replace(group, children=tuple(children[group.index])) for group in groups]


def _siblings(
    nodes: Mapping[int, Node],
    owner: ModuleNode,
    keys: Mapping[int, int],
    apart: frozenset[int],
    *,
    fold: bool,
) -> list[tuple[str, tuple[int, ...], bool]]:
    """The children of one module as (name or numbers, ids, whether further names)."""
    found: dict[object, tuple[list[str], list[int], bool]] = {}
    here = owner.id
    fold = fold and here not in apart
    for name, child in owner.children.items():
        node = nodes[child]
        link = node.parent != here or node.name != name
        folds = fold and _is_number(name) and child not in apart
        key: object = (keys[child], link) if folds else name
        names, ids, _ = found.setdefault(key, ([], [], link))
        names.append(name)
        ids.append(child)
    return [
        (names[0] if len(names) == 1 else number_text(map(int, names)), tuple(ids), link)
        for names, ids, link in found.values()
    ]
