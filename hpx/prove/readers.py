"""Parameters that another module than their own reads, where they are DTensors.

``localize`` gives a forward the local parts of what its own module holds. In the forward of a model
``linear(x, self.embed.weight)`` finds the DTensor, and torch refuses to mix it with plain tensors.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hpx.arguments import Arguments
from hpx.pipeline.context import Problem
from hpx.prove.blame import Blame, blame
from hpx.prove.contractions import Contractions
from hpx.prove.steps import tensors_of
from hpx.roles.places import of_all_layers
from hpx.run import Run

__all__ = ["read_elsewhere"]

_CALL = nn.Module._call_impl.__code__
_UNCALLED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
_HINT = "call the module that holds it, or hold the parameter in the module that reads it"


def read_elsewhere(
    run: Run, model: nn.Module, call: Arguments, mode: FakeTensorMode, deadline: float
) -> Iterator[Problem]:
    """Run a model once; a problem for each place that reads parameters of other modules.

    Args:
        run: The run that places the parameters.
        model: A fake copy of the model.
        call: What its forward gets.
        mode: The mode of its tensors.
        deadline: When to give up, on the monotonic clock.
    """
    watch = _Watch(model, _placed(run, model), deadline)
    args, kwargs = call
    # What fails has been told; what was read before counts.
    with contextlib.suppress(Exception), mode, torch.no_grad(), watch:
        model(*args, **kwargs)
    groups: dict[tuple[str, str], list[str]] = {}
    for name, place in watch.reads.items():
        groups.setdefault((of_all_layers(place.module), place.line), []).append(name)
    for names in groups.values():
        nodes = tuple(node for name in names if (node := run.graph.find(name)) is not None)
        place = watch.reads[names[0]]
        yield Problem("error", nodes, _text(place), _HINT, "shapes")


def _text(place: Blame) -> str:
    text = (
        f"{place.module or 'the model'} reads it while the module that holds it is not running:"
        " there it is a DTensor, and torch does not mix those with tensors"
    )
    return f"{text}; {place.line}: {place.code}" if place.line else text


def _placed(run: Run, model: nn.Module) -> dict[int, tuple[str, set[int]]]:
    """Name and owners of what is a DTensor at rest, by ``id`` of the copied parameter."""
    modules = dict(model.named_modules(remove_duplicate=False))
    found: dict[int, tuple[str, set[int]]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        node_id = run.graph.find(name)
        if node_id is None:
            continue  # stacked with others
        node = run.graph.tensor(node_id)
        if node.layout is None or node.props.get("localized") == "permanent":
            continue
        path = name.rpartition(".")[0]
        while path and type(modules[path]) in _UNCALLED:
            path = path.rpartition(".")[0]
        found.setdefault(id(parameter), (name, set()))[1].add(id(modules[path]))
    return found


class _Watch(Contractions):  # type: ignore[no-untyped-call]
    """Looks at every operation that is given a parameter.

    Args:
        model: What runs.
        placed: The parameters.
        deadline: When to give up, on the monotonic clock.

    Attributes:
        reads: Where a parameter is read while none of its owners runs, by name.
    """

    def __init__(
        self, model: nn.Module, placed: Mapping[int, tuple[str, set[int]]], deadline: float
    ) -> None:
        super().__init__(deadline)
        self.model = model
        self.placed = placed
        self.reads: dict[str, Blame] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        for tensor in tensors_of((args, dict(kwargs or {}))):
            known = self.placed.get(id(tensor))
            if known is not None and known[0] not in self.reads and not _runs(known[1]):
                self.reads[known[0]] = blame(self.model, self.frames(), (), 1)
        self.steps.clear()
        return super().__torch_dispatch__(func, types, args, kwargs)


def _runs(owners: set[int]) -> bool:
    """Whether one of some modules is being called, or a module of torch reads what it holds."""
    frame: FrameType | None = sys._getframe(1)
    innermost = True
    while frame is not None:
        if frame.f_code is _CALL:
            module = frame.f_locals["self"]
            if id(module) in owners or (innermost and _is_of_torch(module)):
                return True
            innermost = False
        frame = frame.f_back
    return False


def _is_of_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")
