"""The mesh as numbers: named axes with sizes, and the two views of its ranks.

- `MeshSpec` is what ``--mesh`` says: ordered dense axes, and the *virtual* axis ``ep``.
- `MeshView` is one arrangement of the ranks: *dense* (the axes as written) or *expert* (the same
  ranks cut into ``edp`` and ``ep``).

A dry run needs nothing else: no processes, no torch. `MeshSpec.build` makes device meshes of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from hpx.errors import MeshError, did_you_mean
from hpx.mesh_axes import (
    KNOWN_AXES,
    WEIGHT_AXES,
    axes_text,
    check_axes,
    divisors,
    num_ranks,
    read_axes,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from hpx.layout import Layout
    from hpx.runtime.meshes import Meshes

__all__ = ["KNOWN_AXES", "WEIGHT_AXES", "MeshSpec", "MeshView", "ViewName", "divisors"]

ViewName = Literal["dense", "expert"]


@dataclass(frozen=True)
class MeshView:
    """One row-major arrangement of the ranks of a mesh.

    Attributes:
        name: ``"dense"`` or ``"expert"``.
        axes: Axis names with their sizes, outermost first.
        ranks: The global ranks, row-major over ``axes``.

    >>> MeshSpec.parse("dp=4,tp=2,ep=4").view("expert").groups("ep")
    [[0, 1, 2, 3], [4, 5, 6, 7]]
    """

    name: ViewName
    axes: tuple[tuple[str, int], ...]
    ranks: range | tuple[int, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """The axes as a mapping, as `hpx.layout.index_range` takes them."""
        return dict(self.axes)

    def size(self, axis: str) -> int:
        """The size of one axis.

        Raises:
            MeshError: The view has no such axis.
        """
        return self.axes[self._index(axis)][1]

    def coordinate(self, rank: int) -> dict[str, int]:
        """The position of a global rank on every axis of this view.

        Raises:
            MeshError: There is no such rank.
        """
        if rank not in self.ranks:
            last = len(self.ranks) - 1
            raise MeshError(
                f"mesh {self} has no rank {rank}", why=f"its {last + 1} ranks are 0..{last}"
            )
        rest = self.ranks.index(rank)
        position: dict[str, int] = {}
        for axis, size in reversed(self.axes):
            rest, position[axis] = divmod(rest, size)
        return dict(reversed(position.items()))

    def groups(self, axis: str) -> list[list[int]]:
        """The ranks that differ on ``axis`` only, group by group.

        Raises:
            MeshError: The view has no such axis.
        """
        index = self._index(axis)
        size = self.axes[index][1]
        stride = math.prod(n for _, n in self.axes[index + 1 :])
        starts = (i for i in range(len(self.ranks)) if i // stride % size == 0)
        return [[self.ranks[i + k * stride] for k in range(size)] for i in starts]

    def _index(self, axis: str) -> int:
        names = [name for name, _ in self.axes]
        if axis not in names:
            raise MeshError(
                f"the {self.name} mesh {self} has no axis {axis!r}",
                why=f"its axes are {', '.join(names)}",
                fix=did_you_mean(axis, names) or None,
            )
        return names.index(axis)

    def __str__(self) -> str:
        return axes_text(self.axes)


@dataclass(frozen=True)
class MeshSpec:
    """Dense axes in order, and the expert-parallel size.

    ``ep`` adds no ranks: the ranks of a pipeline stage, flattened row-major, are cut into
    ``(edp, ep)``. With ``dp_replicate`` and ``dp_shard`` they are cut into
    ``(edp_replicate, edp_shard, ep)``. ``pp`` is cut off first and stays the first axis.

    Attributes:
        axes: The dense axes with their sizes, outermost first.
        ep: The size of the expert axis; None if the mesh names none.
        meshes: The device meshes that `from_mesh` read it from, otherwise None. They take no part
            in comparisons and are not saved.

    Raises:
        MeshError: An axis is unknown, named twice or of a size below 1; ``dp`` stands beside its
            own parts; or ``ep`` does not divide.

    >>> mesh = MeshSpec.parse("dp=4,tp=2,ep=4")
    >>> mesh.world_size, str(mesh.dense), str(mesh.expert)
    (8, 'dp=4,tp=2', 'edp=2,ep=4')
    """

    axes: tuple[tuple[str, int], ...]
    ep: int | None = None
    meshes: Meshes | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_axes(self.axes, self.ep)

    @classmethod
    def parse(cls, text: str) -> MeshSpec:
        """Read ``axis=size`` pairs; the same text comes back from ``str()``.

        Args:
            text: For example ``"dp=4,tp=8,ep=16"``; ``ep`` may stand anywhere and prints last.

        Raises:
            MeshError: The text is not such a list, or its axes make no mesh.
        """
        pairs = read_axes(text)
        ep = next((size for axis, size in pairs if axis == "ep"), None)
        return cls(tuple(pair for pair in pairs if pair[0] != "ep"), ep)

    @classmethod
    def from_json(cls, value: object) -> MeshSpec:
        """Read back what `to_json` wrote.

        Raises:
            MeshError: There is no mesh text in it, or the rest says something else.
        """
        text = value.get("text") if isinstance(value, Mapping) else None
        if not isinstance(text, str):
            raise MeshError("this is no saved mesh", why="it has no 'text'")
        mesh = cls.parse(text)
        if mesh.to_json() != value:
            raise MeshError(f"saved mesh {text!r} contradicts itself", why=f"it says {value}")
        return mesh

    @classmethod
    def from_mesh(cls, dense: DeviceMesh, expert: DeviceMesh | None = None) -> MeshSpec:
        """Read the device meshes of a program; `build` gives them back, so their groups are reused.

        Args:
            dense: A mesh of all ranks, its axes named as in a mesh text, ``pp`` included.
            expert: The same ranks by ``edp`` and ``ep``, if experts are to be cut.

        Raises:
            MeshError: Names or ranks are not as a mesh text would arrange them, or there is no
                process group of this size.
        """
        from hpx.runtime.meshes import spec_of

        return spec_of(dense, expert)

    def build(self, device_type: str | None = None) -> Meshes:
        """Make the device meshes on the ranks of the process group; every rank has to call it.

        Args:
            device_type: ``"cpu"``, ``"cuda"``, ...; by default what the process group is for.

        Raises:
            MeshError: There is no process group, or it has another number of ranks.
        """
        from hpx.runtime.meshes import build

        return build(self, device_type)

    def to_json(self) -> dict[str, object]:
        """``{text, axes, world_size, expert}``; ``expert`` is None without ``ep``."""
        return {
            "text": str(self),
            "axes": dict(self.axes),
            "world_size": self.world_size,
            "expert": self.expert.sizes if self.expert else None,
        }

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return num_ranks(self.axes)

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Every axis in mesh order; ``ep``, where there is one, last."""
        return tuple(axis for axis, _ in (*self.axes, *self._ep_axis))

    @property
    def weight_axes(self) -> tuple[str, ...]:
        """The axes of this mesh that may cut a weight: those of ``tp`` and ``ep`` it has."""
        return tuple(axis for axis in WEIGHT_AXES if self.has(axis))

    @property
    def active_axes(self) -> tuple[str, ...]:
        """The weight axes larger than 1."""
        return tuple(axis for axis in self.weight_axes if self.size(axis) > 1)

    def has(self, axis: str) -> bool:
        """Whether the mesh names this axis, of whatever size."""
        return axis in self.axis_names

    def size(self, axis: str, default: int | None = None) -> int:
        """The size of one axis, ``ep`` included.

        Args:
            axis: The axis.
            default: What an *optional* axis counts as where the mesh lacks it, usually 1.

        Raises:
            MeshError: The mesh lacks the axis and there is no default.
        """
        sizes = dict((*self.axes, *self._ep_axis))
        if axis in sizes:
            return sizes[axis]
        if default is not None:
            return default
        raise MeshError(
            f"mesh {self} has no axis {axis!r}",
            why=f"its axes are {', '.join(sizes)}",
            fix=_missing_axis_fix(axis, sizes),
        )

    @cached_property
    def dense(self) -> MeshView:
        """The ranks arranged by the axes as written."""
        return MeshView("dense", self.axes, range(self.world_size))

    @cached_property
    def expert(self) -> MeshView | None:
        """The same ranks arranged for experts; None without ``ep``."""
        if self.ep is None:
            return None
        return MeshView("expert", _expert_axes(self.axes, self.ep), _ranks_by_stage(self.dense))

    def view(self, name: str) -> MeshView:
        """The view called ``"dense"`` or ``"expert"``.

        Raises:
            MeshError: Another name, or the expert view of a mesh without ``ep``.
        """
        if name == "dense":
            return self.dense
        if name != "expert":
            raise MeshError(f"a mesh has no view {name!r}", why="its views are dense and expert")
        if self.expert is None:
            raise MeshError(
                f"mesh {self} has no expert view",
                why="it names no ep axis",
                fix="add ep to the mesh; ep=1 if it is meant to be inactive",
            )
        return self.expert

    def view_of(self, layout: Layout) -> MeshView:
        """Where a parameter of this layout lives: the expert view iff it is cut on ``ep``.

        Raises:
            MeshError: The layout is cut on ``ep`` and the mesh has none.
        """
        return self.view("dense" if layout.dim("ep") is None else "expert")

    def coordinate(self, rank: int, view: str = "dense") -> dict[str, int]:
        """The position of a global rank in one of the views.

        Raises:
            MeshError: There is no such rank, or no such view.
        """
        return self.view(view).coordinate(rank)

    @property
    def _ep_axis(self) -> tuple[tuple[str, int], ...]:
        return () if self.ep is None else (("ep", self.ep),)

    def __str__(self) -> str:
        return axes_text((*self.axes, *self._ep_axis))


def _missing_axis_fix(axis: str, names: Iterable[str]) -> str | None:
    if axis in KNOWN_AXES:
        return f"add {axis} to the mesh; {axis}=1 if it is meant to be inactive"
    return did_you_mean(axis.lower(), names) or None


def _expert_axes(axes: tuple[tuple[str, int], ...], ep: int) -> tuple[tuple[str, int], ...]:
    sizes = dict(axes)
    stage = [("pp", sizes["pp"])] if "pp" in sizes else []
    total = num_ranks(axes) // sizes.get("pp", 1)
    if "dp_replicate" in sizes:
        replicas = sizes["dp_replicate"]
        data = [("edp_replicate", replicas), ("edp_shard", total // replicas // ep)]
    else:
        data = [("edp_shard" if "dp_shard" in sizes else "edp", total // ep)]
    return (*stage, *data, ("ep", ep))


def _ranks_by_stage(dense: MeshView) -> range | tuple[int, ...]:
    """The ranks stage by stage, row-major within each; the plain order unless pp is inside."""
    names = [axis for axis, _ in dense.axes]
    if "pp" not in names[1:]:
        return range(len(dense.ranks))
    stages = zip(*dense.groups("pp"), strict=True)
    return tuple(rank for stage in stages for rank in stage)
