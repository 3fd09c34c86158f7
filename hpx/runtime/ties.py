"""Tied names hold one Parameter object, also when a meta model gets memory.

``nn.Module.to_empty`` makes a new parameter under each name, which ends the tie. `to_empty` makes
one of them again; where somebody else broke the tie, the next forward refuses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor

from hpx.errors import HpxError
from hpx.run import Run
from hpx.runtime.gather import module_at
from hpx.runtime.journal import Journal
from hpx.runtime.materialize import Sources
from hpx.runtime.record import applied_to

__all__ = ["guard_ties", "tell_of_differing_ends", "to_empty"]

_LOG = logging.getLogger("hpx")


def tell_of_differing_ends(run: Run, sources: Sources) -> None:
    """Warn of names that are declared tied, are two parameters until now, and differ in value."""
    for event in run.events:
        if event.kind != "alias" or not isinstance(event.old, int):
            continue
        kept, gone = sources.parameter(event.nodes[0]), sources.parameter(event.old)
        known = all(map(_has_values, (kept, gone))) and kept.device == gone.device
        if known and dist.get_rank() == 0 and not torch.equal(kept, gone):
            names = run.entry.path(event.nodes[0]), run.entry.path(event.old)
            _LOG.warning(
                "%s and %s are declared tied and differ: the values of %s stay", *names, names[0]
            )


def _has_values(parameter: nn.Parameter) -> bool:
    """Whether its values can be compared here: it is neither meta, fake nor a DTensor."""
    return not (parameter.is_meta or isinstance(parameter.data, (FakeTensor, DTensor)))


def to_empty(
    model: nn.Module,
    *,
    device: torch.device | str,
    recompute: Callable[[nn.Module], None] | None = None,
) -> nn.Module:
    """Give a sharded meta model memory, uninitialised: ``model.to_empty`` that keeps ties.

    Args:
        model: A model that `hpx.apply` changed.
        device: Where the memory is.
        recompute: Called with the model afterwards, to compute the buffers that no state dict has,
            such as rotary tables.

    Returns:
        The model.

    Raises:
        HpxError: Nothing was applied to it, or a buffer that is in no state dict is not recomputed.
    """
    applied = applied_to(model)
    if applied is None:
        raise HpxError(
            f"nothing was applied to this {type(model).__name__}",
            fix="call hpx.apply first, or model.to_empty if nothing is tied",
        )
    if recompute is None:
        _refuse_buffers([name for name, buffer in _unsaved(model) if buffer.is_meta])
    lost = {name for name, buffer in _unsaved(model) if buffer.is_meta}
    model.to_empty(device=device)
    for (owner, name), *others in _tied(applied.run):
        first = module_at(model, owner)._parameters[name]
        for other, alias in others:
            module_at(model, other)._parameters[alias] = first
    if recompute is not None:
        before = {n: (b, b._version) for n, b in _unsaved(model) if n in lost}
        recompute(model)
        after = {n: (b, b._version) for n, b in _unsaved(model) if n in lost}
        _refuse_buffers(
            # One that is not there any more is in the state dict by now, or None.
            [n for n, (b, v) in after.items() if before[n][0] is b and before[n][1] == v]
        )
    return model


def _unsaved(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for path, module in model.named_modules():
        for name in module._non_persistent_buffers_set:
            buffer = module._buffers.get(name)
            if buffer is not None:
                yield f"{path}.{name}" if path else name, buffer


def _refuse_buffers(names: list[str]) -> None:
    if names:
        raise HpxError(
            f"buffers {', '.join(sorted(names))} would stay uninitialised",
            why="they are on the meta device, and no state dict has them",
            fix="give recompute=, a function that computes them on the model",
        )


def _tied(run: Run) -> Iterator[list[tuple[str, str]]]:
    """(module, name) wherever one parameter stands, of those that have several names."""
    graph = run.graph
    for node in graph.parameters():
        if node.more:
            places = ((node.parent, node.name), *node.more)
            yield [(graph.registered_path(parent), name) for parent, name in places]


def guard_ties(model: nn.Module, run: Run, journal: Journal) -> None:
    """Have the forward refuse a model whose ties somebody broke."""
    tied = list(_tied(run))
    if tied:
        journal.add_hook(model.register_forward_pre_hook, _StillTied(tied))


class _StillTied:
    """A forward pre-hook of the root: all names of a tied parameter hold the same one."""

    def __init__(self, tied: list[list[tuple[str, str]]]) -> None:
        self.tied = tied

    def __call__(self, model: nn.Module, args: tuple[Any, ...]) -> None:
        del args
        if torch.compiler.is_compiling():
            return
        for places in self.tied:
            found = [module_at(model, path)._parameters[name] for path, name in places]
            if any(parameter is not found[0] for parameter in found):
                names = " and ".join(f"{p}.{n}" if p else n for p, n in places)
                raise HpxError(
                    f"{names} are tied, and are several parameters now",
                    why="to_empty and the like make a new parameter under each name",
                    fix="use hpx.to_empty(model, device=...), before an optimizer is made",
                )
