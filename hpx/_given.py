"""What a caller gives for a mesh, a plan or a model, and what to write for anything else."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

from hpx.errors import MeshError, PlanError, UsageError
from hpx.mesh import MeshSpec
from hpx.plan import ShardingPlan

__all__ = ["as_mesh", "as_plan", "check_is_model"]


def as_mesh(mesh: object) -> MeshSpec:
    """A mesh, or what its text says.

    Raises:
        MeshError: It is neither, or the text is not that of a mesh.
    """
    if isinstance(mesh, MeshSpec):
        return mesh
    if isinstance(mesh, str):
        return MeshSpec.parse(mesh)
    if isinstance(mesh, Mapping):
        text = ",".join(f"{axis}={size}" for axis, size in mesh.items())
        raise MeshError("the mesh is given as a mapping", fix=f"write '{text}'")
    raise MeshError(
        f"the mesh is given as a {_kind(mesh)}",
        fix="write it as text such as 'dp=2,tp=4'; hpx.MeshSpec.from_mesh takes device meshes",
    )


def as_plan(plan: object) -> ShardingPlan:
    """A plan, or what stands in the file of that path.

    Raises:
        UsageError: It is neither, or there is no such file.
        PlanError: The file has no plan.
    """
    if isinstance(plan, ShardingPlan):
        return plan
    if isinstance(plan, (str, PathLike)):
        return ShardingPlan.from_file(plan)
    if isinstance(plan, Mapping):
        raise PlanError("the plan is given as a mapping", fix="write hpx.ShardingPlan({...})")
    what = "no plan is given" if plan is None else f"the plan is given as a {_kind(plan)}"
    raise PlanError(what, fix="give a hpx.ShardingPlan, or the path of a plan file")


def check_is_model(model: object) -> None:
    """Refuse what is no module, such as its class, its name or its state dict.

    Raises:
        UsageError: It is no instance of ``torch.nn.Module``.
    """
    from torch import nn

    if isinstance(model, nn.Module):
        return
    kind = f"the class {model.__name__}" if isinstance(model, type) else f"a {_kind(model)}"
    raise UsageError(f"the model is given as {kind}", fix="give the torch.nn.Module itself")


def _kind(value: object) -> str:
    return type(value).__name__
