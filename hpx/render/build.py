"""Make the view of a graph: fold it, find the odd ones out, and sort groups into boxes and rows.

1. A module is a box. A module that holds nothing but a few tensors is no box of its own: its
   tensors are rows of the box above, as ``q_proj.weight``.
2. Chains of single children are one box: ``model.layers``.
3. Modules without any tensor below are left out; they hold nothing to place.
4. A list that holds nothing but variants is no box either: ``layers.0-29,31-57``, ``layers.30``.
5. Of siblings that are not the usual ones, only what differs is drawn; the rest is named as equal.
   Where all are different, those that share half or more with an earlier one are drawn like that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hpx.graph.fold import FoldBy, FoldedGraph, Group, fold_graph
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode
from hpx.pipeline.context import Problem
from hpx.ranges import fold_names
from hpx.render.deviations import Deviation, find_deviations
from hpx.render.matched import matched_names
from hpx.render.more import more_facts
from hpx.render.placing import Placer
from hpx.render.rows import RowMaker
from hpx.render.subject import Subject
from hpx.render.sums import GroupSum, Sums, add_up
from hpx.render.viewmodel import Box, Finding, Item, Mark, View

__all__ = ["build_view", "marks_of", "title_of"]

_FLAT = 6
"""A module of at most so many tensors and nothing else is rows, not a box."""
_ALIKE = 0.5
"""A module that shares so much with an earlier sibling is drawn by what differs."""
_MOST_BASES = 8
"""It is compared with so many of them."""
_MOST_NAMES = 3
"""A problem names so many of its parameters."""
_MOST_VARIANTS = 4
"""A list of at most so many variants and nothing else is no box."""


def build_view(
    subject: Subject,
    *,
    fold: FoldBy = "layout",
    root: str | None = None,
    rank: int = 0,
    expand: Sequence[str] = (),
) -> View:
    """The view of a subject.

    Args:
        subject: What to view.
        fold: What has to be equal for siblings to fold.
        root: The name of the module to begin at.
        rank: The rank whose pieces are shown.
        expand: Patterns of nodes that do not fold, and of modules whose children do not.

    Raises:
        UsageError: There is no node ``root``, or a pattern matches nothing.
        MeshError: The mesh has no such rank.
    """
    graph = subject.graph
    start = graph.root if root is None else _module_at(graph, root)
    placer = Placer(subject.mesh, rank)
    decided = {node_id: decision.pass_ for node_id, decision in subject.decisions.items()}
    usual = fold_graph(
        subject.full_graph,
        "layout",
        decided=decided,
        start=start if start in subject.full_graph.nodes else None,
    )
    apart = matched_names(graph, expand, "--expand") if expand else ()
    if graph is subject.full_graph and fold == "layout" and not apart:
        folded = usual
    else:
        tags = {n: f"{mark} {subject.was.get(n, '')}" for n, mark in subject.compared.items()}
        folded = fold_graph(graph, fold, decided=decided, tags=tags, apart=apart, start=start)
    deviations = [
        found
        for found in find_deviations(usual, placer, subject.decisions)
        if any(node_id in graph.nodes for node_id in found.nodes)
    ]
    marks = marks_of(subject, deviations)
    sums = add_up(
        folded,
        placer,
        subject.decisions,
        marked=marks.keys(),
        warned={n for p in subject.problems if p.level == "warning" for n in p.nodes},
        removed={n for n, mark in subject.compared.items() if mark == "removed"},
        original_parameters=None if subject.selection else subject.original_parameters,
        with_mesh=subject.mesh is not None,
    )
    boxes = _Boxes(folded, sums, RowMaker(folded, sums, subject, marks), marks).build()
    return View(
        title=title_of(graph, start),
        source=subject.source,
        boxes=tuple(boxes),
        findings=(*_deviating(deviations), *_unset(boxes), *_problems(subject)),
        totals=sums.totals,
        tokens=sums.tokens,
        passes=sums.passes,
        dtypes=sums.dtypes,
        mesh=subject.mesh,
        rank=rank,
        step=subject.step,
        fold=fold,
        full_depth=max(box.depth for box in boxes),
        extra=tuple(more_facts(subject)),
        changes=tuple(str(subject.diff).split("\n")) if subject.diff else (),
        marks=marks,
    )


def _module_at(graph: ModuleGraph, path: str) -> int:
    node = graph.get(path)
    return node.id if isinstance(node, ModuleNode) else node.parent


def title_of(graph: ModuleGraph, start: int) -> str:
    """What a view is called that begins at a module: its path and class."""
    cls = graph.module(start).spec.short_cls
    path = graph.path(start)
    return f"{path} ({cls})" if path and cls else path or cls or "model"


def marks_of(subject: Subject, deviations: list[Deviation]) -> dict[int, Mark]:
    """How nodes are marked: conflicts, deviations, and what a comparison found.

    Args:
        subject: What is drawn.
        deviations: Layers that are unlike the others.
    """
    marks: dict[int, Mark] = {}
    for problem in subject.problems:
        if problem.level == "error":
            marks.update(dict.fromkeys(problem.nodes, "conflict"))
    for deviation in deviations:
        marks.update(dict.fromkeys(deviation.nodes, "deviates"))
    return {**marks, **subject.compared}


def _deviating(deviations: list[Deviation]) -> list[Finding]:
    return [Finding("deviation", deviation.text) for deviation in deviations]


def _unset(boxes: list[Box]) -> list[Finding]:
    rows = [row for box in boxes for row in box.rows if row.mark == "unset"]
    if not rows:
        return []
    count = sum(row.count for row in rows)
    names = ", ".join(row.path for row in rows[:3])
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    what = "1 parameter has" if count == 1 else f"{count:,} parameters have"
    return [Finding("error", f"{what} no layout: {names}{more}")]


def _problems(subject: Subject) -> list[Finding]:
    order = {"error": 0, "warning": 1, "info": 2}
    ranked = sorted(subject.problems, key=lambda problem: order[problem.level])
    return [Finding(p.level, _with_names(subject, p), p.hint) for p in ranked]


def _with_names(subject: Subject, problem: Problem) -> str:
    """What a problem says, and of what, where it does not say so itself."""
    graph = subject.full_graph
    names = fold_names(graph.path(node) for node in problem.nodes if node in graph.nodes)
    told = [name for name in names if name and not _says(problem.text, name)]
    more = f" and {len(told) - _MOST_NAMES} more" if len(told) > _MOST_NAMES else ""
    return f"{', '.join(told[:_MOST_NAMES])}{more}: {problem.text}" if told else problem.text


def _says(text: str, name: str) -> bool:
    """Whether a name stands in a text; ``u`` is not in ``uneven``."""
    return re.search(rf"(?<![\w.]){re.escape(name)}(?!\.?\w)", text) is not None


@dataclass(slots=True)
class _Task:
    """A group to turn into a box: where, under which label, and what it is compared with."""

    group: int
    parent: int
    slot: int
    label: str
    notes: list[str]
    twin: int | None
    twin_name: str


@dataclass(slots=True)
class _Below:
    """What is below a box besides its rows."""

    tasks: list[_Task]
    same: list[str]
    notes: list[str]


class _Boxes:
    """Sorts the groups of a folded graph into boxes."""

    def __init__(
        self, folded: FoldedGraph, sums: Sums, rows: RowMaker, marks: Mapping[int, Mark]
    ) -> None:
        self.folded = folded
        self.groups = folded.groups
        self.all_sums = sums
        self.sums: list[GroupSum] = sums.groups
        self.rows = rows
        self.marks = marks
        self.shown: list[list[int]] = [
            [child for child in group.children if self.sums[child].tensors] for group in self.groups
        ]
        self.flat = self._find_flat()
        self.variants: dict[int, list[str]] = {}
        self.lists: set[int] = set()
        self.usual: dict[int, int] = {}
        for parent, family in folded.families():
            sizes = " / ".join(str(len(self.groups[g].members)) for g in family)
            self.variants.setdefault(parent, []).append(f"{len(family)} variants: {sizes}")
            self.usual.update(dict.fromkeys(family[1:], family[0]))
            boxed = all(self._is_module(g) and not self.flat[g] for g in family)
            if boxed and len(family) == len(self.shown[parent]) <= _MOST_VARIANTS and parent:
                self.lists.add(parent)

        if folded.by != "none":
            self._find_likes()

    def _find_likes(self) -> None:
        """Of siblings that are all different, which ones are drawn by what differs from another."""
        for parent, (first, *others) in self.folded.unlike():
            drawn = [first]
            for child in others:
                shares = {base: self._share(base, child) for base in drawn[-_MOST_BASES:]}
                best = max(shares, key=lambda base: shares[base])
                if self.flat[child] or shares[best] < _ALIKE:
                    drawn.append(child)
                else:
                    self.usual[child] = best
            if len(drawn) <= len(others):
                self.variants.setdefault(parent, []).append(
                    f"{len(others) + 1} variants of one each"
                )

    def _share(self, one: int, other: int) -> float:
        """How much of what one module holds directly is the same in another."""
        keys, groups = self.folded.keys, self.groups
        a, b = (self.folded.graph.module(groups[index].node).children for index in (one, other))
        same = sum(1 for name in a if name in b and keys[a[name]] == keys[b[name]])
        return same / max(len(a), len(b), 1)

    def _is_module(self, index: int) -> bool:
        return isinstance(self.folded.graph.nodes[self.groups[index].node], ModuleNode)

    def _find_flat(self) -> list[bool]:
        """Which modules are rows of the box above."""
        flat = [False] * len(self.groups)
        for group in reversed(self.groups):
            below = self.shown[group.index]
            if group.parent < 0 or not below or not self._is_module(group.index) or group.link:
                continue
            only_tensors = not any(self._is_module(c) and not self.groups[c].link for c in below)
            flat[group.index] = (only_tensors and len(below) <= _FLAT) or (
                len(below) == 1 and flat[below[0]]
            )
        return flat

    def build(self) -> list[Box]:
        boxes: list[Box] = []
        items: list[list[Item]] = []
        todo = [_Task(0, -1, 0, "", [], None, "")]
        while todo:
            task = self._merge_chain(todo.pop())
            index = len(boxes)
            boxes.append(self._box(index, boxes, task))
            items.append([])
            if task.parent >= 0:
                items[task.parent][task.slot] = index
            below = self._fill(items[index], task, index)
            boxes[index] = replace(
                boxes[index],
                same=tuple(below.same),
                notes=(*boxes[index].notes, *below.notes),
            )
            todo.extend(reversed(below.tasks))
        done = [replace(box, items=tuple(items[box.index])) for box in boxes]
        return _with_alerts(done)

    def _merge_chain(self, task: _Task) -> _Task:
        """Go down as long as there is one child only, and it is a box."""
        while task.parent >= 0:
            below = self.shown[task.group]
            if len(below) != 1 or self.flat[below[0]] or not self._is_module(below[0]):
                break
            child = self.groups[below[0]]
            if child.link:
                break
            twin = self._twin(task.twin, child)
            notes = task.notes + self._notes(task.group)
            label = f"{task.label}.{child.name}"
            task = replace(task, group=child.index, label=label, notes=notes, twin=twin)
        return task

    def _box(self, index: int, boxes: list[Box], task: _Task) -> Box:
        group = self.groups[task.group]
        total = self.sums[task.group]
        node = self.folded.graph.module(group.node)
        return Box(
            index=index,
            parent=task.parent,
            depth=boxes[task.parent].depth + 1 if task.parent >= 0 else 0,
            label=task.label,
            path=self.folded.path(task.group),
            cls=node.spec.short_cls,
            members=group.count // (self._count(boxes, task.parent)),
            count=group.count,
            items=(),
            notes=tuple(task.notes + self._notes(task.group)),
            same=(),
            same_as=task.twin_name,
            parameters=total.parameters,
            bytes=total.bytes,
            tokens=tuple(sorted(total.tokens.items(), key=lambda pair: (-pair[1], pair[0]))),
            mark=self.marks.get(group.node, ""),
        )

    @staticmethod
    def _count(boxes: list[Box], parent: int) -> int:
        return boxes[parent].count if parent >= 0 else 1

    def _notes(self, group: int) -> list[str]:
        notes = list(self.variants.get(group, ()))
        node = self.folded.graph.module(self.groups[group].node)
        before = dict(node.spec.attributes)
        for key, value in sorted(node.props.items()):
            name = key.removeprefix("attributes.")
            if name != key and before.get(name) != value:
                notes.append(f"{name} {before.get(name, 'unset')} -> {value}")
        if node.more:
            notes.append(f"shared: {', '.join(self.all_sums.ties.further[group])}")
        return notes

    def _fill(self, items: list[Item], task: _Task, index: int) -> _Below:
        """Put rows, and places for the boxes below, into a box."""
        found = _Below([], [], [])
        todo = [(child, "", task.twin, False) for child in reversed(self.shown[task.group])]
        while todo:
            child, prefix, twin, odd = todo.pop()
            group = self.groups[child]
            label = f"{prefix}{group.name}"
            beside = self._twin(twin, group)
            if beside is not None and self.folded.keys[beside] == self.folded.keys[group.node]:
                found.same.append(label)
            elif not self._is_module(child) or group.link:
                row = self.rows.make(child, label)
                items.append(replace(row, mark=row.mark or "deviates") if odd else row)
            elif self.flat[child] or child in self.lists:
                # A module that lacks a tensor is marked itself: its rows show that.
                odd = odd or (self.flat[child] and self.sums[child].marked)
                found.notes.extend(f"{label}: {note}" for note in self._notes(child))
                below = reversed(self.shown[child])
                todo.extend((grandchild, f"{label}.", beside, odd) for grandchild in below)
            else:
                name = task.twin_name
                if beside is None and child in self.usual:
                    usual = self.groups[self.usual[child]]
                    above = self.groups[usual.parent].name
                    beside, name = usual.node, f"{above}.{usual.name}" if above else usual.name
                found.tasks.append(_Task(child, index, len(items), label, [], beside, name))
                items.append(-1)
        return found

    def _twin(self, twin: int | None, group: Group) -> int | None:
        """The node that has the place of a group among the usual siblings."""
        if twin is None or group.link:
            return None
        nodes = self.folded.graph.nodes
        owner = nodes[twin]
        if not isinstance(owner, ModuleNode):
            return None
        places = [owner.children.get(nodes[member].name) for member in group.members]
        if any(place is not None and nodes[place].parent != twin for place in places):
            return None  # a further name of something else
        keys = {self.folded.keys[place] for place in places if place is not None}
        # Members that have no place there, or places of several kinds, cannot be compared.
        return places[0] if None not in places and len(keys) == 1 else None


def _with_alerts(boxes: list[Box]) -> list[Box]:
    alert = [bool(box.mark) or any(row.mark for row in box.rows) for box in boxes]
    for box in reversed(boxes):
        if alert[box.index] and box.parent >= 0:
            alert[box.parent] = True
    return [replace(box, alert=alert[box.index]) for box in boxes]
