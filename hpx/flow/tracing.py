"""Trace a model into a ``torch.fx`` graph: by ``torch.export``, else symbolically."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from hpx.errors import HpxError
from hpx.flow.edges import Operator, Point, points_of
from hpx.prove.copying import fake_copy
from hpx.prove.inputs import example_inputs

__all__ = [
    "exported_operators",
    "owners_of",
    "quiet",
    "short",
    "traced_by_export",
    "traced_symbolically",
]

Points = list[Point]

_CALL: Final = re.compile(r"@\d+$")  # how torch marks the second call of one module


def owners_of(model: nn.Module) -> list[str]:
    """Registered paths of the modules that own parameters themselves."""
    named = model.named_modules(remove_duplicate=False)
    return [
        path for path, module in named if any(p is not None for p in module._parameters.values())
    ]


def traced_by_export(
    model: nn.Module, inputs: object, change: Callable[[nn.Module], None] | None = None
) -> Points:
    """Points of a model as ``torch.export`` sees it, on fake tensors: no data is read.

    Args:
        model: The model; stays as it is.
        inputs: Example inputs; None for what its forward seems to take.
        change: Called with the fake copy before it is traced.

    Raises:
        Exception: Whatever the model or torch raises.
    """
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=False)
    with quiet():
        copied = fake_copy(model, mode, ()).eval()
        args, kwargs = example_inputs(copied, inputs, mode)
        if change is not None:
            change(copied)
        with mode:
            program = torch.export.export(copied, args, kwargs, strict=False)
    return points_of(exported_operators(program), owners_of(model))


def exported_operators(program: ExportedProgram) -> Iterator[Operator]:
    """The operators and parameters of an exported program."""
    names = program.graph_signature.inputs_to_parameters

    def parameter(node: fx.Node) -> str | None:
        return names.get(node.name) if node.op == "placeholder" else None

    return _operators(program.graph, parameter)


def _operators(graph: fx.Graph, parameter: Callable[[fx.Node], str | None]) -> Iterator[Operator]:
    """The operators of a traced graph; ``parameter`` names the parameter that a node is."""
    for node in graph.nodes:
        inputs = tuple(one.name for one in node.all_input_nodes)
        if node.op == "call_module":
            yield Operator(node.name, inputs, str(node.target), is_call=True)
        elif node.op in ("call_function", "call_method"):
            stack = node.meta.get("nn_module_stack") or {}
            module = next(reversed(stack.values()))[0] if stack else ""
            yield Operator(node.name, inputs, _CALL.sub("", module))
        elif (name := parameter(node)) is not None:
            yield Operator(node.name, (), owner=name.rpartition(".")[0])


class _OwnersAreLeaves(fx.Tracer):
    """Modules that own parameters are called as they are; everything around them is traced."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return any(p is not None for p in m._parameters.values()) or super().is_leaf_module(
            m, module_qualified_name
        )


def traced_symbolically(model: nn.Module) -> Points:
    """Points of a model as ``torch.fx`` traces it, without inputs.

    Raises:
        Exception: Whatever the model or torch raises.
    """
    if isinstance(model, fx.GraphModule):
        graph = model.graph
    else:
        with quiet():
            graph = _OwnersAreLeaves().trace(model)
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}

    def parameter(node: fx.Node) -> str | None:
        name = str(node.target)
        return name if node.op == "get_attr" and name in parameters else None

    return points_of(_operators(graph, parameter), owners_of(model))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What torch logs, prints and warns of while it tries is no news for the user."""
    before = logging.root.manager.disable  # a program may have turned off some levels itself
    logging.disable(logging.CRITICAL)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def short(error: BaseException) -> str:
    """The first line of an error, for a reason."""
    if isinstance(error, HpxError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
