"""Data parallelism on top: stock ``fully_shard`` and gradient clipping over both meshes.

A parameter's data axis comes from the same mesh as its weight axis: ``dp`` of the dense mesh beside
``tp``, ``edp`` of the expert mesh beside ``ep``. torch refuses a foreign mesh only where the two
share ranks in a way that it notices, so the pair is checked here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp import fully_shard as stock_fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from hpx.errors import HpxError, MeshError
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.runtime.record import Applied, applied_to

__all__ = ["clip_grad_norm_", "fully_shard"]

_DENSE_AXES = ("dp", "dp_replicate", "dp_shard")
_EXPERT_AXES = ("edp", "edp_replicate", "edp_shard")


def fully_shard(
    applied: Applied | nn.Module,
    *,
    modules: Sequence[str] | None = None,
    mesh: DeviceMesh | None = None,
    expert_mesh: DeviceMesh | None = None,
    **options: Any,
) -> nn.Module:
    """Shard a model over its data axes, after `hpx.apply`: FSDP2 on the right mesh for each part.

    Modules that hold expert weights cut on ``ep`` go on ``edp``; everything else on ``dp``. Where
    an ep group spans several data ranks, an expert has seen the batches of all of them, so its
    gradient is divided by the number of data ranks, and not by that of its own replicas.

    Args:
        applied: What `hpx.apply` gave, or its model.
        modules: Names of the modules that become groups of their own, besides the experts and the
            root; by default the elements of the model's lists of layers.
        mesh: The data mesh for the dense part; by default it is cut from the mesh of the run.
        expert_mesh: The same for expert weights.
        options: Passed on to ``torch.distributed.fsdp.fully_shard``.

    Returns:
        The model.

    Raises:
        HpxError: Nothing was applied to the model, or this was done already, or its parameters are
            local for good, or tied parameters would fall into two groups, or there is no module of
            a name.
        MeshError: The mesh has no data axis, or one that is given is not cut from the mesh on which
            a parameter lives; or an ep group holds a part of a data rank.
    """
    applied = _applied(applied)
    _refuse_permanent(applied)
    if applied.data_parallel:
        raise HpxError("hpx.fully_shard was called on this model already")
    names = _layers(applied) if modules is None else _known(applied, modules)
    groups = dict.fromkeys(names, "dense") | dict(_around_experts(applied))
    _check_ties(applied, list(groups))
    meshes = {"dense": mesh or _data_mesh(applied, "dense")}
    _check_mesh(applied, "dense", meshes["dense"])
    if "expert" in groups.values():
        meshes["expert"] = expert_mesh or _data_mesh(applied, "expert")
        _check_mesh(applied, "expert", meshes["expert"])
        _check_shares(applied, meshes)
    # Inner groups first: a group takes what the groups inside it have left.
    for name in sorted(groups, key=len, reverse=True):
        view = groups[name]
        found = stock_fully_shard(applied.model.get_submodule(name), mesh=meshes[view], **options)
        if view == "expert":
            _divide(found, meshes)
    if "" not in groups:
        stock_fully_shard(applied.model, mesh=meshes["dense"], **options)
    applied.data_parallel = True
    return applied.model


def _divide(experts: FSDPModule, meshes: dict[str, DeviceMesh]) -> None:
    """Have the gradients of experts divided by the number of batches that they are summed over.

    By a hook after the reduction: with ``set_gradient_divide_factor`` a group of one rank divides
    twice in some dtypes (torch 2.13), and gloo knows no reduction that multiplies.
    """
    batches, replicas = meshes["dense"].size(), meshes["expert"].size()
    if batches > replicas:  # else every batch is seen by at least one replica, equally often
        experts.set_all_reduce_hook(_Divide(batches // replicas))


class _Divide:
    """What FSDP has averaged over replicas, divided by the batches that each of them has seen."""

    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, gradients: torch.Tensor) -> None:
        gradients.div_(self.by)


def clip_grad_norm_(
    model: nn.Module | Iterable[nn.Parameter],
    max_norm: float,
    norm_type: float = 2.0,
    *,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """Clip gradients to a norm over all parameters, on whichever mesh each lives.

    torch's own function takes the parameters of one mesh only.

    Args:
        model: A model, or parameters.
        max_norm: The norm that is allowed.
        norm_type: 2.0, or any other p; ``inf`` for the largest element.
        error_if_nonfinite: Whether a norm that is not finite is an error.

    Returns:
        The norm before clipping, a plain scalar tensor.

    Raises:
        HpxError: The model's parameters are local for good.
        RuntimeError: As torch's own function: the norm is not finite, and that is an error.
    """
    applied = applied_to(model) if isinstance(model, nn.Module) else None
    if applied is not None and applied.permanent:
        raise HpxError(
            "the gradients are of local pieces, and their norm is not that of the whole model",
            why="localize{mode=permanent} is for export",
            fix="use localize{mode=forward} to train",
        )
    parameters = list(model.parameters() if isinstance(model, nn.Module) else model)
    groups: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            grad = parameter.grad
            key = grad.device_mesh if isinstance(grad, DTensor) else None
            groups.setdefault(key, []).append(parameter)
    norms = [
        _norm([p.grad for p in group if p.grad is not None], norm_type) for group in groups.values()
    ]
    if not norms:
        return torch.tensor(0.0)
    total: torch.Tensor = torch.linalg.vector_norm(
        torch.stack([n.to(norms[0].device) for n in norms]), norm_type
    )
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(f"the norm of the gradients is {total.item()}, so it cannot be clipped")
    for group in groups.values():
        clip_grads_with_norm_(group, max_norm, total)
    return total


def _norm(grads: list[torch.Tensor], norm_type: float) -> torch.Tensor:
    norm: torch.Tensor = get_total_norm(grads, norm_type)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    return norm


def _applied(given: Applied | nn.Module) -> Applied:
    found = given if isinstance(given, Applied) else applied_to(given)
    if found is None:
        raise HpxError(
            f"nothing was applied to this {type(given).__name__}",
            fix="call hpx.apply first; a model without tp and ep needs only torch's fully_shard",
        )
    return found


def _refuse_permanent(applied: Applied) -> None:
    for node in applied.run.graph.parameters():
        if node.props.get("localized") == "permanent":
            raise HpxError(
                "it is a local piece for good, and would be taken for the whole parameter",
                where=applied.run.graph.path(node.id),
                why="localize{mode=permanent} is for export",
                fix="use localize{mode=forward}",
            )


def _data_mesh(applied: Applied, view: str) -> DeviceMesh:
    """The data axes of a view as a mesh of one or two axes."""
    spec = applied.meshes.spec
    names = _DENSE_AXES if view == "dense" else _EXPERT_AXES
    axes = tuple(axis for axis, _ in spec.view(view).axes if axis in names)
    if not axes:
        raise MeshError(
            f"mesh {spec} has no data axis to shard on",
            why=f"its {view} axes are {spec.view(view)}",
            fix="give the mesh a dp axis, such as dp=2 (dp=1 is fine)",
        )
    mesh = applied.meshes.view(view)
    return mesh[axes[0]] if len(axes) == 1 else mesh[axes]


def _around_experts(applied: Applied) -> Iterator[tuple[str, str]]:
    """Modules that own parameters of the expert mesh, and what they hold of the dense one.

    Raises:
        HpxError: One owns parameters of both meshes.
    """
    graph = applied.run.graph
    for module in graph.modules():
        views = {node.mesh or "dense" for node in _owned(graph, module)}
        if views == {"dense", "expert"}:
            raise HpxError(
                "it owns parameters of the dense and of the expert mesh",
                where=graph.path(module.id),
                why="one FSDP group lives on one mesh",
                fix="move the dense parameters into a module of their own",
            )
        if views != {"expert"}:
            continue
        for inner in graph.modules(module.id):
            if inner.id != module.id and {n.mesh or "dense" for n in _owned(graph, inner)} == {
                "dense"
            }:
                yield graph.registered_path(inner.id), "dense"
        yield graph.registered_path(module.id), "expert"


def _owned(graph: ModuleGraph, module: ModuleNode) -> list[TensorNode]:
    """The parameters that stand on a module itself."""
    return [
        node
        for node in graph.children(module.id)
        if isinstance(node, TensorNode) and node.kind == "parameter"
    ]


def _known(applied: Applied, modules: Sequence[str]) -> list[str]:
    """Registered names of modules; a name that is not there is an error with near ones."""
    graph = applied.run.graph
    nodes = [graph.get(name) for name in modules]
    for node in nodes:
        if not isinstance(node, ModuleNode):
            raise HpxError(
                f"'{graph.path(node.id)}' is a {node.kind}, and groups are made of modules",
                fix=f"name '{graph.path(node.parent)}', which holds it",
            )
    return [graph.registered_path(node.id) for node in nodes]


def _layers(applied: Applied) -> list[str]:
    """The elements of the outermost lists of modules that are no experts."""
    graph = applied.run.graph
    found: list[str] = []
    todo = [graph.root]
    while todo:
        node = graph.module(todo.pop())
        children = [c for c in graph.children(node.id) if isinstance(c, ModuleNode)]
        if node.spec.container == "list" and children:
            found += [graph.registered_path(child.id) for child in children]
        else:
            todo += [child.id for child in children]
    return found


def _check_mesh(applied: Applied, view: str, mesh: DeviceMesh) -> None:
    """Refuse a data mesh that is not cut from the mesh on which the parameters of a view live.

    torch sees it only where the two meshes share ranks in a way that it looks for.
    """
    expected = _data_mesh(applied, view)
    if mesh.mesh.tolist() == expected.mesh.tolist() and _root(mesh) == _root(expected):
        return
    first = next((n for n in applied.run.graph.parameters() if (n.mesh or "dense") == view), None)
    home = applied.meshes.spec.view(view)
    raise MeshError(
        f"the data mesh {_shown(mesh)} is not cut from the mesh of this parameter: another root",
        where=None if first is None else applied.run.graph.path(first.id),
        why=f"it lives on the {view} mesh {home}, and its data axes are {_shown(expected)} here",
        fix=f"leave {'mesh' if view == 'dense' else 'expert_mesh'}= out, and each part gets the "
        "data axis of its own mesh",
    )


def _check_shares(applied: Applied, meshes: dict[str, DeviceMesh]) -> None:
    """Refuse ep groups that hold all of one data rank and a part of another.

    Their experts see some batches more often than others, which no division makes good.
    """
    batches, replicas = meshes["dense"].size(), meshes["expert"].size()
    if batches % replicas and replicas % batches:
        spec = applied.meshes.spec
        ep = spec.size("ep")
        sizes = spec.dense.sizes.items()
        inner = math.prod(size for axis, size in sizes if axis not in (*_DENSE_AXES, "pp"))
        raise MeshError(
            f"on {spec} an ep group holds a part of a data rank",
            why=f"a data rank has {inner} ranks, and an ep group {ep}: experts would see some"
            " batches more often than others",
            fix=f"use an ep that divides {inner}, or is a multiple of it",
        )


def _root(mesh: DeviceMesh) -> DeviceMesh:
    root: DeviceMesh = mesh._get_root_mesh()
    return root


def _shown(mesh: DeviceMesh) -> str:
    names = ", ".join(mesh.mesh_dim_names or ("no name",))
    return f"({names}) of ranks {mesh.mesh.tolist()}"


def _check_ties(applied: Applied, groups: list[str]) -> None:
    """Refuse a tied parameter whose names fall into two groups."""
    graph = applied.run.graph
    for node in graph.parameters():
        if not node.more:
            continue
        homes = {
            max((g for g in groups if _inside(name, g)), key=len, default="")
            for name in (
                graph.registered_path(node.parent),
                *(graph.registered_path(parent) for parent, _ in node.more),
            )
        }
        if len(homes) > 1:
            raise HpxError(
                f"its names {', '.join(graph.paths(node.id))} fall into different groups",
                where=graph.path(node.id),
                why="torch would make two independent parameters of it",
                fix="give modules= so that all owners of a tied parameter are in one group",
            )


def _inside(name: str, group: str) -> bool:
    return name == group or name.startswith(f"{group}.")
