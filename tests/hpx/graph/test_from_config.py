from __future__ import annotations

import builtins
import logging
from pathlib import Path

import pytest

from hpx.errors import InputError, TooLargeError
from hpx.graph.from_config import config_of_values
from hpx.graph.graph import ModuleGraph
from hpx.graph.sources import open_model
from tests.hpx.graph.lookups import tensor
from tests.hpx.graph.saving import save_json

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("in_the_folder")

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}


def open_config(**changes: object) -> ModuleGraph:
    values = {key: value for key, value in {**LLAMA, **changes}.items() if value is not None}
    save_json("config.json", values)
    return open_model("config.json")


def test_a_config_gives_the_model_with_its_classes_on_meta() -> None:
    graph = open_config()
    assert graph.has_structure
    assert graph.module(graph.root).spec.short_cls == "LlamaForCausalLM"
    query = tensor(graph, "model.layers.1.self_attn.q_proj.weight")
    assert (query.shape, query.spec.device) == ((16, 16), "meta")
    assert graph.source == "config:config.json"


def test_the_dtype_is_that_of_the_config() -> None:
    assert tensor(open_config(), "lm_head.weight").spec.dtype == "bfloat16"


def test_the_head_counts_are_hints() -> None:
    config = open_config().hints["config"]
    assert isinstance(config, dict)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (4, 2)


@pytest.mark.parametrize("tied", [True, False])
def test_embedding_and_head_are_one_node_only_if_the_config_ties_them(tied: bool) -> None:
    graph = open_config(tie_word_embeddings=tied)
    one = graph.find("lm_head.weight") == graph.find("model.embed_tokens.weight")
    assert one is tied
    assert ("tied" in graph.hints) is tied


def test_a_folder_without_weights_gives_its_config() -> None:
    open_config()
    graph = open_model(str(Path.cwd()))
    assert graph.module(graph.root).spec.short_cls == "LlamaForCausalLM"


def test_the_named_architecture_is_taken() -> None:
    graph = open_config(architectures=["LlamaForSequenceClassification"])
    assert graph.find("score.weight") is not None


@pytest.mark.parametrize("architectures", [None, ["NotThere"], ["pipeline"], [3]])
def test_without_a_known_architecture_it_is_the_causal_model(architectures: object) -> None:
    graph = open_config(architectures=architectures)
    assert graph.module(graph.root).spec.short_cls == "LlamaForCausalLM"


def test_a_model_that_has_no_causal_class_is_built_plain() -> None:
    graph = open_config(model_type="vit", architectures=None)
    assert graph.module(graph.root).spec.short_cls == "ViTModel"


def test_an_unknown_model_type_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(
        InputError, match=r"does not know the model_type 'lama'.*did you mean llama"
    ):
        open_config(model_type="lama")


def test_a_count_that_no_model_has_is_refused_before_anything_is_built() -> None:
    with pytest.raises(TooLargeError, match="num_hidden_layers is 1,000,000,000") as caught:
        open_config(num_hidden_layers=1_000_000_000)
    assert caught.value.exit_code == 6
    with pytest.raises(TooLargeError, match="n_routed_experts is 20,000"):
        open_config(text_config={"n_routed_experts": 20_000})


def test_a_config_without_a_model_type_is_refused() -> None:
    with pytest.raises(InputError, match="names no model_type"):
        open_config(model_type=None)


def test_code_beside_a_config_is_not_run() -> None:
    Path("mine.py").write_text("open('ran', 'w').close()")
    with pytest.raises(InputError, match="code that comes with a model is never run"):
        open_config(model_type="mine", auto_map={"AutoConfig": "mine.Config"})
    assert not Path("ran").exists()


@pytest.mark.parametrize("value", ["many", -3, 0])
def test_values_that_make_no_model_are_refused_in_one_line(value: object) -> None:
    with pytest.raises(InputError, match=r"cannot build the model of config\.json") as caught:
        open_config(num_attention_heads=value)
    assert "\n" not in str(caught.value)


def test_the_layers_of_a_large_mixture_of_experts_are_there() -> None:
    graph = open_config(
        model_type="deepseek_v3", architectures=["DeepseekV3ForCausalLM"], hidden_size=7168,
        num_hidden_layers=61, num_attention_heads=128, num_key_value_heads=128,
        intermediate_size=18432, vocab_size=129280,
    )  # fmt: skip
    total = sum(node.spec.num_elements for node in graph.parameters())
    assert round(total / 1e9) == 671


def test_transformers_is_silent_and_set_back_afterwards(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    import huggingface_hub.constants
    from transformers.utils import logging as chatter

    before = (chatter.get_verbosity(), huggingface_hub.constants.HF_HUB_OFFLINE)
    with caplog.at_level(logging.WARNING):
        open_config(unknown_key=3, rope_scaling={"type": "linear", "factor": 2.0})
    assert (chatter.get_verbosity(), huggingface_hub.constants.HF_HUB_OFFLINE) == before
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where only the dependencies that hpx always needs are installed."""
    real_import = builtins.__import__

    def refuse(name: str, *args: object, **kwargs: object) -> object:
        if name.partition(".")[0] in {"transformers", "huggingface_hub"}:
            raise ModuleNotFoundError(f"No module named '{name}'")
        return real_import(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.mark.usefixtures("without_transformers")
def test_missing_transformers_is_told_with_what_to_install() -> None:
    with pytest.raises(InputError, match=r"Fix: pip install 'hpx-passes\[hf\]'"):
        open_config()


@pytest.mark.usefixtures("without_transformers")
def test_missing_transformers_is_told_where_the_configuration_alone_is_asked_for() -> None:
    with pytest.raises(InputError, match=r"config.json needs transformers: .* Fix: pip install"):
        config_of_values(LLAMA, "config.json")
