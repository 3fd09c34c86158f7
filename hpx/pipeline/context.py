"""The only way a pass edits a graph: each call is one event, applied the moment it is recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from hpx.errors import ContractError, HpxError, Numbers, PassError
from hpx.graph.edit import derived_spec
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.lineage import Lineage, Permute, Source, Stack
from hpx.mesh import MeshSpec
from hpx.pipeline.info import Pass
from hpx.pipeline.request import Request
from hpx.plan import Rule, ShardingPlan
from hpx.provenance import Derivation, Event, EventKind, Provenance, apply_event
from hpx.ranges import compact_ids, expand_ids, fold_names, pack_ids

__all__ = ["PassContext", "Problem"]

Nodes: TypeAlias = int | Iterable[int]


class Problem(NamedTuple):
    """Something a person should look at: not wrong enough to refuse.

    Attributes:
        level: How grave it is.
        nodes: Ids of the modules and tensors that it is about.
        text: What it is, with its numbers.
        hint: What to do about it.
        check: The check that found it, as ``docs/checks.md`` names them.
        numbers: Its numbers by name.
    """

    level: Literal["error", "warning", "info"]
    nodes: tuple[int, ...]
    text: str
    hint: str
    check: str = ""
    numbers: Numbers = ()

    def to_json(self) -> dict[str, object]:
        """As it stands in a saved run."""
        return {
            "level": self.level,
            "check": self.check,
            "node": pack_ids(self.nodes),
            "text": self.text,
            "hint": self.hint,
            "numbers": dict(self.numbers),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Problem:
        """The inverse of `to_json`; older runs name no check and no numbers."""
        return cls(
            level=value["level"],
            nodes=tuple(expand_ids(value["node"])),
            text=value["text"],
            hint=value["hint"],
            check=value.get("check", ""),
            numbers=tuple(value.get("numbers", {}).items()),
        )


class PassContext:
    """What a pass gets beside the graph: the request, and the verbs that edit.

    Attributes:
        request: The plan and the mesh.
        step: The number of this step in the schedule, from 1.
        name: The name of this step, such as ``shard-params``.
        entry: The graph before the first step.
    """

    def __init__(
        self,
        graph: ModuleGraph,
        request: Request,
        log: Provenance,
        pass_: Pass,
        *,
        step: int = 1,
        name: str | None = None,
        entry: ModuleGraph | None = None,
    ) -> None:
        self._graph = graph
        self.entry = graph.copy() if entry is None else entry
        self._log = log
        self._pass = pass_
        self.request = request
        self.step = step
        self.name = name or pass_.info.name
        self.problems: list[Problem] = []

    @property
    def plan(self) -> ShardingPlan:
        """The plan of the request."""
        return self.request.plan

    @property
    def mesh(self) -> MeshSpec:
        """The mesh of the request."""
        return self.request.mesh

    def decision(self, node: int, key: str) -> Event | None:
        """The event that gave a node its present value of a key, if one did."""
        return next(
            (
                event
                for event in reversed(self._log.events)
                if event.kind == "set" and event.key == key and node in event.nodes
            ),
            None,
        )

    # -- verbs -------------------------------------------------------------------------------

    def set(
        self,
        nodes: Nodes,
        key: str,
        value: object,
        *,
        why: str,
        rule: Rule | None = None,
        cause: int | None = None,
    ) -> int:
        """Give a key of some nodes one value.

        Args:
            nodes: A node id, or several for which this is one decision.
            key: ``layout``, ``mesh``, ``attributes.num_heads``, ... or a key of the pass's own.
            value: A `Layout`, or anything JSON can hold. None removes the key.
            why: The reason, with its numbers.
            rule: The plan's rule that decided.
            cause: The event that this one follows from.

        Returns:
            The seq of the event (of the last one, where old values differed).

        Raises:
            ContractError: The pass does not declare that it writes the key.
        """
        self._allow(key.partition(".")[0])
        groups: list[tuple[object, list[int]]] = []
        for node_id in _ids(nodes):
            old = self._old(node_id, key)
            if groups and groups[-1][0] == old:
                groups[-1][1].append(node_id)
            else:
                same = next((ids for other, ids in groups if other == old), None)
                if same is None:
                    groups.append((old, [node_id]))
                else:
                    same.append(node_id)
        seq = -1
        for old, ids in groups:
            seq = self._record("set", ids, key, old, value, why, rule, cause)
        return seq

    def derive(
        self,
        parent: int,
        name: str,
        lineage: Lineage,
        *,
        why: str,
        rule: Rule | None = None,
        cause: int | None = None,
    ) -> int:
        """Add a parameter below ``parent`` that is computed from parameters of the graph.

        Sources that were derived themselves are replaced by what they were derived from.

        Returns:
            The id of the new node.
        """
        self._allow("structure")
        spec = derived_spec(lineage, self._graph.nodes)
        closed = self._close(lineage)
        node_id = self._graph.take_id()
        made = Derivation(parent, name, closed, spec)
        self._record("derive", [node_id], "lineage", None, made, why, rule, cause)
        return node_id

    def remove(self, nodes: Nodes, *, why: str, cause: int | None = None) -> int:
        """Remove nodes; name every node of a subtree."""
        self._allow("structure")
        return self._record("remove", _ids(nodes), None, None, None, why, None, cause)

    def alias(self, keep: int, drop: int, *, why: str, cause: int | None = None) -> int:
        """Make one parameter of two: ``keep`` gets all names of ``drop``."""
        self._allow("structure")
        return self._record("alias", [keep], None, drop, None, why, None, cause)

    def rename(self, node: int, parent: int, name: str, *, why: str) -> int:
        """Move a node to another place in the tree."""
        self._allow("structure")
        old = (self._graph.nodes[node].parent, self._graph.nodes[node].name)
        return self._record("rename", [node], "place", old, (parent, name), why, None, None)

    def attach(
        self,
        node: int,
        function: str,
        options: dict[str, object],
        *,
        why: str,
        cause: int | None = None,
    ) -> int:
        """Ask for something to be installed on a module when the run is carried out.

        Args:
            node: The module.
            function: ``package.module:function``.
            options: Its options, JSON-able.
            why: The reason.
            cause: The event that this one follows from.

        Raises:
            ContractError: It is not one module.
        """
        self._allow("attach")
        if type(node) is not int or not isinstance(self._graph.nodes.get(node), ModuleNode):
            raise ContractError(
                f"attach takes the id of one module, not {node!r}",
                where=f"pass {self.name}",
                fix="call it for each module",
            )
        value: dict[str, object] = {"function": function, "options": options}
        return self._record("attach", [node], None, None, value, why, None, cause)

    def skip(
        self,
        nodes: Nodes,
        *,
        why: str,
        key: str | None = None,
        rule: Rule | None = None,
        cause: int | None = None,
    ) -> int:
        """Record that something was considered and deliberately not done."""
        return self._record("skip", _ids(nodes), key, None, None, why, rule, cause)

    def note(self, text: str, nodes: Nodes = ()) -> int:
        """Record a remark."""
        return self._record("note", _ids(nodes), None, None, None, text, None, None)

    def problem(
        self,
        text: str,
        nodes: Nodes = (),
        *,
        hint: str = "",
        level: Literal["error", "warning", "info"] = "warning",
        check: str = "",
        numbers: Numbers = (),
    ) -> None:
        """Report something for a person to look at; it is in the log as a note too."""
        ids = tuple(_ids(nodes))
        self.problems.append(Problem(level, ids, text, hint, check, numbers))
        self.note(f"{level}: {text}", ids)

    def error(
        self,
        what: str,
        *,
        node: Nodes | None = None,
        why: str | None = None,
        fix: str | None = None,
        rule: Rule | None = None,
        kind: type[HpxError] = PassError,
        check: str = "",
        numbers: Numbers = (),
    ) -> HpxError:
        """An error that names this pass, the parameters and the rule; raise or collect it."""
        places = [f"pass {self.name}"]
        names: list[str] = []
        if node is not None:
            names = fold_names(self._graph.path(one) or "the model" for one in _ids(node))
        places += names
        if rule is not None:
            places.append(rule.where)
        error = kind(what, where=", ".join(places), why=why, fix=fix)
        error.nodes = () if node is None else tuple(_ids(node))
        return error.found_by(check, names, numbers)

    # -- behind them -------------------------------------------------------------------------

    def _allow(self, key: str) -> None:
        writes = self._pass.info.writes
        if key not in writes:
            raise ContractError(
                f"wrote '{key}', which it does not declare",
                where=f"pass {self.name}",
                why=f"its PassInfo.writes is {', '.join(sorted(writes)) or 'empty'}",
                fix=f"add '{key}' to writes",
            )

    def _old(self, node_id: int, key: str) -> object:
        node = self._graph.nodes.get(node_id)
        if node is None:
            raise ContractError(f"there is no node {node_id}", where=f"pass {self.name}")
        if isinstance(node, ModuleNode) and key.startswith("attributes."):
            return node.attribute(key.removeprefix("attributes."))
        return node.props.get(key)

    def _close(self, lineage: Lineage) -> Lineage:
        if isinstance(lineage, Stack):
            if all(isinstance(part, Source) and not self._derived(part) for part in lineage.parts):
                return lineage
            return Stack(tuple(self._close(part) for part in lineage.parts), lineage.dim)
        if isinstance(lineage, Permute):
            return lineage._replace(part=self._close(lineage.part))
        return self._derived(lineage) or lineage

    def _derived(self, source: Source) -> Lineage | None:
        node = self._graph.nodes[source.node]
        if not isinstance(node, TensorNode) or isinstance(node.expression, Source):
            return None
        return node.expression

    def _record(
        self,
        kind: EventKind,
        nodes: Iterable[int],
        key: str | None,
        old: object,
        new: object,
        why: str,
        rule: Rule | None,
        cause: int | None,
    ) -> int:
        seq = len(self._log)
        event = Event(
            seq, self.step, self.name, kind, compact_ids(nodes), key, old, new, why, rule, cause
        )
        apply_event(self._graph, event)
        self._log.record(event)
        return seq


def _ids(nodes: Nodes) -> list[int]:
    return [nodes] if isinstance(nodes, int) else list(nodes)
