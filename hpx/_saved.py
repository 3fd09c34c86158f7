"""Check the form of a saved run before anything is read from it.

A loaded run reads its graph and parameters only when it is asked about them; what is wrong with
the file has to be said before that, once and by its place in the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from hpx.errors import InputError
from hpx.graph.jsonform import run_length

__all__ = ["check_saved"]

_MAX_NODES: Final = 20_000_000

_TOP: Final[Mapping[str, type]] = {
    "model": dict,
    "mesh": dict,
    "plan": dict,
    "options": dict,
    "pipeline": str,
    "schedule": list,
    "facts": list,
    "problems": list,
    "graph": dict,
    "params": list,
    "events": list,
    "timings": list,
    "request": str,
    "entry": str,
}
_MODEL: Final[Mapping[str, type]] = {
    "source": str,
    "num_parameters": int,
    "num_elements": int,
    "bytes": int,
}
_STEP: Final[Mapping[str, type]] = {"step": int, "pass": str, "because": list}
_GRAPH: Final[Mapping[str, type]] = {
    "source": str,
    "hints": dict,
    "has_structure": bool,
    "root": int,
    "templates": list,
    "links": list,
}
_PARAM: Final[Mapping[str, type]] = {
    "id": int,
    "name": str,
    "aliases": list,
    "kind": str,
    "shape": list,
    "dtype": str,
    "requires_grad": bool,
    "local_shape": list,
    "bytes": int,
    "local_bytes": int,
    "events": list,
    "reduce": list,
}
_OPTIONAL: Final[Mapping[str, type]] = {"layout": dict, "mesh": str, "lineage": str, "rule": dict}
_SPEC: Final[Mapping[str, type]] = {
    "cls": str,
    "device": str,
    "requires_grad": bool,
    "persistent": bool,
    "attributes": list,
}
_DERIVED: Final[Mapping[str, type]] = {"parent": int, "name": str, "lineage": dict, "spec": dict}
_KINDS: Final = ("parameter", "buffer", "tensor")
_SET: Final[Mapping[str, type]] = {"layout": dict, "mesh": str, "order": dict}
_EVENTS: Final = ("set", "derive", "alias", "remove", "rename", "attach", "skip", "note")


def check_saved(value: Mapping[str, Any]) -> None:
    """Refuse what is not the form of a saved run.

    Raises:
        InputError: Says where in the file.
    """
    _fields(value, _TOP, "the run")
    _fields(value["model"], _MODEL, "model")
    for key in ("request", "entry"):
        if not value[key].startswith("sha256:"):
            raise _damaged(key, "is no fingerprint")
    for number, step in enumerate(value["schedule"]):
        _fields(step, _STEP, f"schedule[{number}]")
        _texts(step["because"], f"schedule[{number}].because")
    _texts(value["facts"], "facts")
    size = _check_graph(value["graph"])
    _check_events(value["events"], size)
    limit = size + len(value["events"])
    for number, problem in enumerate(value["problems"]):
        _fields(problem, {"level": str, "node": list, "text": str, "hint": str}, "problems")
        _check_ids(problem["node"], limit, f"problems[{number}]")
        if not isinstance(problem.get("check", ""), str):
            raise _damaged(f"problems[{number}]", "its check is no text")
        numbers = problem.get("numbers", {})
        if not isinstance(numbers, dict) or any(type(n) is not int for n in numbers.values()):
            raise _damaged(f"problems[{number}]", "its numbers are none")
    _check_params(value["params"], len(value["events"]))


def _check_graph(graph: Mapping[str, Any]) -> int:
    _fields(graph, _GRAPH, "graph")
    sizes: list[int] = []
    for number, template in enumerate(graph["templates"]):
        where = f"graph.templates[{number}]"
        if not isinstance(template, dict):
            raise _damaged(where, "is not an object")
        if "class" in template:
            _fields(template, {"class": str, "children": list}, where)
            attributes = template.get("attributes", {})
            if not isinstance(attributes, dict) or {*map(type, attributes.values())} - {int}:
                raise _damaged(f"{where}.attributes", "are not whole numbers by name")
            sizes.append(1 + sum(_child_sizes(template["children"], sizes, where)))
        else:
            _fields(template, {"kind": str}, where)
            _check_spec(template, where)
            if template["kind"] not in _KINDS:
                raise _damaged(f"{where}.kind", f"is {template['kind']!r}")
            sizes.append(1)
        if sizes[-1] > _MAX_NODES:
            raise _damaged(where, f"stands for {sizes[-1]} nodes")
    if not 0 <= graph["root"] < len(sizes):
        raise _damaged("graph.root", f"is {graph['root']}")
    size = sizes[int(graph["root"])]
    for number, link in enumerate(graph["links"]):
        where = f"graph.links[{number}]"
        if not isinstance(link, list) or list(map(type, link)) != [int, int, str, int]:
            raise _damaged(where, "is not [parent, place, name, node]")
        if not (0 <= link[0] < size and 0 <= link[3] < size):
            raise _damaged(where, f"names nodes of {size} that do not exist")
    _check_flow(graph.get("flow", []), size)
    return size


def _check_spec(spec: Mapping[str, Any], where: str) -> None:
    """The fields of a tensor; all but two may be left out."""
    _fields(spec, {"shape": list, "dtype": str}, where)
    _fields(spec, {key: kind for key, kind in _SPEC.items() if key in spec}, where)
    _whole(spec["shape"], f"{where}.shape")
    _texts(spec.get("attributes", []), f"{where}.attributes")
    strides, placed = spec.get("strides"), spec.get("placed")
    if strides is not None and not (isinstance(strides, list) and {*map(type, strides)} <= {int}):
        raise _damaged(f"{where}.strides", "are no whole numbers")
    if placed is not None and not (isinstance(placed, list) and all(map(_is_placed, placed))):
        raise _damaged(f"{where}.placed", "is no list of [axis, size, placement]")


def _is_placed(item: object) -> bool:
    return isinstance(item, list) and [*map(type, item)] == [str, int, str]


def _check_flow(flow: object, size: int) -> None:
    if not isinstance(flow, list):
        raise _damaged("graph.flow", "is no list")
    for number, point in enumerate(flow):
        where = f"graph.flow[{number}]"
        if not isinstance(point, list) or list(map(type, point)) != [int, list]:
            raise _damaged(where, "is not [module, [points before it]]")
        if not -1 <= point[0] < size:
            raise _damaged(where, f"names node {point[0]} of {size}")
        if not all(type(one) is int and 0 <= one < number for one in point[1]):
            raise _damaged(where, f"takes from {point[1]}, which are not points before it")


def _child_sizes(children: Sequence[Any], sizes: Sequence[int], where: str) -> Iterator[int]:
    for entry in children:
        if not (isinstance(entry, list) and 2 <= len(entry) <= 3 and isinstance(entry[0], str)):
            raise _damaged(where, f"has a child {entry!r}")
        if type(entry[1]) is not int or not 0 <= entry[1] < len(sizes):
            raise _damaged(where, f"has a child of an unknown template {entry[1]!r}")
        count = run_length(entry[0], entry[2:])
        if count < 1:
            raise _damaged(where, f"has a child {entry[0]!r}")
        yield sizes[entry[1]] * count


def _check_events(events: Sequence[Any], size: int) -> None:
    limit = size + len(events)  # an event makes one node at most
    for number, event in enumerate(events):
        where = f"events[{number}]"
        _fields(event, {"seq": int, "step": int, "pass": str, "kind": str, "why": str}, where)
        if event["seq"] != number:
            raise _damaged(where, f"has seq {event['seq']}")
        cause = event.get("cause", 0)
        if type(cause) is not int or not 0 <= cause < len(events):
            raise _damaged(where, f"follows from event {event['cause']!r}")
        node = event.get("node", [])
        _check_ids(node if isinstance(node, list) else [node], limit, where)
        _check_kind(event, limit, where)


def _check_kind(event: Mapping[str, Any], limit: int, where: str) -> None:
    """What the kinds of events that change the tree cannot do without."""
    kind, node = event["kind"], event.get("node", [])
    if kind not in _EVENTS:
        raise _damaged(f"{where}.kind", f"is {kind!r}")
    if not isinstance(event.get("key"), str | None):
        raise _damaged(where, f"has key {event['key']!r}")
    if kind == "set" and not event.get("key"):
        raise _damaged(where, "sets no key")
    if kind == "set" and event["key"] in _SET:
        for value in (event.get("old"), event.get("new")):
            if value is not None and not isinstance(value, _SET[event["key"]]):
                raise _damaged(where, f"sets {event['key']} to {value!r}")
            if event["key"] == "order" and isinstance(value, dict):
                _check_order(value, where)
    if kind in ("derive", "alias", "rename") and not node and type(node) is not int:
        raise _damaged(where, "names no node")
    if kind == "derive":
        if event.get("key") != "lineage":
            raise _damaged(where, "derives nothing")
        _fields(event.get("new"), _DERIVED, f"{where}.new")
        _check_spec(event["new"]["spec"], f"{where}.new.spec")
        _check_lineage(event["new"]["lineage"], limit, f"{where}.new.lineage")
    if kind == "alias" and type(event.get("old")) is not int:
        raise _damaged(where, "ties nothing")


def _check_lineage(lineage: Mapping[str, Any], limit: int, where: str) -> None:
    todo: list[Any] = [lineage]
    while todo:
        item = todo.pop()
        _fields(item, {"op": str}, where)
        if item["op"] == "source":
            _check_ids([item.get("node")], limit, where)
            continue
        if item["op"] == "permute":
            _fields(item, {"part": dict, "order": dict}, where)
            _check_order(item["order"], where)
            todo.append(item["part"])
            continue
        _fields(item, {"dim": int}, where)
        parts = item.get("sources", item.get("parts"))
        if not isinstance(parts, list) or not parts:
            raise _damaged(where, "is made of nothing")
        if "sources" in item:
            _check_ids(parts, limit, where)
        else:
            todo.extend(parts)


def _check_order(order: Mapping[str, Any], where: str) -> None:
    _fields(order, {"dim": int, "parts": list, "pieces": int}, where)
    for part in order["parts"]:
        if not isinstance(part, list) or [*map(type, part)] != [str, int]:
            raise _damaged(where, f"orders a part {part!r}")
    sizes = [size for _, size in order["parts"]]
    if order["pieces"] < 1 or any(size < 1 or size % order["pieces"] for size in sizes):
        raise _damaged(where, f"cuts parts of {sizes} in {order['pieces']}")


def _check_ids(items: Sequence[object], limit: int, where: str) -> None:
    """Ids of nodes, or runs of them, below a limit."""
    for item in items:
        run: list[Any] = item if isinstance(item, list) else [item, 1, 1]
        if len(run) != 3 or not all(type(number) is int for number in run):
            raise _damaged(where, f"names nodes {item!r}")
        start, count, step = run
        ends = (start, start + (count - 1) * step)
        if not (0 < count <= limit and min(ends) >= 0 and max(ends) < limit):
            raise _damaged(where, f"names nodes {item!r} of {limit}")


def _check_params(params: Sequence[Any], num_events: int) -> None:
    for number, entry in enumerate(params):
        where = f"params[{number}]"
        if isinstance(entry, dict) and "like" in entry:
            _fields(entry, {"id": int, "name": str, "like": int}, where)
            first = entry["like"]
            if not 0 <= first < number or "like" in params[first]:
                raise _damaged(where, f"is like {first}")
            continue
        _fields(entry, _PARAM, where)
        for key, kind in _OPTIONAL.items():
            if key not in entry:
                raise _damaged(where, f"has no {key}")
            if entry[key] is not None and type(entry[key]) is not kind:
                raise _damaged(f"{where}.{key}", f"is a {type(entry[key]).__name__}")
        for key in ("aliases", "reduce"):
            _texts(entry[key], f"{where}.{key}")
        for key in ("shape", "local_shape", "events"):
            _whole(entry[key], f"{where}.{key}")
        if any(seq >= num_events for seq in entry["events"]):
            raise _damaged(f"{where}.events", f"names one of {num_events} that does not exist")


def _fields(value: object, wanted: Mapping[str, type], where: str) -> None:
    if not isinstance(value, dict):
        raise _damaged(where, "is not an object")
    for key, kind in wanted.items():
        if key not in value:
            raise _damaged(where, f"has no {key}")
        if type(value[key]) is not kind:
            raise _damaged(f"{where}.{key}", f"is a {type(value[key]).__name__}")


def _texts(items: Sequence[object], where: str) -> None:
    if not all(isinstance(item, str) for item in items):
        raise _damaged(where, "holds something other than text")


def _whole(items: Sequence[object], where: str) -> None:
    if not all(type(item) is int and item >= 0 for item in items):
        raise _damaged(where, "holds something other than whole numbers")


def _damaged(where: str, why: str) -> InputError:
    return InputError(f"{where} {why}")
