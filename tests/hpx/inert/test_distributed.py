"""Torch distributed checkpoints: their metadata only."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_saver import save

from hpx.errors import InputError, UnsafeInputError
from hpx.graph.sources import open_model
from hpx.inert import open_inert

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(*pieces: tuple[list[int], list[int]], shape: tuple[int, ...] = (4, 3)) -> None:
    """A checkpoint of one tensor that is saved in these pieces, each offsets and sizes."""
    chunks = [ChunkStorageMetadata(torch.Size(at), torch.Size(sizes)) for at, sizes in pieces]
    tensor = TensorStorageMetadata(
        TensorProperties(dtype=torch.bfloat16), torch.Size(shape), chunks
    )
    Path("dcp").mkdir()
    Path("dcp/.metadata").write_bytes(pickle.dumps(Metadata({"w": tensor})))


def test_the_model_of_a_checkpoint_is_read() -> None:
    content = {"model": {"a.w": torch.zeros(4, 3), "a.b": torch.zeros(2, dtype=torch.bfloat16)}}
    save({**content, "step": 3}, checkpoint_id="dcp")
    for graph in (open_inert("dcp", strict=True), open_model("dcp"), open_inert("dcp/.metadata")):
        specs = {graph.path(node.id): node.spec for node in graph.parameters()}
        assert specs["a.w"].shape == (4, 3)
        assert specs["a.b"].dtype == "bfloat16"
        assert graph.hints == {"ignored": ["step"]}


def test_another_part_of_a_checkpoint_is_one_entry_that_is_left_out() -> None:
    optimizer = {"state": {"a": torch.zeros(4)}, "param_groups": [{"lr": 0.1, "eps": 1e-8}]}
    content = {"model": {"a": torch.zeros(4), "note": "x"}, "optimizer": optimizer, "step": 3}
    save(content, checkpoint_id="dcp")
    assert open_inert("dcp").hints == {"ignored": ["optimizer", "note", "step"]}


def test_a_flat_state_dict_is_read() -> None:
    save({"a.w": torch.zeros(4, 3)}, checkpoint_id="dcp")
    graph = open_inert("dcp")
    assert [graph.path(node.id) for node in graph.parameters()] == ["a.w"]


def test_two_state_dicts_are_refused_with_the_keys() -> None:
    content = {"x": {"w": torch.zeros(1)}, "y": {"w": torch.zeros(1)}}
    save(content, checkpoint_id="dcp")
    with pytest.raises(InputError, match="holds several state dicts: its keys are x, y"):
        open_inert("dcp")


def test_the_pieces_of_a_tensor_are_listed() -> None:
    write(([0, 0], [2, 3]), ([2, 0], [2, 3]))
    hints = open_inert("dcp").hints
    assert hints["saved_in"] == {"w": [[[0, 0], [2, 3]], [[2, 0], [2, 3]]]}
    assert "'w' in 2" in str(hints["notes"])


def test_a_piece_that_reaches_out_of_its_tensor_is_refused() -> None:
    write(([3, 0], [2, 3]))
    with pytest.raises(InputError, match=r"a piece of 'w' \[4, 3\] reaches out of it"):
        open_inert("dcp")


def test_files_that_are_missing_are_noted() -> None:
    save({"w": torch.zeros(4, 3)}, checkpoint_id="dcp")
    for file in Path("dcp").glob("*.distcp"):
        file.unlink()
    assert "1 of its 1 files are not in the folder" in str(open_inert("dcp").hints["notes"])


def test_a_file_outside_of_the_folder_is_refused() -> None:
    save({"w": torch.zeros(4, 3)}, checkpoint_id="dcp")
    metadata = Path("dcp/.metadata")
    metadata.write_bytes(metadata.read_bytes().replace(b"__0_0.distcp", b"../../../etc"))
    with pytest.raises(UnsafeInputError, match="which is not in its folder"):
        open_inert("dcp")


def test_metadata_cut_off_anywhere_is_one_error() -> None:
    save({"w": torch.zeros(4, 3)}, checkpoint_id="dcp")
    metadata = Path("dcp/.metadata")
    content = metadata.read_bytes()
    for size in range(1, len(content)):
        metadata.write_bytes(content[:size])
        with pytest.raises(InputError, match="cut off or damaged"):
            open_inert("dcp")
