"""What a person names as the model of a check."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from hpx.errors import InputError, UsageError
from hpx.mesh import MeshSpec
from hpx.numeric.building import choose_attention
from hpx.numeric.sources import source_of


@pytest.mark.parametrize("text", [None, "{}"])
def test_a_folder_without_a_configuration_of_a_model_is_told_what_to_give(
    text: str | None, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError) as caught:
        source_of(tmp_path, MeshSpec.parse("tp=2"), None, None, None, in_place=False)
    assert caught.value.fix is not None
    assert caught.value.fix.startswith("give the config.json of a model")


def test_an_empty_name_is_no_folder() -> None:
    with pytest.raises(UsageError, match="no model is named"):
        source_of("", MeshSpec.parse("tp=2"), None, None, None, in_place=False)


def half_on_meta() -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_buffer("mask", torch.ones(2, device="meta"))
    return model


def test_a_model_without_values_is_refused_before_any_process_starts() -> None:
    with pytest.raises(InputError, match="mask of half_on_meta is on the meta device"):
        source_of(half_on_meta, MeshSpec.parse("tp=2"), None, None, None, in_place=False)


def test_an_attention_that_a_model_has_not_is_refused() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "vocab_size": 8, "head_dim": 4}
    config = transformers.Gemma2Config(**sizes, intermediate_size=8, num_hidden_layers=1)
    model = transformers.Gemma2ForCausalLM._from_config(config)
    with pytest.raises(UsageError, match="a Gemma2ForCausalLM has no attention 'sdpa'"):
        choose_attention(model, "sdpa")
