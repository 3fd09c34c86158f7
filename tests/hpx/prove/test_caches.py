"""A proof leaves nothing fake in the caches of a model's own code."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps

import pytest
import torch
from torch import Tensor, nn

from tests.hpx.prove.models import HeadSize, Model
from tests.hpx.prove.test_prove import proof


@lru_cache(maxsize=4)
def positions(length: int) -> Tensor:
    return torch.arange(length) * 0.1


def cached(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    kept = lru_cache(maxsize=4)(function)

    @wraps(function)
    def wrapper(*args: object) -> Tensor:
        return kept(*args)

    return wrapper


class OfTheFile(HeadSize):
    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden + positions(hidden.shape[1])[:, None])


class OfTheClass(HeadSize):
    @staticmethod
    @cached
    def table(length: int) -> Tensor:
        return torch.arange(length) * 0.1

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden + self.table(hidden.shape[1])[:, None])


@pytest.mark.parametrize("kind", [OfTheFile, OfTheClass])
def test_a_model_runs_after_a_proof_and_is_proved_after_a_run(kind: type[nn.Module]) -> None:
    ids = torch.zeros(1, 3, dtype=torch.long)
    model = Model(kind())
    for _ in range(2):
        model(ids)
        assert proof(model, inputs=ids).status == "proved"
    assert type(model(ids)) is Tensor
