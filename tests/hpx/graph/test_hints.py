from __future__ import annotations

from types import SimpleNamespace

from torch import nn

from hpx.graph.graph import ModuleGraph
from hpx.graph.hints import config_values, hints_of


def model_with(**attributes: object) -> nn.Module:
    model = nn.Linear(2, 2)
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def test_a_plain_module_declares_nothing() -> None:
    assert hints_of(nn.Linear(2, 2)) == {}


def test_plain_values_of_a_config_are_kept_and_others_are_not() -> None:
    config = SimpleNamespace(num_attention_heads=8, head_dim=None, hidden_size=16, other=3)
    assert hints_of(model_with(config=config)) == {
        "config": {"num_attention_heads": 8, "hidden_size": 16}
    }


def test_values_of_a_text_config_stand_in_for_those_the_whole_lacks() -> None:
    text = SimpleNamespace(num_attention_heads=8, model_type="text")
    config = SimpleNamespace(model_type="whole", text_config=text)
    assert hints_of(model_with(config=config)) == {
        "config": {"num_attention_heads": 8, "model_type": "whole"}
    }


def test_a_config_file_and_a_config_object_give_the_same_values() -> None:
    values = {"num_attention_heads": 8, "tie_word_embeddings": True, "rope": {}}
    config = SimpleNamespace(**values)
    assert hints_of(model_with(config=config))["config"] == config_values(values)


def test_tied_names_are_pairs_of_source_and_name() -> None:
    model = model_with(_tied_weights_keys={"lm_head.weight": "embed.weight"})
    assert hints_of(model) == {"tied": [["embed.weight", "lm_head.weight"]]}


def test_expanded_tied_names_go_before_patterns() -> None:
    model = model_with(
        _tied_weights_keys={r"head.\d+.weight": "embed.weight"},
        all_tied_weights_keys={"head.0.weight": "embed.weight"},
    )
    assert hints_of(model) == {"tied": [["embed.weight", "head.0.weight"]]}


def test_the_map_of_tied_names_does_not_hold_if_the_config_says_so() -> None:
    config = SimpleNamespace(tie_word_embeddings=False)
    model = model_with(config=config, _tied_weights_keys={"lm_head.weight": "embed.weight"})
    assert "tied" not in hints_of(model)


def test_the_hints_of_a_wrapped_model_are_those_of_the_model() -> None:
    outer = nn.Module()
    outer.add_module("_orig_mod", model_with(config=SimpleNamespace(n_head=8)))
    assert ModuleGraph.from_module(outer).hints == {"config": {"n_head": 8}}
