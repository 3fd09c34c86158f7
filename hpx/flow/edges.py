"""What flows between modules, read off the operators of a traced graph.

1. A module that owns parameters is a **source**: what depends on its parameters leaves from it.
2. Where another module brings several of them together (a sum, a product, attention itself), it is
   a point on the way: edges enter it, and one leaves. So a residual stream through 80 layers has
   some edges a layer, and not one for each pair of layers.
3. Everything else (a view, an activation, a cast) hands on what it got.
4. What no parameter touched (masks, positions) has no edges.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

__all__ = ["Operator", "Point", "points_of"]


class Operator(NamedTuple):
    """One operator of a traced graph, or one parameter.

    Attributes:
        name: Its name in the traced graph.
        inputs: Names of the operators and parameters whose values it takes.
        module: Path of the innermost module that runs it.
        owner: Of a parameter: the module that owns it.
        is_call: Whether it stands for a whole call of its module.
    """

    name: str
    inputs: tuple[str, ...]
    module: str = ""
    owner: str | None = None
    is_call: bool = False


Point: TypeAlias = "tuple[str, tuple[int, ...]]"
"""A module that gives something, and the numbers of the points that it takes it from."""


def points_of(operators: Iterable[Operator], owners: Iterable[str]) -> list[Point]:
    """The points of a traced graph: a module is there once for each thing that it gives.

    Args:
        operators: The operators of a traced graph, in order.
        owners: Paths of the modules that own parameters themselves.

    Returns:
        The points, in the order in which they run; each takes from points before it.
    """
    reader = _Reader(frozenset(owners))
    for operator in operators:
        reader.read(operator)
    return reader.points()


class _Reader:
    def __init__(self, owners: frozenset[str]) -> None:
        self.owners = owners
        self.made: list[tuple[str, dict[int, None]]] = []
        self.parameters: dict[str, str] = {}  # the owner of each, by the name in the graph
        self.origins: dict[str, tuple[int, ...]] = {}  # the points that a value comes from
        self.touched: dict[str, int] = {}  # the point whose parameters touched a value

    def points(self) -> list[Point]:
        return [(module, tuple(came)) for module, came in self.made]

    def read(self, operator: Operator) -> None:
        if operator.owner is not None:
            self.parameters[operator.name] = operator.owner
            return
        here = self.module_of(operator)
        running = self.running(operator, here)
        origins = (o for name in operator.inputs for o in self.origins.get(name, ()))
        came = tuple(o for o in dict.fromkeys(origins) if o != running)
        if running is not None and all(origin < running for origin in came):
            self.made[running][1].update(dict.fromkeys(came))
            self.touched[operator.name] = running
            self.origins[operator.name] = (running,)
        elif running is not None or self.begins(operator, here, came):
            before = came if running is None else (running, *came)
            self.made.append((here, dict.fromkeys(before)))
            point = len(self.made) - 1
            self.origins[operator.name] = (point,)
            if here in self.owners:
                self.touched[operator.name] = point
        else:
            # A cast that changes nothing is the input itself: a residual may go on from it.
            self.origins[operator.name] = came

    def running(self, operator: Operator, here: str) -> int | None:
        """The point of this module that an operator goes on with."""
        for name in operator.inputs:
            point = self.touched.get(name)
            if point is not None and self.made[point][0] == here and not operator.is_call:
                return point
        return None

    def begins(self, operator: Operator, here: str, came: tuple[int, ...]) -> bool:
        """Whether something new leaves from here."""
        if here in self.owners:
            return operator.is_call or any(name in self.parameters for name in operator.inputs)
        return len(came) > 1

    def module_of(self, operator: Operator) -> str:
        """The innermost module; the owner of a parameter that another module reads directly."""
        if operator.module not in self.owners:
            for name in operator.inputs:
                if name in self.parameters:
                    return self.parameters[name]
        return operator.module
