"""The tree as forms: subtrees that are equal in every respect are one form, written once.

1. Nodes are read from the leaves up. What a tensor is, where it lies, who decided that and its
   history make its form; a module's class, the names in it and the forms in it make the module's.
2. A model of 58 equal layers with 256 equal experts each has a few dozen forms. A model without any
   order has as many as it has nodes; then the columns are what keeps the file small.
3. A child is written as one number: three times the index of its form, plus 0 for a tensor, 1 for a
   module, 2 for a further name of something that has its place elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Final, NamedTuple, TypeAlias, cast

from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.render.viewmodel import Mark

__all__ = ["MARKS", "Column", "Forms", "Runs", "Table", "TensorFacts", "column", "runs"]

MARKS: Final[tuple[Mark, ...]] = (
    "unset",
    "conflict",
    "deviates",
    "added",
    "removed",
    "changed",
)
"""Why something stands out; `TensorFacts.mark` is an index into it."""
_COMPARED: Final = MARKS.index("added")

Runs: TypeAlias = list[int | list[int]]
Column: TypeAlias = int | Runs | dict[str, Runs]

_SHORT: Final = 8  # items of a column that is short enough as it is
_LONGEST_NUMBER: Final = 9  # digits; what is longer is a name like any other


class Table:
    """Different values in the order in which they came, each known by its index."""

    def __init__(self) -> None:
        self.values: list[object] = []
        self._index: dict[object, int] = {}

    def index(self, value: object) -> int:
        """The index of a hashable value, new or known."""
        found = self._index.get(value)
        if found is None:
            found = self._index[value] = len(self.values)
            self.values.append(value)
        return found


class TensorFacts(NamedTuple):
    """All that makes tensors one form; indices into the page's tables, -1 for nothing."""

    kind: int
    shape: int
    dtype: int
    trained: int
    layout: int
    decided: int
    rule: int
    history: int
    mark: int
    warned: int
    experts: int
    reduce: int
    lineage: int
    aliases: int
    was: int
    by_layout: int


class _ModuleFacts(NamedTuple):
    cls: int
    names: int
    children: tuple[int, ...]
    history: int
    notes: int
    mark: int
    by_layout: int


class Forms:
    """Collects the forms of one graph; call `tensor` and `module` from the leaves up.

    Args:
        graph: The graph.
        keys: A number for every node, equal for those that fold by layout.
    """

    def __init__(self, graph: ModuleGraph, keys: Mapping[int, int]) -> None:
        self._graph = graph
        self._keys = keys
        self._code: dict[int, int] = {}
        self._tensors: dict[TensorFacts, int] = {}
        self._modules: dict[_ModuleFacts, int] = {}
        self._links: dict[tuple[int, str], int] = {}
        self._names = Table()
        self._name_lists = Table()
        self._classes = Table()
        self._has_links = {
            parent for node in graph.nodes.values() if node.more for parent, _ in node.more
        }

    def tensor(self, node_id: int, facts: TensorFacts) -> int:
        """Note the form of a tensor; gives its code, by which `again` notes equal ones."""
        code = self._code[node_id] = 3 * self._tensors.setdefault(facts, len(self._tensors))
        return code

    def again(self, node_id: int, code: int) -> None:
        """Note a tensor of a form that is there."""
        self._code[node_id] = code

    def module(self, node: ModuleNode, history: int, notes: int, mark: int) -> None:
        """Note the form of a module whose children have theirs."""
        children, here = node.children, node.id
        code = self._code
        codes: Iterable[int]
        if here in self._has_links:
            codes = [self._child(node, name) for name in children]
        else:
            codes = [code[child] for child in children.values()]
        facts = _ModuleFacts(
            self._classes.index(node.spec.cls),
            self._name_lists.index((node.spec.wrapper, *children)),
            tuple(codes),
            history,
            notes,
            mark,
            self._keys[here],
        )
        code[here] = 3 * self._modules.setdefault(facts, len(self._modules)) + 1

    def _child(self, node: ModuleNode, name: str) -> int:
        child = node.children[name]
        there = self._graph.nodes[child]
        if there.parent == node.id and there.name == name:
            return self._code[child]
        path = self._graph.edge_path(node.id, name)
        link = (child, _way(path, self._graph.path(child)))
        return 3 * self._links.setdefault(link, len(self._links)) + 2

    def counts(self, root: int) -> list[tuple[TensorFacts, int]]:
        """Every form of a tensor, and how often it occurs below the root."""
        modules = list(self._modules)
        times = [0] * len(modules)
        found = [0] * len(self._tensors)
        times[self._code[root] // 3] = 1
        # A form is younger than the forms in it.
        for index in range(len(modules) - 1, -1, -1):
            for code in modules[index].children:
                if code % 3 == 0:
                    found[code // 3] += times[index]
                elif code % 3 == 1:
                    times[code // 3] += times[index]
        return list(zip(self._tensors, found, strict=True))

    def to_json(self, root: int) -> dict[str, object]:
        """All forms as columns, and the form of the root."""
        modules = list(self._modules)
        by_structure = _structure(list(self._tensors), modules, list(self._links))
        return {
            "root": self._code[root],
            "nameLists": _lists(map(self._name_list, self._name_lists.values)),
            "names": self._names.values,
            "classes": self._classes.values,
            "tensors": {
                **_columns(TensorFacts._fields, self._tensors),
                "by_layout": column(_first_ones(form.by_layout for form in self._tensors)),
                "by_structure": column(_first_ones(by_structure[0])),
            },
            "modules": {
                **_columns(_ModuleFacts._fields, modules, leave="children"),
                "children": _lists(module.children for module in modules),
                "by_layout": column(_first_ones(form.by_layout for form in modules)),
                "by_structure": column(_first_ones(by_structure[1])),
            },
            "links": [
                [self._graph.path(target), int(self._is_tensor(target)), self._keys[target]]
                for target, _ in self._links
            ],
        }

    def _name_list(self, names: object) -> list[int]:
        assert isinstance(names, tuple)
        wrapper, *rest = names
        return [self._name("" if name == wrapper else name) for name in rest]

    def _name(self, name: str) -> int:
        """A name's index; a plain number is -1 minus itself, which needs no table."""
        plain = name.isascii() and name.isdigit() and (name == "0" or name[0] != "0")
        if plain and len(name) <= _LONGEST_NUMBER:
            return -1 - int(name)
        return self._names.index(name)

    def _is_tensor(self, node_id: int) -> bool:
        return isinstance(self._graph.nodes[node_id], TensorNode)


def _way(start: str, end: str) -> str:
    """The way from one name to another; where it branches between numbers, whichever they are."""
    here, there = start.split("."), end.split(".")
    while len(here) > 1 and len(there) > 1 and here[0] == there[0]:
        del here[0], there[0]
    if here[0].isdecimal() and there[0].isdecimal():
        there[0] = "#"
    return "/".join([".."] * (len(here) - 1) + there)


def _structure(
    tensors: list[TensorFacts], modules: list[_ModuleFacts], links: list[tuple[int, str]]
) -> tuple[list[int], list[int]]:
    """Numbers of forms, equal where they fold whatever their layouts are."""
    numbers: dict[object, int] = {}
    number_of = numbers.setdefault
    of_tensor = [
        # Tied ones fold as by layout, where the ways between their names are in the key; so do
        # those that a comparison found, and those that fold with none.
        number_of(
            (t[:4], t.by_layout)
            if t.aliases >= 0 or t.mark >= _COMPARED or t.by_layout < 0
            else t[:4],
            len(numbers),
        )
        for t in tensors
    ]
    of_module: list[int] = []
    for module in modules:
        below: list[int | str] = []
        for code in module.children:
            index, kind = divmod(code, 3)
            below.append((of_tensor, of_module)[kind][index] if kind < 2 else links[index][1])
        key = (module.cls, module.names, min(module.by_layout, 0), *below)
        of_module.append(number_of(key, len(numbers)))
    return of_tensor, of_module


def _columns(
    fields: Sequence[str], facts: Iterable[tuple[object, ...]], leave: str = ""
) -> dict[str, object]:
    rows = list(facts)
    found: dict[str, object] = {"count": len(rows)}
    for place, name in enumerate(fields):
        if name != leave:
            found[name] = column(cast("Iterable[int]", (row[place] for row in rows)))
    return found


def _lists(lists: Iterable[Sequence[int]]) -> dict[str, Column]:
    """Lists of numbers as one column, and their lengths as another."""
    every = list(lists)
    return {
        "count": len(every),
        "lengths": column(map(len, every)),
        "values": column(value for values in every for value in values),
    }


def column(values: Iterable[int]) -> Column:
    """A column of numbers, as short as it gets.

    The number alone where all are equal; else with runs counted; or ``{"d": ...}``, the same of
    the differences from one to the next, the first from 0.

    >>> column([7, 7, 7]), column([1, 2, 2, 2, 2]), column(range(4, 20))
    (7, [1, [2, 4]], {'d': [4, [1, 15]]})
    """
    items = list(values)
    found = runs(items)
    if len(found) == 1:
        only = found[0]
        return only[0] if isinstance(only, list) else only
    if len(found) <= _SHORT:
        return found
    steps = runs(value - before for before, value in pairwise([0, *items]))
    # Differences are short where numbers are new in their order, and long where they jump.
    return {"d": steps} if 2 * len(steps) < len(found) else found


def runs(values: Iterable[int]) -> Runs:
    """Numbers in order; three or more equal ones as ``[number, count]``.

    >>> runs([4, 4, 4, 5])
    [[4, 3], 5]
    """
    out: Runs = []
    for value, same in groupby(values):
        count = len(list(same))
        if count > 2:
            out.append([value, count])
        else:
            out.extend([value] * count)
    return out


def _first_ones(keys: Iterable[int]) -> list[int]:
    """How far before it the first of its kind is; 0 for one that is the first itself."""
    first: dict[int, int] = {}
    return [index - first.setdefault(key, index) for index, key in enumerate(keys)]
