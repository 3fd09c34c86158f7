"""Head counts beside a projection that is wrapped, as in ``q_proj = Sequential(Linear(...))``."""

from __future__ import annotations

from collections.abc import Iterator

from hpx.check.subject import Subject, Told
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.heads import KV_COUNTS, Q_COUNTS
from hpx.projections import output_dim

__all__ = ["wrapped_heads"]


def wrapped_heads(subject: Subject) -> Iterator[Told]:
    """No cut layer inside a wrapper escapes the head counts of the module around it.

    Of a layer in a ``Sequential`` it is not known whether it is q, k or v. Told where it is cut on
    its outputs, nothing in the wrapper takes them, and a count that divides them was not rewritten.
    """
    if subject.tp == 1:
        return
    graph = subject.graph
    for module in graph.modules():
        counts = [
            (name, value)
            for name, value in module.spec.attributes
            if name in (*Q_COUNTS, *KV_COUNTS)
            and value > 1
            and f"attributes.{name}" not in module.props
        ]
        for wrapper, width in _wrapped(graph, module) if counts else ():
            for name, value in counts:
                if width % value == 0:
                    yield Told(
                        "warning",
                        module.id,
                        f"{wrapper} is cut on its {width} outputs, and {name} = {value} was not"
                        " rewritten",
                        "if its heads are counted by it, declare it under heads: in the plan:"
                        f" {name}",
                        ((name, value), ("outputs", width)),
                    )


def _wrapped(graph: ModuleGraph, module: ModuleNode) -> Iterator[tuple[str, int]]:
    """Layers one deeper than the children of a module that are cut on their outputs."""
    for child in graph.children(module.id):
        if not isinstance(child, ModuleNode) or not child.spec.cls.endswith(".Sequential"):
            continue
        widths: list[tuple[str, int]] = []
        for inner in graph.children(child.id):
            weight = inner.children.get("weight") if isinstance(inner, ModuleNode) else None
            node = None if weight is None else graph.nodes[weight]
            if not isinstance(node, TensorNode) or len(node.shape) != 2 or node.layout is None:
                continue
            dim = node.layout.dim("tp")
            if dim is None:
                continue
            if dim != output_dim(graph, node):
                break  # it takes what the others give: a block by itself
            widths.append((f"{child.name}.{inner.name}", node.shape[dim]))
        else:
            yield from widths
