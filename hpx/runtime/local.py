"""``localize{mode=forward}``: DTensors at rest, their local parts inside the owner's forward.

The local part is the same memory, not a copy. Its gradient comes back as a DTensor with the
placements of the parameter; of a whole parameter that is read where activations are cut on tp,
every rank has a part of it, and the parts are summed first.

A module that reads the weight of another one (``linear(x, self.head.weight)``) finds the DTensor,
as the other one is not running; torch refuses to mix the two. Names may be dotted, for a module
that is known to read its child's: ``nn.MultiheadAttention`` is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hpx.errors import NotRunnableError
from hpx.runtime.around import Call, around, fill
from hpx.runtime.collectives import Group, all_reduce_sum, copy_to_region
from hpx.runtime.journal import Journal
from hpx.runtime.meshes import Meshes

__all__ = ["install", "local_part"]


def install(
    module: nn.Module,
    names: Collection[str],
    meshes: Meshes,
    journal: Journal,
    *,
    not_runnable: str | None = None,
    at_rest: str | None = None,
    partial: Collection[str] = (),
) -> None:
    """Let a module compute with the local parts of its parameters.

    Args:
        module: The module whose forward reads the parameters.
        names: Their names on the module; dotted for parameters of modules inside it.
        meshes: The meshes that they live on; a parameter brings its own.
        journal: Where the change is noted.
        not_runnable: Why the module cannot compute at all: its forward raises, with this reason.
        at_rest: Why the module cannot compute with plain tensors, as its parameters stay DTensors:
            its forward raises, with this reason, unless it is given a DTensor.
        partial: Those of ``names`` of which every rank has only a part of the gradient.
    """
    if not_runnable is not None:
        refusal = _Refusal(not_runnable)
        journal.add_hook(module.register_forward_pre_hook, refusal.refuse, prepend=True)
        return
    if at_rest is not None:
        journal.add_hook(module.register_forward_pre_hook, _Placed(at_rest).check, with_kwargs=True)
        return
    wanted = [*names, *(name for name in _read_from_children(module) if name not in names)]
    entries = []
    for name in wanted:
        path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(path) if path else None
        entries.append((owner, leaf, name in partial))
    if entries:
        fill(journal, around(module, journal), "swaps", _Locals(tuple(entries), meshes))


def local_part(parameter: DTensor, *, partial: bool = False) -> Tensor:
    """The local tensor of a parameter, with a gradient that finds its way back.

    Args:
        parameter: A DTensor on a mesh of one axis.
        partial: Whether this rank has only a part of the gradient.
    """
    if torch.compiler.is_compiling():
        local = parameter.to_local(grad_placements=parameter.placements)
        return copy_to_region(local, parameter.device_mesh.get_group()) if partial else local
    if not (parameter.requires_grad and torch.is_grad_enabled()):
        return parameter._local_tensor.detach()
    return cast(Tensor, _Local.apply(parameter, partial))  # type: ignore[no-untyped-call]


class _Locals:
    """The parameters of one module that its forward sees as local tensors."""

    def __init__(
        self, entries: tuple[tuple[nn.Module | None, str, bool], ...], meshes: Meshes
    ) -> None:
        self.entries = entries
        needs_group = any(partial for _, _, partial in entries)
        self.group = Group(meshes, "tp") if needs_group else None

    def enter(self, module: nn.Module, call: Call) -> None:
        """Put the local parts in place of what is a DTensor now."""
        for owner, name, partial in self.entries:
            table: Any = module._parameters if owner is None else owner._parameters
            found = table.get(name)
            # It is one only at rest: not in a call inside a call, or where FSDP holds it apart.
            if isinstance(found, DTensor):
                call.swap(table, name, local_part(found, partial=partial))
            elif partial and isinstance(found, nn.Parameter) and self.group is not None:
                call.swap(table, name, copy_to_region(found, self.group.group))  # local for good


class _Local(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: DTensor, partial: bool) -> Tensor:
        ctx.mesh, ctx.placements = parameter.device_mesh, parameter.placements
        ctx.whole = parameter.shape, parameter.stride()
        ctx.partial = partial
        local = parameter._local_tensor
        ctx.strides = local.stride()
        ctx.set_materialize_grads(False)
        return local.view_as(local)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        if grad is None:
            return None, None
        if ctx.partial and ctx.mesh.size() > 1:
            grad = all_reduce_sum(grad, ctx.mesh.get_group())
        if grad.stride() != ctx.strides:
            grad = torch.empty_strided(
                grad.shape, ctx.strides, dtype=grad.dtype, device=grad.device
            ).copy_(grad)
        shape, stride = ctx.whole
        return (
            DTensor.from_local(
                grad, ctx.mesh, ctx.placements, run_check=False, shape=shape, stride=stride
            ),
            None,
        )


class _Refusal:
    """The forward of a module that would compute something wrong."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def refuse(self, module: nn.Module, _args: tuple[Any, ...]) -> NoReturn:
        raise NotRunnableError(self.reason, where=f"forward of {type(module).__name__}")


class _Placed:
    """The forward of a module whose parameters are DTensors, which do not mix with plain ones."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def check(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if given and not any(isinstance(value, DTensor) for value in given):
            raise NotRunnableError(self.reason, where=f"forward of {type(module).__name__}")


def _read_from_children(module: nn.Module) -> Iterator[str]:
    """Parameters of children that a module of torch hands to a function without calling them."""
    if isinstance(module, nn.MultiheadAttention):
        table: Any = module.out_proj._parameters
        for name, parameter in table.items():
            if isinstance(parameter, DTensor):
                yield f"out_proj.{name}"
