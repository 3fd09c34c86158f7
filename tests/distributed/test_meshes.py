"""Device meshes on real processes: every group exchanges with the ranks that the numbers name."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from hpx.errors import MeshError
from hpx.mesh import MeshSpec
from hpx.numeric.pool import Pool

Groups = dict[str, list[list[int]]]


def exchanged(text: str) -> tuple[str, Groups]:
    """What this rank hears from its group on every axis, by view, and where the meshes live."""
    spec = MeshSpec.parse(text)
    meshes = spec.build()
    heard: Groups = {}
    for view in filter(None, (spec.dense, spec.expert)):
        heard[view.name] = []
        for axis, size in view.axes:
            parts = [torch.empty((), dtype=torch.int64) for _ in range(size)]
            group = meshes.view(view.name).get_group(axis)
            dist.all_gather(parts, torch.tensor(dist.get_rank()), group=group)
            heard[view.name].append([int(part) for part in parts])
    return meshes.device_type, heard


def same_groups() -> bool:
    dense = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    meshes = MeshSpec.from_mesh(dense).build()
    return meshes.sub("tp").get_group() is dense.get_group("tp")


def refused(text: str) -> str:
    try:
        MeshSpec.parse(text).build()
    except MeshError as error:
        return error.what
    return ""


@pytest.mark.parametrize(
    "text", ["tp=2", "dp=2,tp=2", "dp=2,tp=2,ep=4", "tp=4,ep=2", "dp=2,tp=4,ep=8", "dp=2,pp=2,ep=2"]
)
def test_every_group_is_made_of_the_ranks_that_the_numbers_say(text: str, gloo: Pool) -> None:
    spec = MeshSpec.parse(text)
    for rank, (device_type, heard) in enumerate(gloo.run(exchanged, spec.world_size, text)):
        assert device_type == "cpu"
        for view in filter(None, (spec.dense, spec.expert)):
            groups = [view.groups(axis) for axis, _ in view.axes]
            own = [next(group for group in found if rank in group) for found in groups]
            assert heard[view.name] == own


def test_the_groups_of_a_program_are_used_again(gloo: Pool) -> None:
    assert gloo.run(same_groups, 4) == [True] * 4


def test_a_world_of_another_size_is_refused_on_every_rank(gloo: Pool) -> None:
    assert gloo.run(refused, 2, "dp=2,tp=2") == ["mesh dp=2,tp=2 has 4 ranks"] * 2
