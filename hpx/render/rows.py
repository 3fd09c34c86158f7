"""One row of a view: everything there is to say about a group of equal tensors."""

from __future__ import annotations

from collections.abc import Mapping

from hpx.graph.fold import FoldedGraph, Group
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import TensorNode
from hpx.lineage import Stack
from hpx.render.placing import Placing
from hpx.render.subject import Subject
from hpx.render.sums import GroupSum, Sums
from hpx.render.viewmodel import Mark, Row

__all__ = ["RowMaker", "experts_in"]

_NOWHERE = Placing("", False, None, None, None, 0, ())


class RowMaker:
    """Makes the rows of one view."""

    def __init__(
        self, folded: FoldedGraph, sums: Sums, subject: Subject, marks: Mapping[int, Mark]
    ) -> None:
        self._folded = folded
        self._graph = folded.graph
        self._sums = sums.groups
        self._ties = sums.ties
        self._has_layouts = bool(sums.tokens)
        self._subject = subject
        self._marks = marks

    def make(self, index: int, label: str) -> Row:
        """The row of a tensor's group, or of a further name of a tensor or module."""
        group = self._folded.groups[index]
        node = self._graph.nodes[group.node]
        path = self._folded.path(index)
        if group.link:
            return self._link(group, label, path)
        assert isinstance(node, TensorNode)
        total = self._sums[index]
        placing = total.placings[0] if total.placings else _NOWHERE
        reduce = node.props.get("reduce", ())
        return Row(
            label=label,
            path=path,
            node=node.id,
            kind=node.kind,
            count=group.count,
            shape=node.shape,
            dtype=node.spec.dtype,
            requires_grad=node.spec.requires_grad,
            token=_token(total.placings),
            mesh=placing.mesh,
            local_shape=placing.local_shape,
            ranges=placing.ranges,
            pieces=placing.pieces,
            bytes=total.bytes if node.kind == "parameter" else node.spec.num_bytes * group.count,
            passes=tuple(total.passes),
            rule=self._rule(node),
            ties=self._ties.further.get(index, ()),
            experts=experts_in(self._graph, node),
            reduce=tuple(reduce) if isinstance(reduce, tuple) else (),
            mark=self._mark(group, node, total),
            was=self._subject.was.get(group.node, ""),
            warned=total.warned,
        )

    def _link(self, group: Group, label: str, path: str) -> Row:
        node = self._graph.nodes[group.node]
        tensor = node if isinstance(node, TensorNode) else None
        return Row(
            label=label,
            path=path,
            node=node.id,
            kind="link",
            count=group.count,
            shape=tensor.shape if tensor else (),
            dtype=tensor.spec.dtype if tensor else "",
            requires_grad=tensor.spec.requires_grad if tensor else False,
            token="",
            ties=self._ties.first.get(group.index) or (self._graph.path(node.id),),
        )

    def _rule(self, node: TensorNode) -> str | None:
        decision = self._subject.decisions.get(node.id)
        return decision.rule.where if decision is not None and decision.rule is not None else None

    def _mark(self, group: Group, node: TensorNode, total: GroupSum) -> Mark:
        if total.marked:
            return next(
                (self._marks[member] for member in group.members if member in self._marks),
                "deviates",
            )
        undecided = any(not placing.decided for placing in total.placings)
        if self._has_layouts and undecided and node.kind == "parameter":
            return "unset"
        return ""


def _token(placings: list[Placing]) -> str:
    if not placings:
        return ""
    tokens = {placing.token for placing in placings}
    return tokens.pop() if len(tokens) == 1 else "mixed"


def experts_in(graph: ModuleGraph, node: TensorNode) -> int | None:
    """How many experts lie side by side in one parameter; None for other tensors."""
    if isinstance(node.lineage, Stack):
        return len(node.lineage.parts)
    owner = graph.nodes.get(node.parent)
    fused = owner is not None and owner.name == "experts" and len(node.shape) == 3
    return node.shape[0] if fused and node.kind == "parameter" else None
