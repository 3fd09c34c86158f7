"""The folded JSON form of a graph: equal subtrees once, numbered siblings as a range.

``templates`` lists each distinct subtree once; a module's children are ``[name, template]`` pairs,
where a run of numbered siblings is ``["0-255", template]``. Preorder ids are not written: a node's
id follows from the sizes of what stands before it, so one name is resolved (`FoldedTree.find`)
without expanding 100,000 nodes. Second edges (shared modules, ties) stand apart in ``links``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

from hpx.errors import InputError
from hpx.graph.builder import GraphBuilder
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import (
    ModuleNode,
    ModuleSpec,
    TensorKind,
    TensorNode,
    TensorSpec,
    row_major,
)

__all__ = ["FoldedTree", "graph_to_json", "run_length", "spec_from_json", "spec_to_json"]

_SPEC_DEFAULTS = TensorSpec((), "float32")
_MODULE_DEFAULTS = ModuleSpec("")
_RUN = re.compile(r"(0|[1-9][0-9]{0,8})-(0|[1-9][0-9]{0,8})")


def spec_to_json(spec: TensorSpec) -> dict[str, object]:
    """A tensor's specification; what is the default or follows from the shape is left out."""
    out: dict[str, object] = {"shape": list(spec.shape), "dtype": spec.dtype}
    for name in TensorSpec._fields[2:]:
        value = getattr(spec, name)
        if value != getattr(_SPEC_DEFAULTS, name):
            out[name] = value
    if spec.strides == row_major(spec.shape):
        out.pop("strides", None)
    elif spec.strides is None:
        out["strides"] = None
    return out


def spec_from_json(value: Mapping[str, Any]) -> TensorSpec:
    """The inverse of `spec_to_json`."""
    fields = dict(value)
    shape = fields["shape"] = tuple(fields["shape"])
    strides = fields.get("strides", ())
    if strides is not None:
        fields["strides"] = tuple(strides) if "strides" in fields else row_major(shape)
    fields["attributes"] = tuple(fields.get("attributes", ()))
    if fields.get("placed"):
        fields["placed"] = tuple(tuple(item) for item in fields["placed"])
    return TensorSpec(**fields)


def _module_spec_to_json(spec: ModuleSpec) -> dict[str, object]:
    out: dict[str, object] = {"class": spec.cls}
    for name in ModuleSpec._fields[1:]:
        value = getattr(spec, name)
        if value != getattr(_MODULE_DEFAULTS, name):
            out[name] = dict(value) if name == "attributes" else value
    return out


def _module_spec_from_json(value: Mapping[str, Any]) -> ModuleSpec:
    return ModuleSpec(
        value["class"],
        value.get("container"),
        tuple(value.get("attributes", {}).items()),
        tuple(value.get("hooks", ())),
        value.get("wrapper"),
        tuple(value.get("parametrized", ())),
    )


# -- writing -----------------------------------------------------------------------------------


def graph_to_json(graph: ModuleGraph) -> dict[str, object]:
    """The folded form. Only a graph whose ids are preorder numbers (an entry graph) has one."""
    return _Writer(graph).run()


class _Writer:
    def __init__(self, graph: ModuleGraph) -> None:
        self.graph = graph
        self.templates: list[dict[str, object]] = []
        self.numbers: dict[object, int] = {}
        self.of_signature: dict[int, int] = {}
        self.links: list[list[object]] = []

    def run(self) -> dict[str, object]:
        graph = self.graph
        order = list(graph.walk())
        if [node.id for node in order] != list(range(len(order))):
            raise InputError("only an entry graph has a folded form; save the run instead")
        self.find_links()
        made: dict[int, int] = {}
        # Reverse preorder sees children first; equal signatures need only one look.
        for node in reversed(order):
            made[node.id] = self.template(node, made)
        return {
            "source": graph.source,
            "hints": graph.hints,
            "has_structure": graph.has_structure,
            "root": made[graph.root],
            "templates": self.templates,
            "links": self.links,
            **({"flow": graph.flow} if graph.flow else {}),
        }

    def find_links(self) -> None:
        for node in self.graph.nodes.values():
            for parent, name in node.more:
                place = list(self.graph.module(parent).children).index(name)
                self.links.append([parent, place, name, node.id])
        self.links.sort(key=lambda link: cast(list[int], link)[:2])

    def template(self, node: ModuleNode | TensorNode, made: dict[int, int]) -> int:
        if isinstance(node, TensorNode):
            key: object = (node.kind, node.spec)
            found = self.numbers.get(key)
            if found is not None:
                return found
            return self.add(key, {"kind": node.kind, **spec_to_json(node.spec)})
        known = self.of_signature.get(node.signature) if node.signature else None
        if known is not None:
            return known
        nodes = self.graph.nodes
        pairs = [
            (name, made[child])
            for name, child in node.children.items()
            if (nodes[child].parent, nodes[child].name) == (node.id, name)
        ]
        key = (node.spec, tuple(pairs))
        found = self.numbers.get(key)
        if found is None:
            body = {**_module_spec_to_json(node.spec), "children": _fold_pairs(pairs)}
            found = self.add(key, body)
        if node.signature and len(pairs) == len(node.children):
            self.of_signature[node.signature] = found
        return found

    def add(self, key: object, body: dict[str, object]) -> int:
        self.numbers[key] = len(self.templates)
        self.templates.append(body)
        return len(self.templates) - 1


def _fold_pairs(pairs: list[tuple[str, int]]) -> list[list[object]]:
    """Children as ``[name, template]``; numbered neighbours in order as one ``["0-255", t]``."""
    out: list[list[object]] = []
    run: list[int] = []  # first number, last number, template

    def flush() -> None:
        if run:
            text = str(run[0]) if run[0] == run[1] else f"{run[0]}-{run[1]}"
            out.append([text, run[2]])
            run.clear()

    for name, template in pairs:
        if not (name.isascii() and name.isdigit() and str(int(name)) == name):
            flush()
            # A name that looks like a run is marked, so that it reads back as itself.
            out.append([name, template, "name"] if _RUN.fullmatch(name) else [name, template])
        elif run and run[2] == template and int(name) == run[1] + 1:
            run[1] = int(name)
        else:
            flush()
            run[:] = [int(name), int(name), template]
    flush()
    return out


# -- reading -----------------------------------------------------------------------------------


class FoldedTree:
    """A folded graph as it stands in a file; looks names up without expanding it."""

    def __init__(self, value: Mapping[str, Any]) -> None:
        self._value = value
        self._templates: list[dict[str, Any]] = value["templates"]
        self._sizes: list[int] = []
        # Children come before their parents in the list of templates.
        for template in self._templates:
            size = 1
            for name, child, *mark in template.get("children", ()):
                size += self._sizes[child] * run_length(name, mark)
            self._sizes.append(size)

    @property
    def size(self) -> int:
        """How many nodes the whole graph has."""
        return self._sizes[cast(int, self._value["root"])]

    def find(self, path: str) -> int | None:
        """The id of the node with this canonical or registered name."""
        node_id, template = 0, cast(int, self._value["root"])
        parts = path.split(".") if path else []
        for part in parts:
            step = self._step(node_id, template, part)
            if step is None:
                return None
            node_id, template = step
        return node_id

    def _step(self, node_id: int, template: int, part: str) -> tuple[int, int] | None:
        for parent, _, name, target in self._value["links"]:
            if parent == node_id and name == part:
                return target, self._template_of(target)
        at = node_id + 1
        for text, child, *mark in self._templates[template].get("children", ()):
            size = self._sizes[child]
            place = _place_in_run(text, mark, part)
            if place is not None:
                return at + place * size, child
            at += size * run_length(text, mark)
        wrapper = self._templates[template].get("wrapper")
        if wrapper is not None and wrapper != part:
            inner = self._step(node_id, template, wrapper)
            return self._step(*inner, part) if inner else None
        return None

    def _children(self, node_id: int, template: int) -> Iterator[tuple[str, int, int]]:
        """(name, template, id) of the children that a module owns."""
        at = node_id + 1
        for name, child, *mark in self._templates[template].get("children", ()):
            for single in _run_names(name, mark):
                yield single, child, at
                at += self._sizes[child]

    def _template_of(self, node_id: int) -> int:
        return self._descend(node_id)[1]

    def child(self, node_id: int, part: str) -> int | None:
        """The child with this registered name, of the module or of what it wraps."""
        step = self._step(node_id, self._template_of(node_id), part)
        return None if step is None else step[0]

    def spec(self, node_id: int) -> ModuleSpec | TensorSpec:
        """What a node is, before any pass."""
        return self._spec(self._templates[self._template_of(node_id)])

    def kind(self, node_id: int) -> Literal["module", "parameter", "buffer", "tensor"]:
        """Which kind of node this is."""
        kind = self._templates[self._template_of(node_id)].get("kind", "module")
        return cast(Literal["module", "parameter", "buffer", "tensor"], kind)

    def children(self, node_id: int) -> dict[str, int]:
        """Ids of what a module holds, by registered name; second edges last."""
        found = {name: at for name, _, at in self._children(node_id, self._template_of(node_id))}
        links = self._value["links"]
        return found | {name: target for parent, _, name, target in links if parent == node_id}

    def more_edges(self, node_id: int) -> list[tuple[int, str]]:
        """The further places of a node that has several names: owning module and name there."""
        links = self._value["links"]
        return [(parent, name) for parent, _, name, target in links if target == node_id]

    def unwrapped(self, node_id: int) -> int:
        """The module itself, where the node is only a wrapper around it."""
        inner = self._templates[self._template_of(node_id)].get("wrapper")
        while inner is not None:
            node_id = self.children(node_id)[inner]
            inner = self._templates[self._template_of(node_id)].get("wrapper")
        return node_id

    def path(self, node_id: int) -> str:
        """The canonical name of a node."""
        return ".".join(self._descend(node_id)[0])

    def _descend(self, node_id: int) -> tuple[list[str], int]:
        here, template = 0, cast(int, self._value["root"])
        names: list[str] = []
        while here != node_id:
            wrapper = self._templates[template].get("wrapper")
            at = here + 1
            for text, child, *mark in self._templates[template].get("children", ()):
                size, count = self._sizes[child], run_length(text, mark)
                if at <= node_id < at + size * count:
                    place = (node_id - at) // size
                    name = _name_in_run(text, mark, place)
                    if name != wrapper:
                        names.append(name)
                    here, template = at + place * size, child
                    break
                at += size * count
            else:
                raise InputError(f"the saved graph has no node {node_id}")
        return names, template

    def expand(self) -> ModuleGraph:
        """The whole graph."""
        builder = GraphBuilder()
        links: dict[int, list[tuple[int, str, int]]] = {}
        for parent, place, name, target in self._value["links"]:
            links.setdefault(parent, []).append((place, name, target))
        specs = [self._spec(template) for template in self._templates]
        todo: list[tuple[int, str, int]] = [(-1, "", self._value["root"])]
        while todo:
            parent, name, template = todo.pop()
            spec = specs[template]
            if isinstance(spec, TensorSpec):
                kind = cast(TensorKind, self._templates[template]["kind"])
                builder.tensor(kind, parent, name, spec)
                continue
            node_id = builder.module(parent, name, spec)
            below = [
                (node_id, single, child)
                for text, child, *mark in self._templates[template]["children"]
                for single in _run_names(text, mark)
            ]
            todo.extend(reversed(below))
        for parent, items in links.items():
            for place, name, target in items:
                builder.link(parent, name, target, place)
        graph = builder.finish(
            source=self._value["source"],
            hints=self._value["hints"],
            has_structure=self._value["has_structure"],
        )
        graph.flow = tuple((here, tuple(origins)) for here, origins in self._value.get("flow", ()))
        return graph

    @staticmethod
    def _spec(template: Mapping[str, Any]) -> ModuleSpec | TensorSpec:
        if "class" in template:
            return _module_spec_from_json(template)
        return spec_from_json({key: v for key, v in template.items() if key != "kind"})


def run_length(name: str, mark: list[str]) -> int:
    """How many children one entry of a folded graph stands for; ``0-255`` for 256."""
    match = None if mark else _RUN.fullmatch(name)
    return int(match[2]) - int(match[1]) + 1 if match else 1


def _run_names(name: str, mark: list[str]) -> Iterator[str]:
    match = None if mark else _RUN.fullmatch(name)
    if match is None:
        yield name
        return
    for number in range(int(match[1]), int(match[2]) + 1):
        yield str(number)


def _place_in_run(text: str, mark: list[str], name: str) -> int | None:
    """Where a child of this name stands among those that one entry stands for."""
    match = None if mark else _RUN.fullmatch(text)
    if match is None:
        return 0 if text == name else None
    if len(name) > 18 or not (name.isascii() and name.isdigit() and str(int(name)) == name):
        return None
    return int(name) - int(match[1]) if int(match[1]) <= int(name) <= int(match[2]) else None


def _name_in_run(text: str, mark: list[str], place: int) -> str:
    match = None if mark else _RUN.fullmatch(text)
    return text if match is None else str(int(match[1]) + place)
