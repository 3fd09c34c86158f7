"""Sequence parallelism: which modules work on a part of the sequence, and which need all of it.

A **stream** is a list of layers with boundaries in them: it is cut at the first layer's input and
gathered after the last one (see `hpx.runtime.stream`). In a layer, from the outside in:

- a region and a rowwise layer gather and sum over the ranks by themselves;
- a norm, a dropout, an activation, a parameter of one dim or a whole linear layer works position by
  position; what it holds has a part of its gradient on every rank;
- a module around such parts is looked into;
- anything else may look at all positions (whole attention, a convolution, experts that are chosen
  by a router), and is computed **whole** by all ranks alike: with it, all that it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, TypeGuard

from hpx.check.findings import Finding
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, Node, TensorNode
from hpx.regions import modules_around
from hpx.roles.types import Role, Roles

__all__ = ["in_parts"]

_OFF: Final = "run without sequence parallelism: insert-collectives{sp=false}"
_POINTWISE: Final = (
    "torch.nn.modules.activation.",
    "torch.nn.modules.dropout.",
    "torch.nn.modules.linear.Identity",
    "transformers.activations.",
)
_LINEAR: Final = ("torch.nn.modules.linear.Linear", "transformers.pytorch_utils.Conv1D")
_OVER_POSITIONS: Final = ("batchnorm", "groupnorm", "instancenorm", "multiheadattention", "softmax")
"""Parts of names of norms and activations that look at more than one position."""


def in_parts(graph: ModuleGraph, found: Roles) -> Roles:
    """The boundaries with streams that are cut on the sequence.

    Args:
        graph: The graph.
        found: Its boundaries without sequence parallelism; left as they are.
    """
    return _Streams(graph, found).roles()


class _Streams:
    def __init__(self, graph: ModuleGraph, found: Roles) -> None:
        self.graph = graph
        self.found = found
        self.roles_by_module = {role.module: role for role in found.boundaries}
        self.around = modules_around(graph, self.roles_by_module)
        self.findings: list[Finding] = []
        self.positions: dict[int, None] = {}
        self.changed: dict[int, Role] = {}

    def roles(self) -> Roles:
        """The same boundaries and more."""
        inner = [r.module for r in self.found.boundaries if r.kind in ("region", "rowwise")]
        streams: dict[int, None] = {}
        for module in inner:
            stream = _outermost_list(self.graph, module)
            if stream is not None:
                streams[stream] = None
        if inner and not streams:
            self._find(
                self.graph.root,
                "no layers of which the sequence could be cut",
                "cut matrices stand in no list of layers (ModuleList, Sequential)",
            )
        for stream in streams:
            self._stream(stream)
        self._check_shared()
        order = {node.id: at for at, node in enumerate(self.graph.modules())}
        together = {**self.roles_by_module, **self.changed}
        return replace(
            self.found,
            boundaries=sorted(together.values(), key=lambda role: order[role.module]),
            findings=[*self.found.findings, *self.findings],
            positions=list(self.positions),
        )

    def _stream(self, stream: int) -> None:
        """A list of layers, and the module that runs it."""
        node = self.graph.module(stream)
        runs_itself = node.spec.container == "sequential" or node.parent < 0
        runner = stream if runs_itself else node.parent
        inside = self.graph.children(stream)
        layers = [child.id for child in inside if isinstance(child, ModuleNode)]
        regions: list[int] = []
        for module in (runner, *layers):
            role = self.roles_by_module.get(module) or self.changed.get(module)
            if role is not None:
                whose = "is a layer" if module != runner else "runs the layers"
                self._find(
                    module,
                    f"it {whose} of a stream that is to be cut on the sequence",
                    f"it is a boundary already: {role.role}",
                )
                return
        for layer in layers:
            self._direct(self.graph.module(layer))
            for child in self._children(layer):
                regions += self._part(child)
        made = Role(runner, "stream", "stream", layers=tuple(layers), regions=tuple(regions))
        self.changed[runner] = made

    def _children(self, module: int) -> Iterator[ModuleNode]:
        """Modules inside, through lists, which run nothing themselves."""
        for child in self.graph.children(module):
            if not isinstance(child, ModuleNode):
                continue
            if child.spec.container in ("list", "dict"):
                yield from self._children(child.id)
            else:
                yield child

    def _part(self, module: ModuleNode) -> Iterator[int]:
        """A module in a layer; gives the boundaries whose input is the stream."""
        role = self.roles_by_module.get(module.id)
        if role is not None:
            yield from self._boundary(role)
        elif self._is_pointwise(module):
            self._direct(module)
        elif module.id in self.around and self._is_open(module):
            self._direct(module)
            for child in self._children(module.id):
                yield from self._part(child)
        else:
            self.changed[module.id] = Role(module.id, "whole", "whole")
            yield module.id

    def _boundary(self, role: Role) -> Iterator[int]:
        """A boundary in the stream, and those inside it."""
        if role.kind not in ("region", "rowwise"):
            self._find(
                role.module,
                f"a layer holds a boundary of kind {role.role}",
                "its input and output are whole, and a layer has a part of the sequence",
            )
            return
        for inner in self.graph.modules(role.module):
            known = self.roles_by_module.get(inner.id)
            if known is None:
                continue
            # Inside a region activations are whole; a rowwise layer ends it.
            if known.kind == "rowwise" or known.module == role.module:
                self.changed[inner.id] = replace(known, sequence=True)
            if known.kind == "rowwise" and known.bias is not None:
                self._add(_inside(self.graph, known.module, known.bias))
        if role.kind == "region":
            yield role.module

    def _is_pointwise(self, module: ModuleNode) -> bool:
        """Whether a module gives for each position what it computes of that position."""
        name = module.spec.short_cls.lower()
        if any(part in name for part in _OVER_POSITIONS):
            return False
        if module.spec.cls in _LINEAR:
            return True
        tensors = list(self.graph.parameters(module.id))
        if any(len(tensor.shape) > 1 for tensor in tensors):
            return False
        if "norm" in (name or module.name.lower()):
            return True
        known = module.spec.cls.startswith(_POINTWISE) or "dropout" in name or "droppath" in name
        return not tensors and known

    def _is_open(self, module: ModuleNode) -> bool:
        """Whether every part of a module around boundaries is one that stands in a stream."""
        if any(len(t.shape) > 1 for t in self.graph.children(module.id) if _is_parameter(t)):
            return False
        return all(
            child.id in self.roles_by_module
            or self._is_pointwise(child)
            or (child.id in self.around and self._is_open(child))
            for child in self._children(module.id)
        )

    def _direct(self, module: ModuleNode) -> None:
        """Parameters that a module reads for the positions of one rank."""
        pointwise = self._is_pointwise(module)
        for child in self.graph.children(module.id):
            if not _is_parameter(child):
                continue
            if len(child.shape) > 1 and not pointwise:
                self._find(
                    child.id,
                    f"a layer holds a parameter of {len(child.shape)} dims itself",
                    "whether it has a row for each position, is not known",
                )
            elif child.layout is None or not child.layout.shards:
                self._add(child.id)
        if pointwise:
            for inner in self.graph.parameters(module.id):
                if inner.layout is None or not inner.layout.shards:
                    self._add(inner.id)

    def _add(self, node: int) -> None:
        self.positions[node] = None

    def _check_shared(self) -> None:
        """A parameter that is read for some positions here and for all of them there."""
        for node_id in self.positions:
            node = self.graph.tensor(node_id)
            streams = {_outermost_list(self.graph, owner) for owner, _ in node.more}
            home = _outermost_list(self.graph, node.parent)
            if streams - {home} or (node.more and home is None):
                self._find(
                    node_id,
                    "it is shared by a stream that is cut and something else",
                    "a rank has a part of one gradient, and all of the other",
                )

    def _find(self, node: int, what: str, why: str) -> None:
        self.findings.append(Finding(node, what, why, _OFF))


def _inside(graph: ModuleGraph, module: int, path: str) -> int:
    """What has this registered path in a module."""
    for part in path.split("."):
        module = graph.module(module).children[part]
    return module


def _is_parameter(node: Node) -> TypeGuard[TensorNode]:
    return isinstance(node, TensorNode) and node.kind == "parameter"


def _outermost_list(graph: ModuleGraph, module: int) -> int | None:
    """The list of layers that a module stands in, the outermost one."""
    found = None
    while module >= 0:
        node = graph.nodes[module]
        parent = graph.nodes[node.parent] if node.parent >= 0 else None
        if isinstance(parent, ModuleNode) and node.name.isdigit():
            found = parent.id
        module = node.parent
    return found
