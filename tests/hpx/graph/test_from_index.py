"""A model from several files, which an index lists."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hpx.errors import InputError, UnsafeInputError
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode
from hpx.graph.sources import open_model
from tests.hpx.graph.lookups import parameter_names
from tests.hpx.graph.saving import INDEX, save, save_index, save_json

pytestmark = pytest.mark.usefixtures("in_the_folder")


@pytest.mark.parametrize("model", ["shards", f"shards/{INDEX}"])
def test_an_index_gives_the_tensors_of_all_its_files(model: str) -> None:
    save("shards/1.safetensors", "a.w", "b.w")
    save("shards/2.safetensors", "c.w")
    save_index({"a.w": "1.safetensors", "b.w": "1.safetensors", "c.w": "2.safetensors"})
    graph = open_model(model)
    assert parameter_names(graph) == [["a.w"], ["b.w"], ["c.w"]]
    assert graph.source == f"checkpoint:{model}"


def test_an_index_of_torch_files_is_read() -> None:
    Path("shards").mkdir()
    for number in ("1", "2"):
        torch.save({f"layer{number}.w": torch.zeros(2)}, f"shards/{number}.bin")
    weight_map = {"layer1.w": "1.bin", "layer2.w": "2.bin"}
    save_json("shards/pytorch_model.bin.index.json", {"weight_map": weight_map})
    assert parameter_names(open_model("shards")) == [["layer1.w"], ["layer2.w"]]


def test_missing_files_of_an_index_are_named() -> None:
    save("shards/1.safetensors", "a")
    save_index({"a": "1.safetensors", "b": "2.safetensors", "c": "3.safetensors"})
    with pytest.raises(InputError, match=r"2 of the 3 files .* missing: 2\.safetensors, 3\.safe"):
        open_model("shards")


def test_a_name_that_is_not_in_its_file_is_told() -> None:
    save("shards/1.safetensors", "a")
    save_index({"a": "1.safetensors", "b": "1.safetensors"})
    with pytest.raises(
        InputError, match=r"1\.safetensors of .* lacks 'b'.* 2 tensors there, 1 are"
    ):
        open_model("shards")


def test_a_name_that_is_in_another_file_than_the_index_says_is_told() -> None:
    save("shards/1.safetensors", "a", "b")
    save("shards/2.safetensors", "c")
    save_index({"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors"})
    with pytest.raises(InputError, match=r"2\.safetensors of .* lacks 'b'"):
        open_model("shards")


def test_a_name_in_two_files_is_refused_with_both() -> None:
    save("shards/1.safetensors", "a")
    save("shards/2.safetensors", "a", "b")
    save_index({"a": "1.safetensors", "b": "2.safetensors"})
    with pytest.raises(InputError, match=r"'a' is in two files .* 1\.safetensors and 2\.safetens"):
        open_model("shards")


def test_a_name_that_the_index_leaves_out_is_left_out_and_listed() -> None:
    save("shards/1.safetensors", "a", "extra")
    save_index({"a": "1.safetensors"})
    graph = open_model("shards")
    assert parameter_names(graph) == [["a"]]
    assert graph.hints == {"ignored": ["extra"]}


@pytest.mark.parametrize(
    "file", ["../1.safetensors", "/1.safetensors", "a/../../1.safetensors", "..\\1.safetensors"]
)
def test_an_index_that_leaves_its_folder_is_refused_as_unsafe(file: str) -> None:
    save("1.safetensors", "a")
    save_index({"a": file})
    with pytest.raises(UnsafeInputError, match="which is not in its folder"):
        open_model("shards")


def test_an_index_that_names_a_program_is_refused() -> None:
    save_index({"a": "run.py"})
    with pytest.raises(InputError, match=r"'run\.py': that is no \.safetensors"):
        open_model("shards")


@pytest.mark.parametrize("weight_map", [None, {}, [], "x"])
def test_an_index_without_a_map_is_refused(weight_map: object) -> None:
    save_json(f"shards/{INDEX}", {"weight_map": weight_map})
    with pytest.raises(InputError, match="it has no weight_map"):
        open_model("shards")


def test_an_index_whose_map_names_no_file_is_refused() -> None:
    save_index({"a": 3})
    with pytest.raises(InputError, match="no file for 'a': it says 3"):
        open_model("shards")


def test_an_index_with_one_name_twice_is_refused() -> None:
    Path("shards").mkdir()
    Path("shards", INDEX).write_text('{"weight_map": {"a": "1.bin", "a": "2.bin"}}')
    with pytest.raises(InputError, match="the key 'a' twice"):
        open_model("shards")


@pytest.mark.parametrize("text", [b"{", b"\xff\xfe", b"[" * 100_000, b""])
def test_an_index_that_is_no_json_is_refused(text: bytes) -> None:
    Path("shards").mkdir()
    Path("shards", INDEX).write_bytes(text)
    with pytest.raises(InputError, match="is no JSON"):
        open_model("shards")


def test_equal_layers_are_equal_wherever_an_index_cuts_the_files() -> None:
    names = [f"layers.{layer}.{part}.weight" for layer in range(4) for part in ("up", "down", "q")]
    order = [*names[1::2], *names[::2]]
    weight_map: dict[str, str] = {}
    for number in range(3):
        file = f"part-{number}.safetensors"
        mine = order[number * 4 : number * 4 + 4]
        save(f"shards/{file}", *mine)
        weight_map |= dict.fromkeys(mine, file)
    save_index(weight_map)
    graph = ModuleGraph.from_file(Path("shards", INDEX))
    layers = graph.children(graph.get("layers").id)
    assert len({layer.signature for layer in layers if isinstance(layer, ModuleNode)}) == 1
