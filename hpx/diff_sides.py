"""The two sides of a comparison: a run, or a graph of which nothing but itself is known.

A side says what parameters there are, which of their fields it knows, and what explains them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from hpx._text import counted, event_text, rule_place, shape_text
from hpx.graph.nodes import TensorNode
from hpx.layout import Layout
from hpx.lookup import Names
from hpx.params import Param

if TYPE_CHECKING:
    from hpx.graph.graph import ModuleGraph
    from hpx.provenance import Event
    from hpx.run import Run

__all__ = ["FIELDS", "Field", "GraphSide", "RunSide", "Side", "layout_text", "told"]


class Field(NamedTuple):
    """A field of a parameter that is compared."""

    name: str
    text: Callable[[Param], str]
    key: str | None
    """The key of the ``set`` events that explain it; None for those of structure."""


def layout_text(param: Param) -> str:
    """The layout, ``none`` where nobody decided."""
    return "none" if param.layout is None else str(param.layout)


def _rule_of(param: Param) -> str:
    rule = param.rule
    return "none" if rule is None else f"{rule.pattern!r} says {rule.layout} ({rule.source})"


FIELDS: Final = (
    Field("shape", lambda param: shape_text(param.shape), None),
    Field("dtype", lambda param: param.dtype, None),
    Field("requires_grad", lambda param: str(param.requires_grad).lower(), None),
    Field("lineage", lambda param: param.lineage or "itself", None),
    Field("names", lambda param: ", ".join(sorted([param.name, *param.aliases])), None),
    Field("layout", layout_text, "layout"),
    Field("mesh", lambda param: param.mesh or "none", "mesh"),
    Field("gradient summed over", lambda param: ", ".join(param.reduce) or "none", "reduce"),
    Field("rule", _rule_of, "layout"),
)
_OF_FILES: Final = frozenset(["shape", "dtype", "names"])
"""What even the names and shapes of a file tell."""


class Side(Protocol):
    """One side of a comparison.

    Attributes:
        params: Its parameters, in the order of the tree.
        by_name: The same by name and alias.
        fields: The names of the fields that it knows.
        whole: Whether all of the model is known, so that what it lacks is not there.
    """

    @property
    def params(self) -> Sequence[Param]: ...

    @property
    def by_name(self) -> Mapping[str, Param]: ...

    @property
    def fields(self) -> frozenset[str]: ...

    @property
    def whole(self) -> bool: ...

    def why(self, param: Param, fields: Sequence[Field]) -> tuple[str, ...]:
        """The events that explain these fields of a parameter, one text each."""

    def made(self, param: Param) -> tuple[str, ...]:
        """What made a parameter."""

    def absence(self, name: str) -> tuple[str, ...]:
        """Why there is no parameter of this name."""

    def has_other(self, name: str) -> bool:
        """Whether a buffer or a plain tensor has this name."""

    def edited(self) -> Mapping[str, Event]:
        """The last event on every edited attribute, by ``module.attribute``."""


class RunSide:
    """A run: everything is known, and events explain it."""

    whole: Final = True

    def __init__(self, run: Run) -> None:
        self.run = run
        self.names = Names(run)

    @property
    def params(self) -> Sequence[Param]:
        return self.run.params

    @property
    def by_name(self) -> Mapping[str, Param]:
        return self.run.by_name

    @cached_property
    def fields(self) -> frozenset[str]:
        return frozenset(field.name for field in FIELDS)

    def why(self, param: Param, fields: Sequence[Field]) -> tuple[str, ...]:
        """The last events that decided the fields, those of structure first."""
        events = [self.run.events[seq] for seq in param.events]
        found: dict[str, None] = {}
        for key in dict.fromkeys(field.key for field in fields):
            if key is None:
                deciding = [e for e in events if e.kind in ("derive", "alias", "rename")]
            elif key == "mesh" and any(field.key == "layout" for field in fields):
                continue  # it follows from the layout
            else:
                deciding = [e for e in events if e.kind == "set" and e.key == key]
            if deciding:
                found[told(deciding[-1])] = None
            elif key is not None:
                found[f"no pass decided its {key}"] = None
        return tuple(found)

    def made(self, param: Param) -> tuple[str, ...]:
        """The event that made it, if a pass did."""
        made = self.names.lineages.get(param.id)
        return ("as in the model",) if made is None else (told(self.run.events[made[1]]),)

    def absence(self, name: str) -> tuple[str, ...]:
        """What became of the name, if it ever was there."""
        return (self._absence(name),)

    def _absence(self, name: str) -> str:
        names = self.names
        node_id, rest = names.walk(name)
        if rest or (node_id not in names.place_of and self.run.tree.kind(node_id) != "parameter"):
            return "it never had this name"
        now, slot = names.became(node_id)
        if slot is not None:
            event = self.run.events[slot.seq]
            return f"stacked into {names.path(now)} by {event.pass_} (step {event.step})"
        gone = names.removed.get(now)
        if gone is not None:
            return f"{event_text(gone, names.path)} by {told(gone)}"
        return f"it is one more name of {names.path(now)}"

    def has_other(self, name: str) -> bool:
        node_id, rest = self.names.walk(name)
        return not rest and self.run.tree.kind(node_id) in ("buffer", "tensor")

    def edited(self) -> Mapping[str, Event]:
        """See `Side`."""
        found: dict[str, Event] = {}
        for event in self.run.events:
            if event.kind == "set" and event.key and event.key.startswith("attributes."):
                attribute = event.key.removeprefix("attributes.")
                for node in event.nodes:
                    path = self.names.path(node)
                    found[f"{path}.{attribute}" if path else attribute] = event
        return found


def told(event: Event) -> str:
    """An event as one side's reason: who, why, and the rule behind it."""
    where = f" [{rule_place(event.rule)}]" if event.rule else ""
    return f"{event.pass_} (step {event.step}): {event.why}{where}"


class GraphSide:
    """A model or checkpoint: nothing explains it, and of a file only names and shapes are known."""

    def __init__(self, graph: ModuleGraph) -> None:
        self.graph = graph
        self.whole = graph.has_structure

    @cached_property
    def params(self) -> Sequence[Param]:
        graph = self.graph
        return [
            Param.of(graph, node, node.layout or _placed(node), None, graph)
            for node in graph.parameters()
        ]

    @cached_property
    def by_name(self) -> Mapping[str, Param]:
        return {name: p for p in self.params for name in (p.name, *p.aliases)}

    @cached_property
    def fields(self) -> frozenset[str]:
        found = _OF_FILES | ({"requires_grad"} if self.whole else set())
        placed = any(param.layout is not None for param in self.params)
        return found | {"layout"} if placed else found

    def why(self, param: Param, fields: Sequence[Field]) -> tuple[str, ...]:  # noqa: ARG002 - of the protocol
        """Nothing."""
        return ()

    def made(self, param: Param) -> tuple[str, ...]:  # noqa: ARG002 - of the protocol
        """Nothing."""
        return ()

    def absence(self, name: str) -> tuple[str, ...]:  # noqa: ARG002 - of the protocol
        """Nothing."""
        return ()

    def has_other(self, name: str) -> bool:
        node_id = self.graph.find(name)
        node = None if node_id is None else self.graph.nodes[node_id]
        return isinstance(node, TensorNode) and node.kind != "parameter"

    def edited(self) -> Mapping[str, Event]:
        """Nothing."""
        return {}

    def __str__(self) -> str:
        return f"{self.graph.source or 'a model'} ({counted(len(self.params), 'parameter')})"


def _placed(node: TensorNode) -> Layout | None:
    """The layout that a DTensor brings; None for a partial one, which has no layout."""
    placed = node.spec.placed
    if placed is None or any(text.startswith("P") for _, _, text in placed):
        return None
    return Layout.parse({axis: text for axis, _, text in placed})
