"""A parameter that another module than its own reads is a DTensor there, and torch refuses it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.hpx.prove.models import HeadSize, Model
from tests.hpx.prove.test_prove import proof, text_of


class Scoring(Model):
    """Scores with the embedding, after all regions."""

    def forward(self, ids: Tensor) -> Tensor:
        return functional.linear(super().forward(ids), self.embed.weight)


class Normalised(nn.Module):
    """Reads the weight of its layer instead of calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, hidden: Tensor) -> Tensor:
        weight = functional.normalize(self.layer.weight, dim=1)
        return functional.linear(hidden, weight, self.layer.bias)


class Listed(nn.Module):
    """Reads parameters out of a list, and its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(32))])
        self.shift = nn.Parameter(torch.zeros(32))

    def forward(self, hidden: Tensor) -> Tensor:
        scaled: Tensor = hidden * self.scales[0] + self.shift
        return scaled


def test_a_head_that_reads_the_embedding_is_named_with_its_line() -> None:
    text = text_of(proof(Scoring(HeadSize())))
    assert text.startswith("the model reads it while the module that holds it is not running")
    assert "test_readers.py:" in text
    assert "self.embed.weight" in text


def test_parameters_that_one_module_reads_at_one_place_are_told_together() -> None:
    found = proof(Model(HeadSize(), Normalised()))
    lines = {problem.text.partition("; ")[2] for problem in found.problems}
    assert len(lines) == len(found.problems) == 2
    assert all("layers.1 reads it" in problem.text for problem in found.problems)


@pytest.mark.parametrize(
    "layer",
    [
        Listed(),
        nn.utils.parametrizations.weight_norm(nn.Linear(32, 32)),
        nn.TransformerEncoderLayer(32, 4, 64, batch_first=True),
    ],
    ids=["a list", "a parametrisation", "a layer of torch"],
)
def test_what_is_read_where_it_is_local_fits(layer: nn.Module) -> None:
    assert proof(Model(HeadSize(), layer)).status == "proved"


def test_nothing_is_a_dtensor_without_tp() -> None:
    assert proof(Scoring(HeadSize()), "tp=1").problems == ()
