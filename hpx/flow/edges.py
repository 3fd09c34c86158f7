"""Edges between modules, read off the operators of a traced graph.

1. A module that owns parameters is a **source**: what depends on its parameters leaves from it.
2. Where another module brings several of them together (a sum, a product, attention itself), it is
   a point on the way: edges enter it, and one leaves. So a residual stream through 80 layers has
   some edges a layer, and not one for each pair of layers.
3. Everything else (a view, an activation, a cast) hands on what it got.
4. What no parameter touched (masks, positions) has no edges.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Operator", "module_edges"]


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


def module_edges(operators: Iterable[Operator], owners: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs (from, to) of module paths, in the order in which they run, each once.

    Args:
        operators: The operators of a traced graph, in order.
        owners: Paths of the modules that own parameters themselves.
    """
    reader = _Reader(frozenset(owners))
    for operator in operators:
        reader.read(operator)
    return list(reader.edges)


class _Reader:
    def __init__(self, owners: frozenset[str]) -> None:
        self.owners = owners
        self.edges: dict[tuple[str, str], None] = {}
        self.parameters: dict[str, str] = {}  # the owner of each, by the name in the graph
        self.origins: dict[str, tuple[str, ...]] = {}  # the modules that a value comes from
        self.touched: dict[str, str] = {}  # in which module its parameters touched a value

    def read(self, operator: Operator) -> None:
        if operator.owner is not None:
            self.parameters[operator.name] = operator.owner
            return
        came = tuple(
            dict.fromkeys(o for name in operator.inputs for o in self.origins.get(name, ()))
        )
        here = self.module_of(operator)
        if here in self.owners:
            # A cast that changes nothing is the input itself: a residual may go on from it.
            leaves = self.touches(operator, here)
            if leaves:
                self.touched[operator.name] = here
        else:
            leaves = len(came) > 1
        self.origins[operator.name] = self.arrive(came, here) if leaves else came

    def touches(self, operator: Operator, here: str) -> bool:
        """Whether parameters had a part in what comes out."""
        return operator.is_call or any(
            name in self.parameters or self.touched.get(name) == here for name in operator.inputs
        )

    def arrive(self, came: tuple[str, ...], here: str) -> tuple[str, ...]:
        for origin in came:
            if origin != here:
                self.edges.setdefault((origin, here))
        return (here,)

    def module_of(self, operator: Operator) -> str:
        """The innermost module; the owner of a parameter that another module reads directly."""
        if operator.module not in self.owners:
            for name in operator.inputs:
                if name in self.parameters:
                    return self.parameters[name]
        return operator.module
