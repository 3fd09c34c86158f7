"""How a parameter is computed from the model's original tensors, without any data.

A lineage is a closed, serialisable expression: `Source` is an original tensor (by node id), `Stack`
puts equal tensors side by side on a new dim. Forwards it gives shapes; printed it gives the line
``stack(model.layers.3.mlp.experts.{0-255}.gate_proj.weight)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, cast

from hpx.ranges import expand_ids, fold_names, pack_ids

__all__ = ["Lineage", "Source", "Stack", "lineage_from_json", "lineage_to_json", "sources"]


class Source(NamedTuple):
    """An original tensor of the model: the node with this id in the entry graph."""

    node: int


class Stack(NamedTuple):
    """Equal tensors put side by side on a new dim, as long as there are parts."""

    parts: tuple[Lineage, ...]
    dim: int = 0


Lineage: TypeAlias = Source | Stack


def sources(lineage: Lineage) -> Iterator[int]:
    """The ids of the original tensors, in the order in which the expression reads them."""
    todo: list[Lineage] = [lineage]
    while todo:
        item = todo.pop()
        if isinstance(item, Source):
            yield item.node
        else:
            todo.extend(reversed(item.parts))


def shape_of(lineage: Lineage, source_shape: Callable[[int], tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that the expression gives.

    Args:
        lineage: The expression.
        source_shape: Shape of an original tensor by node id.
    """
    if isinstance(lineage, Source):
        return source_shape(lineage.node)
    inner = shape_of(lineage.parts[0], source_shape)
    return (*inner[: lineage.dim], len(lineage.parts), *inner[lineage.dim :])


def describe(lineage: Lineage, name_of: Callable[[int], str]) -> str:
    """The expression as text, numbered names folded: ``stack(experts.{0-255}.w1.weight)``."""
    if isinstance(lineage, Source):
        return name_of(lineage.node)
    plain = [part for part in lineage.parts if isinstance(part, Source)]
    if len(plain) == len(lineage.parts):
        inner = ", ".join(fold_names([name_of(part.node) for part in plain]))
    else:
        inner = ", ".join(describe(part, name_of) for part in lineage.parts)
    return f"stack({inner})" if lineage.dim == 0 else f"stack({inner}, dim={lineage.dim})"


def lineage_to_json(lineage: Lineage) -> dict[str, object]:
    """A JSON form; a stack of plain sources keeps its ids as packed runs."""
    if isinstance(lineage, Source):
        return {"op": "source", "node": lineage.node}
    if all(isinstance(part, Source) for part in lineage.parts):
        ids = [part.node for part in lineage.parts if isinstance(part, Source)]
        return {"op": "stack", "dim": lineage.dim, "sources": pack_ids(ids)}
    parts = [lineage_to_json(part) for part in lineage.parts]
    return {"op": "stack", "dim": lineage.dim, "parts": parts}


def lineage_from_json(value: dict[str, object]) -> Lineage:
    """The inverse of `lineage_to_json`."""
    if value["op"] == "source":
        return Source(cast(int, value["node"]))
    dim = cast(int, value["dim"])
    if "sources" in value:
        ids = expand_ids(cast(Sequence[int | list[int]], value["sources"]))
        return Stack(tuple(map(Source, ids)), dim)
    parts = cast(list[dict[str, object]], value["parts"])
    return Stack(tuple(lineage_from_json(part) for part in parts), dim)
