"""Device meshes: the two views of a mesh on the ranks of a process group.

- `build` makes both from a `MeshSpec`, with two calls of ``init_device_mesh``.
- `spec_of` takes those that a user has made, checked against the arrangement that hpx plans for.

Neither starts a process group. Torch's fake one will do: then one process plays one rank of a
world of any size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard

from hpx.errors import MeshError
from hpx.layout import Layout
from hpx.mesh import MeshSpec, MeshView
from hpx.mesh_axes import axes_text

__all__ = ["Meshes", "build", "spec_of"]


@dataclass(frozen=True, eq=False)
class Meshes:
    """The device meshes of a `MeshSpec`.

    Attributes:
        spec: The mesh as numbers.
        dense: The ranks arranged by the axes of ``spec``.
        expert: The same ranks arranged by ``edp`` and ``ep``; None without ``ep``.
    """

    spec: MeshSpec
    dense: DeviceMesh
    expert: DeviceMesh | None = None
    _subs: dict[str, DeviceMesh] = field(default_factory=dict, init=False, repr=False)
    _coordinates: dict[str, dict[str, int]] = field(default_factory=dict, init=False, repr=False)

    @property
    def device_type(self) -> str:
        """Where the tensors of these meshes live: ``"cpu"``, ``"cuda"``, ..."""
        return self.dense.device_type

    def view(self, name: str) -> DeviceMesh:
        """The mesh called ``"dense"`` or ``"expert"``.

        Raises:
            MeshError: Another name, or the expert view of a mesh without ``ep``.
        """
        self.spec.view(name)
        return self.dense if self.expert is None or name == "dense" else self.expert

    def sub(self, axis: str) -> DeviceMesh:
        """The one-dimensional mesh of this rank's group on one axis.

        ``ep`` and ``edp`` are cut from the expert mesh, everything else from the dense one.

        Raises:
            MeshError: Neither mesh has this axis.
        """
        if axis not in self._subs:
            dense, expert = self.spec.dense, self.spec.expert
            if expert is not None and axis in expert.sizes and axis not in dense.sizes:
                home = self.view("expert")
            else:
                self.spec.size(axis)  # refuses an axis that is not there
                home = self.dense
            self._subs[axis] = home[axis]
        return self._subs[axis]

    def of(self, layout: Layout) -> tuple[DeviceMesh, tuple[Placement, ...]]:
        """The mesh and the placements of a DTensor with this layout.

        They are one-dimensional: ``ep`` for a parameter that it cuts, ``tp`` for every other one,
        so that FSDP finds no data axis in them.

        Raises:
            MeshError: The mesh lacks the axis.
        """
        axis = "tp" if layout.dim("ep") is None else "ep"
        dim = layout.dim(axis)
        return self.sub(axis), (Replicate() if dim is None else Shard(dim),)

    def coordinate(self, view: str = "dense") -> dict[str, int]:
        """The position of this rank on every axis of a view.

        Raises:
            MeshError: There is no such view.
        """
        if view not in self._coordinates:
            mesh = self.view(view)
            place = mesh.get_coordinate()
            if place is None or mesh.mesh_dim_names is None:
                raise MeshError(f"this process is no rank of the {view} mesh")
            self._coordinates[view] = dict(zip(mesh.mesh_dim_names, place, strict=True))
        return dict(self._coordinates[view])


def build(spec: MeshSpec, device_type: str | None = None) -> Meshes:
    """The device meshes of ``spec``, made from the ranks of the process group.

    Every rank has to call it, as it makes a group for every axis. A mesh that came from
    `MeshSpec.from_mesh` gives back the meshes it was made from.

    Args:
        spec: The mesh as numbers.
        device_type: ``"cpu"``, ``"cuda"``, ...; left out, it is the accelerator's if the process
            group has a backend for it other than gloo and fake, else ``"cpu"``.

    Raises:
        MeshError: There is no process group, or it has another number of ranks, or the device type
            does not exist or is not that of the given meshes.
    """
    _check_world(f"mesh {spec}", spec.world_size)
    if device_type is not None:
        _check_device_type(device_type)
    if spec.meshes is not None:
        found = spec.meshes.device_type
        if device_type not in (None, found):
            raise MeshError(
                f"mesh {spec} is on {found}, not on {device_type}",
                why="it was made from device meshes of that type",
                fix=f"leave the device type out, or give {found}",
            )
        return spec.meshes
    device_type = device_type or _default_device_type()
    dense = _device_mesh(spec.dense, device_type)
    expert = None if spec.expert is None else _device_mesh(spec.expert, device_type)
    return Meshes(spec, dense, expert)


def spec_of(dense: DeviceMesh, expert: DeviceMesh | None = None) -> MeshSpec:
    """A mesh as numbers that keeps the device meshes it was read from.

    Args:
        dense: A mesh of all ranks, with axes named as in a mesh text.
        expert: The same ranks arranged for experts, with the axes that `MeshSpec.expert` has.

    Raises:
        MeshError: An axis has no name or an unknown one, or the ranks are not arranged as in a
            `MeshSpec` of these axes; the message names the first difference.
    """
    axes = _named_axes(dense, "dense")
    if any(axis == "ep" for axis, _ in axes):
        raise MeshError(
            f"the dense mesh {axes_text(axes)} has an axis ep",
            why="ep adds no ranks, it regroups those of the dense axes",
            fix="give the mesh that has ep as expert=, and one with the axes dp, tp, ... as dense",
        )
    ep = None if expert is None else dict(_named_axes(expert, "expert")).get("ep")
    if expert is not None and ep is None:
        raise MeshError(
            f"the expert mesh {axes_text(_named_axes(expert, 'expert'))} has no axis ep",
            fix="name its last axis ep, and those before it edp",
        )
    spec = MeshSpec(axes, ep)
    _check_world(f"the dense mesh {axes_text(axes)}", dense.size())
    _check_arrangement(spec.dense, dense)
    if expert is not None and spec.expert is not None:
        _check_arrangement(spec.expert, expert)
        if dense.device_type != expert.device_type:
            raise MeshError(
                f"the dense mesh is on {dense.device_type}, the expert mesh on "
                f"{expert.device_type}",
                why="a model has its parameters on one type of device",
            )
    object.__setattr__(spec, "meshes", Meshes(spec, dense, expert))
    return spec


def _device_mesh(view: MeshView, device_type: str) -> DeviceMesh:
    names = tuple(axis for axis, _ in view.axes)
    sizes = tuple(size for _, size in view.axes)
    if isinstance(view.ranks, range):
        return init_device_mesh(device_type, sizes, mesh_dim_names=names)
    # pp stands between other axes: a stage is not a run of ranks.
    ranks = torch.tensor(view.ranks, dtype=torch.int, device="cpu").reshape(sizes)
    return DeviceMesh(device_type, ranks, mesh_dim_names=names)


def _check_world(who: str, ranks: int) -> None:
    if not (dist.is_available() and dist.is_initialized()):
        raise MeshError(
            "there is no process group",
            why=f"{who} is made of the ranks of one",
            fix="start the program with torchrun and call torch.distributed.init_process_group() "
            "first; a dry run (hpx.run) needs none",
        )
    world = dist.get_world_size()
    if world != ranks:
        raise MeshError(
            f"{who} has {ranks} rank{'' if ranks == 1 else 's'}",
            why=f"the process group has {world}",
            fix=f"start {ranks} processes, or give a mesh of {world} in all, pp included",
        )


def _check_device_type(device_type: str) -> None:
    try:
        device = torch.device(device_type)
    except RuntimeError as error:
        raise MeshError(
            f"{device_type!r} is no device type", fix="give cpu, cuda or another type of torch's"
        ) from error
    if device.index is not None:
        raise MeshError(
            f"{device_type!r} is one device, not a type",
            fix=f"give {device.type!r}; torch.accelerator.set_device_index chooses the device",
        )


def _default_device_type() -> str:
    """The accelerator if the process group is for it; gloo and fake groups take any device."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return "cpu"
    config = dict(pair.split(":") for pair in dist.get_backend_config().split(","))
    return "cpu" if config.get(accelerator.type, "gloo") in ("gloo", "fake") else accelerator.type


def _named_axes(mesh: DeviceMesh, which: str) -> tuple[tuple[str, int], ...]:
    if mesh.mesh_dim_names is None:
        raise MeshError(
            f"the axes of the {which} mesh have no names",
            why="layouts name the axes that they cut on",
            fix="make it with mesh_dim_names=, such as ('dp', 'tp')",
        )
    return tuple(zip(mesh.mesh_dim_names, mesh.shape, strict=True))


def _check_arrangement(view: MeshView, mesh: DeviceMesh) -> None:
    """Refuse a device mesh that has other axes than the view, or ranks in another order."""
    axes = _named_axes(mesh, view.name)
    if axes != view.axes:
        raise MeshError(
            f"the {view.name} mesh has the axes {axes_text(axes)}",
            why=f"with this dense mesh they are {view}",
            fix=f"make it as {view}, or leave it to MeshSpec.build",
        )
    found = mesh.mesh.flatten().tolist()
    for here, there in zip(found, view.ranks, strict=True):
        if here != there:
            place = ",".join(f"{axis}={at}" for axis, at in view.coordinate(there).items())
            raise MeshError(
                f"the {view.name} mesh has rank {here} at {place}",
                why=f"a mesh {view} has rank {there} there: ranks count row-major, pp cut off "
                "first for experts",
                fix="arrange the ranks so, or leave it to MeshSpec.build",
            )
