"""A float64 model stays one, whatever it casts to."""

from __future__ import annotations

import torch
from torch import Tensor

from hpx.numeric.precision import KeepDouble


def cast(x: Tensor) -> Tensor:
    """As norms and softmax of many models compute."""
    scores = torch.softmax(x.float() * 1.1, dim=-1, dtype=torch.float32)
    return (scores.to(torch.float32) * x.type(torch.float32)).sum()


def test_no_cast_rounds() -> None:
    with KeepDouble():
        assert cast(torch.ones(3, dtype=torch.float64)).dtype is torch.float64
    assert cast(torch.ones(3, dtype=torch.float64)).dtype is torch.float32


def test_other_dtypes_are_left_as_they_are() -> None:
    with KeepDouble():
        assert torch.ones(3).half().dtype is torch.float16
        assert torch.ones(3, dtype=torch.float64).long().dtype is torch.int64
