"""Boundaries along traced dataflow: what arrives at each is what it takes.

Where the model was traced (`hpx.flow`), every value is followed from the boundary that gives it to
those that take it: a colwise matrix makes columns of what enters its region, a rowwise one takes
columns and gives what its sum makes of it, everything else hands on the state of what it gets. Two
values that meet in different states are in columns, if one of them is: the other is a mask, a
scale, or a position that all heads share. What the plan leaves to the model (``output: none``) is
not followed further.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from hpx.check.findings import Finding
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import TensorNode
from hpx.roles.edges import State, gives, takes, texts
from hpx.roles.places import of_all_layers
from hpx.roles.types import Role, Roles

__all__ = ["check_flow"]

_ORDER: Final[tuple[State, ...]] = ("S(-1)", "P", "S(1)", "R")


class _Value(NamedTuple):
    """What a point gives.

    Attributes:
        state: Its state on tp; None where nobody can tell.
        source: The module that made it so.
        at: The module that gives it.
        inside: The regions that it is in.
    """

    state: State | None
    source: int
    at: int
    inside: frozenset[int]


def check_flow(graph: ModuleGraph, found: Roles, tp: int) -> list[Finding]:
    """Boundaries that traced values reach in another state than they take.

    Args:
        graph: The graph, with `ModuleGraph.flow`.
        found: Its boundaries.
        tp: Ranks on tp.
    """
    return list(dict.fromkeys(_Follower(graph, found, tp).findings()))


class _Follower:
    def __init__(self, graph: ModuleGraph, found: Roles, tp: int) -> None:
        self.graph = graph
        self.found = found
        self.tp = tp
        self.roles = {role.module: role for role in found.boundaries if role.kind != "stream"}
        self.layers = {
            node.id: role.module
            for role in found.boundaries
            for layer in role.layers
            for node in graph.modules(layer)
        }
        self.values: list[_Value] = []

    def findings(self) -> Iterator[Finding]:
        for module, origins in self.graph.flow:
            if module not in self.graph.nodes:
                self.values.append(_Value(None, module, module, frozenset()))
                continue
            yield from self.point(module, [self.values[origin] for origin in origins])

    def point(self, module: int, came: list[_Value]) -> Iterator[Finding]:
        """One thing that a module gives."""
        inside, layer = self.around(module)
        here = frozenset(role.module for role in inside)
        states: list[tuple[State | None, int]] = []
        for value in came:
            state = self.left(value, here, module)
            for role in inside:
                if role.module not in value.inside:
                    yield from self.arrives(role, state, value.source)
                    state = None if state is None else "R"  # every region takes the whole
            states.append((state, value.source))
        if layer is not None and layer.kind == "rowwise":
            known = [state for state, _ in states]
            if states and None not in known and "S(-1)" not in known:
                yield self.wrong(layer, states[0][1], known[0])
        if layer is None and not here:
            yield from self.over_columns(module, states)
        self.values.append(self.made(module, layer, states, here))

    def over_columns(
        self, module: int, states: list[tuple[State | None, int]]
    ) -> Iterator[Finding]:
        """A norm (or what has one whole value for each column) that is given some of them."""
        widths = {self.found.columns.get(source) for state, source in states if state == "S(-1)"}
        for node in self.graph.children(module):
            if not isinstance(node, TensorNode) or node.kind != "parameter":
                continue
            whole = node.layout is None or node.layout.dim("tp") is None
            if whole and len(node.shape) == 1 and node.shape[0] in widths:
                source = next(source for state, source in states if state == "S(-1)")
                name = of_all_layers(self.graph.path(source))
                yield Finding(
                    module,
                    f"it works on all {node.shape[0]} columns of '{name}', and a rank has some",
                    f"over tp = {self.tp} each has {node.shape[0]} / {self.tp}, and"
                    f" '{node.name}' is whole; followed along traced dataflow",
                    f"keep '{name}' whole, and what takes its outputs",
                )
                return

    def around(self, module: int) -> tuple[list[Role], Role | None]:
        """The regions around a module, from the outside in, and the layer that it stands for."""
        inside: list[Role] = []
        layer: Role | None = None
        at = module
        while at >= 0:
            role = self.roles.get(at)
            if role is not None and role.kind in ("region", "whole", "head"):
                inside.append(role)
            elif role is not None and layer is None:
                layer = role
            at = self.graph.nodes[at].parent
        return inside[::-1], layer

    def left(self, value: _Value, here: frozenset[int], module: int) -> State | None:
        """The state in which a value gets from the regions that it is in to another module."""
        state = value.state
        for region in value.inside - here:
            role = self.roles[region]
            if role.output is not None or role.kind == "whole":
                state = gives(self.graph, self.found, role)
        if self.layers.get(value.at) == self.layers.get(module):
            return state
        if state == "S(1)":
            return "R"  # the last layer of the stream has gathered it
        return "S(1)" if state == "R" and module in self.layers else state

    def arrives(self, role: Role, state: State | None, source: int) -> Iterator[Finding]:
        if state is not None and state != takes(role):
            yield self.wrong(role, source, state)

    def made(
        self,
        module: int,
        layer: Role | None,
        states: list[tuple[State | None, int]],
        here: frozenset[int],
    ) -> _Value:
        """What a point gives."""
        if layer is not None and layer.output is not None:
            return _Value(gives(self.graph, self.found, layer), module, module, here)
        if layer is not None:
            return _Value(None, module, module, here)  # left to the model
        if self.makes_columns(module):
            return _Value("S(-1)", module, module, here)
        for wanted in _ORDER:
            for state, source in states:
                if state == wanted:
                    return _Value(state, source if len(states) == 1 else module, module, here)
        return _Value(None, module, module, here) if states else _Value("R", module, module, here)

    def makes_columns(self, module: int) -> bool:
        """Whether a module has a colwise matrix."""
        return module in self.found.columns

    def wrong(self, role: Role, source: int, state: State | None) -> Finding:
        assert state is not None
        wanted = takes(role)
        name = of_all_layers(self.graph.path(source)) or "the model"
        return Finding(
            role.module,
            f"it takes {wanted}, and what reaches it from '{name}' is {state}",
            f"over tp = {self.tp} it expects {texts(wanted)}, and is given {texts(state)}; followed"
            " along traced dataflow",
            "cut both layers or neither, or declare the module between them under boundaries: in"
            " the plan",
        )
