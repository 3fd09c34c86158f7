"""DTensors in a file: their layout, and which piece of them is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from hpx.inert import open_inert


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("m.pt")


@pytest.fixture(autouse=True)
def _rank_3_of_8() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=8)
    yield
    dist.destroy_process_group()


def cut() -> DTensor:
    """Seven rows over an axis of four: two on each rank, and one on the last, which is this."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    placements = [Replicate(), Shard(0)]
    shape, stride = torch.Size((7, 6)), (6, 1)
    local = torch.zeros(1, 6)
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)


@pytest.mark.parametrize("protocol", [2, 4])
def test_layout_and_mesh_are_read_from_the_file(file: Path, protocol: int) -> None:
    weight = cut()
    torch.save({"w": nn.Parameter(weight), "x": weight}, file, pickle_protocol=protocol)
    graph = open_inert(file, strict=True)
    for node in graph.parameters():
        assert node.spec.shape == (7, 6)
        assert node.spec.placed == (("dp", 2, "R"), ("tp", 4, "S(0)"))


def test_a_file_of_one_rank_says_which_rows_it_has(file: Path) -> None:
    torch.save({"model": {"w": cut(), "b": torch.zeros(2)}}, file)
    hints = open_inert(file).hints
    assert hints["pieces"] == {"w": [[6, 7], [0, 6]]}
    assert hints["notes"] == [
        "this file is one rank's piece (rank 3 at dp=0, tp=3): rows 6..7 of 7 of 'w'"
    ]


def test_a_dtensor_in_a_pickled_module_has_its_layout(file: Path) -> None:
    model = nn.Linear(6, 7, bias=False)
    model.weight = nn.Parameter(cut())
    torch.save(model, file)
    graph = open_inert(file, strict=True)
    (node,) = graph.parameters()
    assert node.spec.placed == (("dp", 2, "R"), ("tp", 4, "S(0)"))
    assert "rows" in str(graph.hints["notes"])
