from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch_file
from safetensors.torch import save_model
from torch import nn

from hpx.errors import InputError, UnsafeInputError, UsageError
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.graph.sources import open_model

INDEX = "model.safetensors.index.json"
TIED_CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "tie_word_embeddings": True,
    "num_attention_heads": 4,
    "head_dim": None,
}


@pytest.fixture(autouse=True)
def _in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def save(file: str, *names: str) -> None:
    Path(file).parent.mkdir(exist_ok=True)
    save_file({name: np.zeros((4, 2), np.float32) for name in names}, file)


def save_json(file: str, content: object) -> None:
    Path(file).parent.mkdir(exist_ok=True)
    Path(file).write_text(json.dumps(content))


def save_index(weight_map: Mapping[str, object], folder: str = "shards") -> None:
    save_json(f"{folder}/{INDEX}", {"metadata": {}, "weight_map": weight_map})


def names(graph: ModuleGraph) -> list[list[str]]:
    return [graph.paths(node.id) for node in graph.parameters()]


def spec_text(graph: ModuleGraph, path: str) -> tuple[object, ...]:
    node = graph.get(path)
    assert isinstance(node, TensorNode)
    return (node.spec.shape, node.spec.dtype, node.spec.strides)


# -- one file --------------------------------------------------------------------------------


def test_a_safetensors_header_gives_names_shapes_and_dtypes() -> None:
    save_torch_file(
        {
            "a.weight": torch.zeros(3, 2, dtype=torch.bfloat16),
            "a.n": torch.zeros((), dtype=torch.long),
        },
        "m.safetensors",
    )
    graph = open_model("m.safetensors")
    assert spec_text(graph, "a.weight") == ((3, 2), "bfloat16", (2, 1))
    assert spec_text(graph, "a.n") == ((), "int64", ())
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
    assert spec_text(open_model("m.safetensors"), "w")[1] == str(dtype).removeprefix("torch.")


def test_a_name_that_save_model_left_out_as_tied_comes_back() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(6, 4), "head": nn.Linear(4, 6, bias=False)})
    model["head"].weight = model["embed"].weight
    save_model(model, "m.safetensors")
    assert names(open_model("m.safetensors")) == [["embed.weight", "head.weight"]]


def test_twelve_experts_stand_in_numeric_order() -> None:
    save("m.safetensors", *(f"experts.{index}.w1.weight" for index in range(12)))
    graph = open_model("m.safetensors")
    assert names(graph) == [[f"experts.{index}.w1.weight"] for index in range(12)]


def test_safetensors_are_read_without_torch() -> None:
    save("m.safetensors", "w")
    program = (
        "import sys; from hpx.graph.sources import open_model;"
        "open_model('m.safetensors'); print('torch' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert answer.stdout.strip() == "False"


def test_pickles_and_pickled_modules_are_read_without_torch() -> None:
    torch.save(torch.nn.Linear(2, 2), "m.pt")
    program = (
        "import sys; from hpx.graph.sources import open_for_viewing;"
        "open_for_viewing('m.pt'); print('torch' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert answer.stdout.strip() == "False"


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
    assert names(graph) == [["embed.weight", "head.weight"]]
    assert graph.hints == {"ignored": ["step"]}
    assert graph.source == f"checkpoint:m.{suffix}"


def test_the_source_tells_which_state_dict_of_a_file_it_is() -> None:
    torch.save({"state_dict": {"w": torch.zeros(1)}}, "m.pt")
    assert open_model("m.pt").source == "checkpoint:m.pt[state_dict]"


def test_a_file_in_the_prefix_of_data_parallel_models_has_plain_names() -> None:
    torch.save(nn.Sequential(nn.Linear(2, 2)).state_dict(prefix="module."), "m.pt")
    graph = open_model("m.pt")
    assert names(graph) == [["0.weight"], ["0.bias"]]
    assert graph.find("module.0.weight") == graph.find("0.weight")


# -- several files ---------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["shards", f"shards/{INDEX}"])
def test_an_index_gives_the_tensors_of_all_its_files(model: str) -> None:
    save("shards/1.safetensors", "a.w", "b.w")
    save("shards/2.safetensors", "c.w")
    save_index({"a.w": "1.safetensors", "b.w": "1.safetensors", "c.w": "2.safetensors"})
    graph = open_model(model)
    assert names(graph) == [["a.w"], ["b.w"], ["c.w"]]
    assert graph.source == f"checkpoint:{model}"


def test_an_index_of_torch_files_is_read() -> None:
    Path("shards").mkdir()
    for number in ("1", "2"):
        torch.save({f"layer{number}.w": torch.zeros(2)}, f"shards/{number}.bin")
    weight_map = {"layer1.w": "1.bin", "layer2.w": "2.bin"}
    save_json("shards/pytorch_model.bin.index.json", {"weight_map": weight_map})
    assert names(open_model("shards")) == [["layer1.w"], ["layer2.w"]]


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
    assert names(graph) == [["a"]]
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


# -- folders ---------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["model.safetensors", "other.safetensors"])
def test_a_folder_with_one_file_gives_that_file(file: str) -> None:
    save(f"folder/{file}", "w")
    graph = open_model("folder")
    assert names(graph) == [["w"]]
    assert graph.source == "checkpoint:folder"


def test_a_folder_with_several_files_and_no_index_is_refused() -> None:
    save("folder/1.safetensors", "a")
    save("folder/2.safetensors", "b")
    with pytest.raises(InputError, match=r"2 weight files and no index: 1\.safetensors, 2\."):
        open_model("folder")


def test_an_empty_folder_is_refused() -> None:
    Path("folder").mkdir()
    with pytest.raises(InputError, match="folder holds no model: no weights, no index"):
        open_model("folder")


def test_an_empty_distributed_checkpoint_is_refused() -> None:
    Path("folder").mkdir()
    Path("folder/.metadata").touch()
    with pytest.raises(InputError, match=r"^\.metadata of folder is empty$"):
        open_model("folder")


def test_weights_go_before_the_config_beside_them_which_gives_head_counts() -> None:
    save("folder/model.safetensors", "model.embed_tokens.weight", "lm_head.weight")
    save_json("folder/config.json", TIED_CONFIG)
    graph = open_model("folder")
    assert not graph.has_structure
    assert graph.hints["config"] == {
        "model_type": "llama",
        "tie_word_embeddings": True,
        "num_attention_heads": 4,
    }


def test_head_counts_of_a_text_config_are_found() -> None:
    save("folder/model.safetensors", "w")
    inner = {"num_attention_heads": 4, "model_type": "inner"}
    save_json("folder/config.json", {"model_type": "outer", "text_config": inner})
    config = open_model("folder").hints["config"]
    assert config == {"model_type": "outer", "num_attention_heads": 4}


def test_a_tied_head_that_is_not_in_the_file_is_a_second_name_of_the_embedding() -> None:
    save("folder/model.safetensors", "model.embed_tokens.weight")
    save_json("folder/config.json", TIED_CONFIG)
    graph = open_model("folder")
    assert names(graph) == [["model.embed_tokens.weight", "lm_head.weight"]]
    assert graph.hints["tied"] == [["model.embed_tokens.weight", "lm_head.weight"]]


@pytest.mark.parametrize(
    "change",
    [{"tie_word_embeddings": False}, {"architectures": ["LlamaModel"]}, {"architectures": None}],
)
def test_a_model_without_a_tied_head_gets_none(change: dict[str, object]) -> None:
    save("folder/model.safetensors", "model.embed_tokens.weight")
    save_json("folder/config.json", {**TIED_CONFIG, **change})
    assert names(open_model("folder")) == [["model.embed_tokens.weight"]]


def test_the_json_of_another_program_beside_weights_is_not_taken_for_a_config() -> None:
    save("folder/model.safetensors", "w")
    save_json("folder/config.json", {"port": 80, "hidden_size": 3})
    assert open_model("folder").hints == {}


# -- what is not taken -----------------------------------------------------------------------


def test_a_file_that_is_not_there_is_a_usage_error_with_the_nearest_names() -> None:
    save("model.safetensors", "w")
    with pytest.raises(UsageError, match=r"did you mean model\.safetensors\?"):
        open_model("model.safetensor")


def test_files_that_share_little_but_the_suffix_are_no_nearest_names() -> None:
    for name in ("z.pt", "n.pt", "e.pt"):
        save(name, "w")
    with pytest.raises(UsageError, match=r"no file or folder zzz\.pt\. Fix: give \.safetensors"):
        open_model("zzz.pt")


def test_the_name_of_a_model_on_a_hub_is_no_file() -> None:
    with pytest.raises(UsageError, match="no file or folder some/model: there is no folder some"):
        open_model("some/model")


def test_no_name_at_all_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no model is named"):
        open_model("")


@pytest.mark.parametrize("file", ["model.onnx", "model", "model.txt"])
def test_other_kinds_of_files_are_refused_with_what_is_taken(file: str) -> None:
    Path(file).write_text("hello")
    with pytest.raises(InputError, match=r"no kind that hpx takes.*give \.safetensors, \.pt"):
        open_model(file)


def test_a_program_is_refused_with_the_way_to_name_a_function_in_it() -> None:
    Path("mine.py").touch()
    with pytest.raises(InputError, match="mine:function"):
        open_model("mine.py")


def test_a_device_file_is_refused() -> None:
    with pytest.raises(InputError, match="neither a file nor a folder"):
        open_model("/dev/null")


def test_a_saved_run_is_no_model() -> None:
    save_json("run.json", {"schema": "hpx.run/1"})
    with pytest.raises(InputError, match="a saved run, not a model"):
        open_model("run.json")


def test_other_json_is_no_model() -> None:
    save_json("x.json", {"a": 1})
    with pytest.raises(InputError, match="neither a weight_map nor a model_type"):
        open_model("x.json")


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


def test_equal_layers_are_equal_wherever_an_index_cuts_the_files(tmp_path: Path) -> None:
    names = [f"layers.{layer}.{part}.weight" for layer in range(4) for part in ("up", "down", "q")]
    tensors = {name: torch.zeros(2, 2) for name in names}
    order = [*names[1::2], *names[::2]]
    weight_map: dict[str, str] = {}
    for number in range(3):
        file = f"part-{number}.safetensors"
        mine = order[number * 4 : number * 4 + 4]
        save_torch_file({name: tensors[name] for name in mine}, tmp_path / file)
        weight_map |= dict.fromkeys(mine, file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    graph = ModuleGraph.from_file(index)
    layers = graph.children(graph.get("layers").id)
    assert len({layer.signature for layer in layers if isinstance(layer, ModuleNode)}) == 1
