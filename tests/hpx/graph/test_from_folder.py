"""A model from a folder: weights, and the config beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpx.errors import InputError
from hpx.graph.sources import open_model
from tests.hpx.graph.lookups import parameter_names
from tests.hpx.graph.saving import save, save_json

pytestmark = pytest.mark.usefixtures("in_the_folder")

TIED_CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "tie_word_embeddings": True,
    "num_attention_heads": 4,
    "head_dim": None,
}


@pytest.mark.parametrize("file", ["model.safetensors", "other.safetensors"])
def test_a_folder_with_one_file_gives_that_file(file: str) -> None:
    save(f"folder/{file}", "w")
    graph = open_model("folder")
    assert parameter_names(graph) == [["w"]]
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
    assert parameter_names(graph) == [["model.embed_tokens.weight", "lm_head.weight"]]
    assert graph.hints["tied"] == [["model.embed_tokens.weight", "lm_head.weight"]]


@pytest.mark.parametrize(
    "change",
    [{"tie_word_embeddings": False}, {"architectures": ["LlamaModel"]}, {"architectures": None}],
)
def test_a_model_without_a_tied_head_gets_none(change: dict[str, object]) -> None:
    save("folder/model.safetensors", "model.embed_tokens.weight")
    save_json("folder/config.json", {**TIED_CONFIG, **change})
    assert parameter_names(open_model("folder")) == [["model.embed_tokens.weight"]]


def test_the_json_of_another_program_beside_weights_is_not_taken_for_a_config() -> None:
    save("folder/model.safetensors", "w")
    save_json("folder/config.json", {"port": 80, "hidden_size": 3})
    assert open_model("folder").hints == {}
