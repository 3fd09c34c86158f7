"""Shards that are links: those within a folder are read, those out of it are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from hpx.errors import InputError, UnsafeInputError
from hpx.graph.sources import open_model

INDEX = "model.safetensors.index.json"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def save(file: str) -> None:
    """A shard with one tensor."""
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    save_file({"a": np.zeros((4, 2), np.float32)}, file)


def save_index(shard: str, file: str = f"shards/{INDEX}") -> None:
    Path(file).parent.mkdir(exist_ok=True)
    Path(file).write_text(json.dumps({"weight_map": {"a": shard}}))


def names(model: str) -> list[str]:
    graph = open_model(model)
    return [graph.path(node.id) for node in graph.parameters()]


def save_in_cache(target: str) -> str:
    """A repository as the cache of Hugging Face keeps it; its shard is a link to ``target``."""
    snapshot = Path("models--a--b/snapshots/c0ffee")
    snapshot.mkdir(parents=True)
    save("models--a--b/blobs/123")
    save("models--a--c/blobs/123")
    save_index("1.safetensors", "models--a--b/blobs/456")
    (snapshot / INDEX).symlink_to("../../blobs/456")
    (snapshot / "1.safetensors").symlink_to(target)
    return str(snapshot)


def test_a_shard_that_is_a_link_out_of_the_folder_is_refused_as_unsafe() -> None:
    save("elsewhere/1.safetensors")
    save_index("1.safetensors")
    Path("shards/1.safetensors").symlink_to("../elsewhere/1.safetensors")
    with pytest.raises(UnsafeInputError, match=r"link out of its folder, to .* put the file there"):
        open_model("shards")


def test_a_shard_below_a_link_out_of_the_folder_is_refused_as_unsafe() -> None:
    save("elsewhere/1.safetensors")
    save_index("part/1.safetensors")
    Path("shards/part").symlink_to("../elsewhere")
    with pytest.raises(UnsafeInputError, match="link out of its folder"):
        open_model("shards")


def test_a_name_with_a_drive_is_refused_as_unsafe() -> None:
    save_index("C:\\1.safetensors")
    with pytest.raises(UnsafeInputError, match="which is not in its folder"):
        open_model("shards")


def test_a_shard_may_be_a_link_within_its_folder() -> None:
    save("shards/real.safetensors")
    save_index("1.safetensors")
    Path("shards/1.safetensors").symlink_to("real.safetensors")
    assert names("shards") == ["a"]


def test_a_shard_that_is_a_link_to_itself_is_missing() -> None:
    save_index("1.safetensors")
    Path("shards/1.safetensors").symlink_to("1.safetensors")
    with pytest.raises(InputError, match="are missing"):
        open_model("shards")


def test_an_index_is_read_through_a_link_to_its_folder() -> None:
    save("shards/1.safetensors")
    save_index("1.safetensors")
    Path("linked").symlink_to("shards")
    assert names("linked") == ["a"]


def test_an_index_in_the_cache_of_hugging_face_is_read() -> None:
    assert names(save_in_cache("../../blobs/123")) == ["a"]


def test_a_link_into_another_repository_of_that_cache_is_refused_as_unsafe() -> None:
    snapshot = save_in_cache("../../../models--a--c/blobs/123")
    with pytest.raises(UnsafeInputError, match="link out of its folder"):
        open_model(snapshot)
