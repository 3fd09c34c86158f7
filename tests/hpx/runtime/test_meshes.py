"""Device meshes from a mesh text, and a mesh text from device meshes."""

from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from hpx.errors import MeshError
from hpx.layout import REPLICATED, Layout
from hpx.mesh import MeshSpec
from hpx.runtime.meshes import Meshes
from tests.hpx.runtime.conftest import FakeGroup

MESHES = [
    "tp=8",
    "dp=8,ep=4",
    "dp=2,tp=4,ep=8",
    "dp=4,tp=2,ep=4",
    "dp=8,tp=1,ep=1",
    "dp_replicate=2,dp_shard=2,tp=2,ep=2",
    "dp=2,cp=2,tp=2,ep=4",
    "pp=2,dp=2,tp=2,ep=4",
    "dp=2,pp=2,tp=2,ep=4",
    "tp=2,dp=2,pp=2,ep=2",
]


def mesh_of(sizes: tuple[int, ...], *names: str) -> DeviceMesh:
    return init_device_mesh("cpu", sizes, mesh_dim_names=names)


def ranks_of(mesh: DeviceMesh) -> list[int]:
    ranks: list[int] = mesh.mesh.flatten().tolist()
    return ranks


@pytest.mark.parametrize("text", MESHES)
def test_every_rank_stands_where_the_numbers_say(text: str, fake_group: FakeGroup) -> None:
    spec = MeshSpec.parse(text)
    for rank in range(8):
        fake_group(rank, 8)
        meshes = spec.build()
        for view in filter(None, (spec.dense, spec.expert)):
            assert meshes.coordinate(view.name) == spec.coordinate(rank, view.name)


@pytest.mark.parametrize("text", MESHES)
def test_every_group_has_the_ranks_that_the_numbers_say(text: str, fake_group: FakeGroup) -> None:
    spec = MeshSpec.parse(text)
    for rank in (0, 3, 6):
        fake_group(rank, 8)
        meshes = spec.build()
        for view in filter(None, (spec.dense, spec.expert)):
            for axis, _ in view.axes:
                own = next(group for group in view.groups(axis) if rank in group)
                group = meshes.view(view.name).get_group(axis)
                assert dist.get_process_group_ranks(group) == own


def test_tp_is_cut_from_the_dense_mesh_and_ep_from_the_expert_mesh(fake_group: FakeGroup) -> None:
    fake_group(5, 8)
    meshes = MeshSpec.parse("dp=4,tp=2,ep=4").build()
    assert (meshes.sub("tp").mesh_dim_names, ranks_of(meshes.sub("tp"))) == (("tp",), [4, 5])
    assert ranks_of(meshes.sub("dp")) == [1, 3, 5, 7]
    assert (meshes.sub("ep").mesh_dim_names, ranks_of(meshes.sub("ep"))) == (("ep",), [4, 5, 6, 7])
    assert ranks_of(meshes.sub("edp")) == [1, 5]


def test_a_sub_mesh_is_cut_once(fake_group: FakeGroup) -> None:
    fake_group(0, 8)
    meshes = MeshSpec.parse("dp=4,tp=2").build()
    assert meshes.sub("tp") is meshes.sub("tp")


def test_a_mesh_of_a_single_axis_is_its_own_sub_mesh(fake_group: FakeGroup) -> None:
    fake_group(3, 8)
    meshes = MeshSpec.parse("tp=8").build()
    assert meshes.sub("tp") is meshes.dense


def test_asking_for_the_sub_mesh_of_a_missing_axis_is_an_error(fake_group: FakeGroup) -> None:
    fake_group(0, 8)
    meshes = MeshSpec.parse("dp=8").build()
    with pytest.raises(MeshError, match="mesh dp=8 has no axis 'tp'"):
        meshes.sub("tp")


def test_a_layout_gives_the_mesh_and_placements_of_a_dtensor(fake_group: FakeGroup) -> None:
    fake_group(0, 8)
    meshes = MeshSpec.parse("dp=4,tp=2,ep=4").build()
    assert meshes.of(Layout.parse("tp:S(1)")) == (meshes.sub("tp"), (Shard(1),))
    assert meshes.of(Layout.parse("ep:S(0)")) == (meshes.sub("ep"), (Shard(0),))
    assert meshes.of(REPLICATED) == (meshes.sub("tp"), (Replicate(),))


def test_an_axis_of_size_1_makes_dtensors_that_are_whole(fake_group: FakeGroup) -> None:
    fake_group(2, 4)
    mesh, placements = MeshSpec.parse("dp=4,tp=1").build().of(Layout.parse("tp:S(0)"))
    tensor = DTensor.from_local(torch.ones(3, 2), mesh, placements, run_check=False)
    assert tensor.shape == (3, 2)


def test_a_mesh_of_16384_ranks_is_built_by_one_process(fake_group: FakeGroup) -> None:
    spec = MeshSpec.parse("pp=8,dp=256,tp=8,ep=64")
    fake_group(16383, 16384)
    meshes = spec.build()
    assert meshes.coordinate() == {"pp": 7, "dp": 255, "tp": 7}
    assert meshes.coordinate("expert") == {"pp": 7, "edp": 31, "ep": 63}
    assert ranks_of(meshes.sub("ep")) == list(range(16384 - 64, 16384))


def test_without_a_process_group_building_is_an_error_and_starts_none(
    fake_group: FakeGroup,
) -> None:
    with pytest.raises(MeshError) as caught:
        MeshSpec.parse("dp=2,tp=2").build()
    assert str(caught.value) == (
        "there is no process group: mesh dp=2,tp=2 is made of the ranks of one. Fix: start the "
        "program with torchrun and call torch.distributed.init_process_group() first; a dry run "
        "(hpx.run) needs none"
    )
    assert not dist.is_initialized()


def test_a_world_of_another_size_is_an_error_with_both_numbers(fake_group: FakeGroup) -> None:
    fake_group(0, 8)
    with pytest.raises(MeshError) as caught:
        MeshSpec.parse("dp=2,tp=2").build()
    assert str(caught.value) == (
        "mesh dp=2,tp=2 has 4 ranks: the process group has 8. "
        "Fix: start 4 processes, or give a mesh of 8 in all, pp included"
    )


@pytest.mark.parametrize(
    ("device_type", "said"),
    [("gpu", "'gpu' is no device type"), ("cuda:0", "is one device, not a type. Fix: give 'cuda'")],
)
def test_a_bad_device_type_is_an_error(device_type: str, said: str, fake_group: FakeGroup) -> None:
    fake_group(0, 2)
    with pytest.raises(MeshError, match=said):
        MeshSpec.parse("tp=2").build(device_type)


def test_a_fake_or_gloo_group_is_for_the_cpu_unless_said_otherwise(fake_group: FakeGroup) -> None:
    fake_group(0, 2)
    assert MeshSpec.parse("tp=2").build().device_type == "cpu"
    assert MeshSpec.parse("tp=2,ep=2").build("cuda").view("expert").device_type == "cuda"


@pytest.mark.parametrize("text", MESHES)
def test_built_meshes_read_back_as_the_mesh_they_were_built_from(
    text: str, fake_group: FakeGroup
) -> None:
    fake_group(1, 8)
    spec = MeshSpec.parse(text)
    meshes = spec.build()
    assert MeshSpec.from_mesh(meshes.dense, meshes.expert) == spec


def test_meshes_of_a_program_come_back_from_build(fake_group: FakeGroup) -> None:
    fake_group(1, 8)
    dense, expert = mesh_of((2, 4), "dp", "tp"), mesh_of((1, 8), "edp", "ep")
    spec = MeshSpec.from_mesh(dense, expert)
    assert str(spec) == "dp=2,tp=4,ep=8"
    assert (spec.build().dense, spec.build("cpu").expert) == (dense, expert)
    assert spec.build().dense is dense
    assert spec.build().sub("tp").get_group() is dense.get_group("tp")


def test_meshes_of_a_program_take_no_part_in_comparisons(fake_group: FakeGroup) -> None:
    fake_group(1, 8)
    spec = MeshSpec.from_mesh(mesh_of((2, 4), "dp", "tp"))
    parsed = MeshSpec.parse("dp=2,tp=4")
    assert (spec, hash(spec), repr(spec)) == (parsed, hash(parsed), repr(parsed))
    assert MeshSpec.from_json(spec.to_json()).meshes is None


def test_a_changed_mesh_forgets_the_meshes_it_was_read_from(fake_group: FakeGroup) -> None:
    fake_group(1, 8)
    spec = MeshSpec.from_mesh(mesh_of((2, 4), "dp", "tp"))
    assert dataclasses.replace(spec, ep=2).build().expert is not None


def test_a_mesh_of_another_device_type_is_not_built_again(fake_group: FakeGroup) -> None:
    fake_group(0, 2)
    with pytest.raises(MeshError, match="mesh tp=2 is on cpu, not on cuda"):
        MeshSpec.from_mesh(mesh_of((2,), "tp")).build("cuda")


def refusal(dense: DeviceMesh, expert: DeviceMesh | None = None) -> str:
    with pytest.raises(MeshError) as caught:
        MeshSpec.from_mesh(dense, expert)
    return str(caught.value)


def test_axes_without_names_are_an_error(fake_group: FakeGroup) -> None:
    fake_group(0, 8)
    assert "axes of the dense mesh have no names" in refusal(init_device_mesh("cpu", (8,)))


def test_an_unknown_axis_of_a_device_mesh_is_an_error(fake_group: FakeGroup) -> None:
    fake_group(0, 8)
    assert "unknown axis 'data': the axes are dp" in refusal(mesh_of((4, 2), "data", "tp"))


def test_ep_in_the_dense_mesh_is_an_error_that_says_where_it_goes(fake_group: FakeGroup) -> None:
    fake_group(0, 8)
    assert "give the mesh that has ep as expert=" in refusal(mesh_of((4, 2), "dp", "ep"))


def test_an_expert_mesh_without_ep_is_an_error(fake_group: FakeGroup) -> None:
    fake_group(0, 8)
    said = refusal(mesh_of((8,), "dp"), mesh_of((4, 2), "edp", "experts"))
    assert "the expert mesh edp=4,experts=2 has no axis ep" in said


@pytest.mark.parametrize(
    ("sizes", "names", "said"),
    [
        ((2, 4), ("dp", "ep"), "has the axes dp=2,ep=4: with this dense mesh they are edp=2,ep=4"),
        ((4, 2), ("ep", "edp"), "has the axes ep=4,edp=2: with this dense mesh they are edp=2,ep="),
        ((1, 4), ("edp", "ep"), "has the axes edp=1,ep=4: with this dense mesh they are edp=2,ep="),
        ((1, 3), ("edp", "ep"), "ep=3 does not divide D = 8"),
    ],
)
def test_an_expert_mesh_of_other_axes_is_an_error(
    sizes: tuple[int, ...], names: tuple[str, ...], said: str, fake_group: FakeGroup
) -> None:
    fake_group(0, 8)
    assert said in refusal(mesh_of((4, 2), "dp", "tp"), mesh_of(sizes, *names))


def test_an_expert_mesh_of_other_ranks_is_an_error_that_names_the_first(
    fake_group: FakeGroup,
) -> None:
    fake_group(0, 8)
    ranks = torch.arange(8).reshape(4, 2).T
    expert = DeviceMesh("cpu", ranks, mesh_dim_names=("edp", "ep"))
    said = refusal(mesh_of((4, 2), "dp", "tp"), expert)
    assert "the expert mesh has rank 2 at edp=0,ep=1: a mesh edp=2,ep=4 has rank 1 there" in said


def test_dense_ranks_that_do_not_count_row_major_are_an_error(fake_group: FakeGroup) -> None:
    fake_group(0, 8)
    dense = DeviceMesh("cpu", torch.arange(8).reshape(2, 4).T, mesh_dim_names=("dp", "tp"))
    assert "the dense mesh has rank 4 at dp=0,tp=1: a mesh dp=4,tp=2 has rank 1" in refusal(dense)


def test_a_part_of_the_ranks_is_an_error_with_both_numbers(fake_group: FakeGroup) -> None:
    fake_group(0, 8)
    stage = mesh_of((2, 2, 2), "pp", "dp", "tp")["dp", "tp"]
    assert "the dense mesh dp=2,tp=2 has 4 ranks: the process group has 8" in refusal(stage)


def test_dense_and_expert_meshes_on_two_types_of_device_are_an_error(
    fake_group: FakeGroup,
) -> None:
    fake_group(0, 2)
    expert = init_device_mesh("cuda", (1, 2), mesh_dim_names=("edp", "ep"))
    assert "is on cpu, the expert mesh on cuda" in refusal(mesh_of((2,), "tp"), expert)


def test_a_mesh_copies_with_its_device_meshes(fake_group: FakeGroup) -> None:
    fake_group(0, 2)
    twin = copy.deepcopy(MeshSpec.from_mesh(mesh_of((2,), "tp")))
    assert isinstance(twin.meshes, Meshes)
    assert twin.build().dense == mesh_of((2,), "tp")


def test_meshes_as_numbers_do_not_import_torch() -> None:
    code = "import sys, hpx; hpx.MeshSpec.parse('tp=2'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
