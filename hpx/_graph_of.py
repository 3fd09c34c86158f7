"""Graphs for tests, from names and shapes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from hpx.graph.builder import GraphBuilder
from hpx.graph.edit import set_key
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleSpec, TensorKind, TensorSpec, row_major
from hpx.layout import Layout

__all__ = ["graph_of"]

_MODULE = "torch.nn.modules.module.Module"


def graph_of(
    tensors: Mapping[str, Sequence[int] | TensorSpec],
    *,
    attributes: Mapping[str, Mapping[str, int]] | None = None,
    classes: Mapping[str, str] | None = None,
    dtypes: Mapping[str, str] | None = None,
    frozen: Collection[str] = (),
    buffers: Collection[str] = (),
    tied: Mapping[str, str] | None = None,
    layouts: Mapping[str, str] | None = None,
    hints: Mapping[str, object] | None = None,
) -> ModuleGraph:
    """A graph from names and shapes.

    Args:
        tensors: Parameters by dotted name: a shape, or a whole specification.
        attributes: Integers of modules by module name; ``""`` is the root.
        classes: Qualified class names of modules by module name.
        dtypes: dtypes other than float32, by tensor.
        frozen: Tensors that need no gradient.
        buffers: Which of the tensors are buffers.
        tied: Further names of parameters: new name -> name in ``tensors``.
        layouts: Layouts that a pass has decided already, by tensor, as ``"tp:S(0)"`` or ``"R"``.
        hints: What the model declares, such as ``{"config": {"num_attention_heads": 8}}``.

    >>> graph = graph_of({"attn.q.weight": (8, 8)}, attributes={"attn": {"num_heads": 4}})
    >>> graph.module(graph.find("attn")).attributes
    {'num_heads': 4}
    """
    builder = GraphBuilder()
    integers, names = attributes or {}, classes or {}
    modules: dict[str, int] = {}
    made: dict[str, int] = {}
    todo = [""]
    extra = [*integers, *names, *(name.rpartition(".")[0] for name in tied or {})]
    below = _modules_below([*tensors, *(f"{name}.x" for name in extra if name)])
    while todo:
        path = todo.pop()
        parent, _, name = path.rpartition(".")
        spec = ModuleSpec(
            names.get(path, _MODULE), attributes=tuple(integers.get(path, {}).items())
        )
        modules[path] = builder.module(modules[parent] if path else -1, name, spec)
        for full, value in tensors.items():
            owner, _, leaf = full.rpartition(".")
            if owner == path:
                kind: TensorKind = "buffer" if full in buffers else "parameter"
                spec_of = _tensor_spec(value, (dtypes or {}).get(full), full not in frozen)
                made[full] = builder.tensor(kind, modules[path], leaf, spec_of)
        todo.extend(reversed(below.get(path, ())))
    for alias, target in (tied or {}).items():
        owner, _, leaf = alias.rpartition(".")
        builder.link(modules[owner], leaf, made[target])
    graph = builder.finish(source="test", hints=hints)
    for full, text in (layouts or {}).items():
        layout = Layout.parse(text)
        set_key(graph, [made[full]], "layout", layout)
        view = "dense" if layout.dim("ep") is None else "expert"
        set_key(graph, [made[full]], "mesh", view)
    return graph


def _modules_below(names: Iterable[str]) -> dict[str, list[str]]:
    """The child modules of every module, in the order in which names mention them."""
    below: dict[str, list[str]] = {}
    for full in names:
        parts = full.split(".")[:-1]
        for length in range(1, len(parts) + 1):
            parent, path = ".".join(parts[: length - 1]), ".".join(parts[:length])
            if path not in below.setdefault(parent, []):
                below[parent].append(path)
    return below


def _tensor_spec(
    value: Sequence[int] | TensorSpec, dtype: str | None, requires_grad: bool
) -> TensorSpec:
    if isinstance(value, TensorSpec):
        return value
    shape = tuple(value)
    return TensorSpec(
        shape,
        dtype or "float32",
        row_major(shape),
        requires_grad,
        cls="torch.nn.parameter.Parameter",
    )
