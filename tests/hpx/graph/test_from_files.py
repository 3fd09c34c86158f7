"""A model from one file: names, shapes, dtypes, ties, and files that are broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file as save_torch_file
from safetensors.torch import save_model
from torch import nn

from hpx.errors import InputError
from hpx.graph.graph import ModuleGraph
from hpx.graph.sources import open_model
from tests.hpx.graph.lookups import parameter_names, tensor
from tests.hpx.graph.saving import save

pytestmark = pytest.mark.usefixtures("in_the_folder")


def test_a_safetensors_header_gives_names_shapes_and_dtypes() -> None:
    save_torch_file(
        {
            "a.weight": torch.zeros(3, 2, dtype=torch.bfloat16),
            "a.n": torch.zeros((), dtype=torch.long),
        },
        "m.safetensors",
    )
    graph = open_model("m.safetensors")
    weight, number = (tensor(graph, path).spec for path in ("a.weight", "a.n"))
    assert (weight.shape, weight.dtype, weight.strides) == ((3, 2), "bfloat16", (2, 1))
    assert (number.shape, number.dtype, number.strides) == ((), "int64", ())
    assert graph.source == "checkpoint:m.safetensors"
    assert not graph.has_structure


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.complex64,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.uint16,
        torch.bool,
    ],
)
def test_dtypes_have_the_names_that_torch_gives_them(dtype: torch.dtype) -> None:
    save_torch_file({"w": torch.zeros(4).to(dtype)}, "m.safetensors")
    found = tensor(open_model("m.safetensors"), "w").spec.dtype
    assert found == str(dtype).removeprefix("torch.")


def test_a_name_that_save_model_left_out_as_tied_comes_back() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(6, 4), "head": nn.Linear(4, 6, bias=False)})
    model["head"].weight = model["embed"].weight
    save_model(model, "m.safetensors")
    assert parameter_names(open_model("m.safetensors")) == [["embed.weight", "head.weight"]]


def test_twelve_experts_stand_in_numeric_order() -> None:
    save("m.safetensors", *(f"experts.{index}.w1.weight" for index in range(12)))
    graph = open_model("m.safetensors")
    assert parameter_names(graph) == [[f"experts.{index}.w1.weight"] for index in range(12)]


def imports_torch(way: str, file: str) -> bool:
    """Whether a process of its own that reads a file in this way imports torch."""
    program = (
        f"import sys; from hpx.graph.sources import {way};"
        f"{way}({file!r}); print('torch' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return {"True": True, "False": False}[answer.stdout.strip()]


def test_safetensors_are_read_without_torch() -> None:
    save("m.safetensors", "w")
    assert not imports_torch("open_model", "m.safetensors")


def test_pickles_and_pickled_modules_are_read_without_torch() -> None:
    torch.save(torch.nn.Linear(2, 2), "m.pt")
    assert not imports_torch("open_for_viewing", "m.pt")


@pytest.mark.parametrize(
    "content",
    [
        b"abc",
        b"\xff" * 100,
        (10**9).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (70).to_bytes(8, "little")
        + b'{"w":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}}'.ljust(70)
        + b"1234",
    ],
    ids=["short", "no header", "long header", "no object", "lying shape"],
)
def test_a_broken_safetensors_file_is_refused(content: bytes) -> None:
    Path("m.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"^m\.safetensors is no readable safetensors file: \S+"):
        open_model("m.safetensors")


def test_a_safetensors_file_that_was_cut_off_is_refused() -> None:
    save("m.safetensors", "a", "b")
    content = Path("m.safetensors").read_bytes()
    Path("m.safetensors").write_bytes(content[:-5])
    with pytest.raises(InputError, match="no readable safetensors file"):
        open_model("m.safetensors")


def test_an_empty_file_is_refused() -> None:
    Path("m.safetensors").touch()
    with pytest.raises(InputError, match=r"^m\.safetensors is empty$"):
        open_model("m.safetensors")


def test_a_file_without_tensors_is_refused() -> None:
    save("m.safetensors")
    with pytest.raises(InputError, match=r"^m\.safetensors holds no tensors$"):
        open_model("m.safetensors")


def test_names_that_do_not_make_a_tree_are_refused_with_the_file() -> None:
    save("m.safetensors", "a", "a.b")
    with pytest.raises(
        InputError, match=r"^m\.safetensors: 'a' is a tensor and also the beginning"
    ):
        open_model("m.safetensors")


@pytest.mark.parametrize("suffix", ["pt", "pth", "bin"])
def test_torch_files_keep_ties_and_tell_what_they_left_out(suffix: str) -> None:
    weight = torch.zeros(6, 4)
    torch.save({"embed.weight": weight, "head.weight": weight, "step": 1}, f"m.{suffix}")
    graph = open_model(f"m.{suffix}")
    assert parameter_names(graph) == [["embed.weight", "head.weight"]]
    assert graph.hints == {"ignored": ["step"]}
    assert graph.source == f"checkpoint:m.{suffix}"


def test_the_source_tells_which_state_dict_of_a_file_it_is() -> None:
    torch.save({"state_dict": {"w": torch.zeros(1)}}, "m.pt")
    assert open_model("m.pt").source == "checkpoint:m.pt[state_dict]"


def test_a_file_in_the_prefix_of_data_parallel_models_has_plain_names() -> None:
    torch.save(nn.Sequential(nn.Linear(2, 2)).state_dict(prefix="module."), "m.pt")
    graph = open_model("m.pt")
    assert parameter_names(graph) == [["0.weight"], ["0.bias"]]
    assert graph.find("module.0.weight") == graph.find("0.weight")


def test_sources_never_hold_the_path_of_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save("folder/model.safetensors", "w")
    assert open_model(str(tmp_path / "folder")).source == "checkpoint:folder"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    text = str(tmp_path / "folder" / "model.safetensors")
    assert open_model(text).source == "checkpoint:model.safetensors"


def test_a_graph_opens_a_path_as_well_as_a_text() -> None:
    save("m.safetensors", "w")
    assert ModuleGraph.from_file(Path("m.safetensors")) == open_model("m.safetensors")
