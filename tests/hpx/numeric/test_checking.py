"""What `hpx.check` refuses at once, and what it tells of a rank in this process."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, nan
from pathlib import Path

import pytest
import torch.distributed as dist
from torch import nn

import hpx
from hpx.errors import InputError, UsageError
from hpx.numeric.checking import refuse_limits


@pytest.mark.parametrize(
    ("tolerance", "timeout", "said"),
    [
        (-1e-9, 1.0, "the tolerance is -1e-09"),
        (nan, 1.0, "the tolerance is nan"),
        (inf, 1.0, "the tolerance is inf"),
        (0.0, 0.0, "the time limit is 0 s"),
        (0.0, nan, "the time limit is nan s"),
        (0.0, inf, "the time limit is inf s"),
        (0.0, 1e300, r"the time limit is 1e\+300 s"),
    ],
)
def test_limits_that_are_none_are_refused(tolerance: float, timeout: float, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        refuse_limits(tolerance, timeout)


def test_limits_are_looked_at_before_the_model() -> None:
    with pytest.raises(UsageError, match="the time limit is nan s"):
        hpx.check("hpx.bundled:tiny_llama", mesh="tp=2", timeout=nan)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    where = f"file://{tmp_path / 'store'}"
    dist.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class OddError(Exception):
    """One that no pickle takes."""

    def __init__(self) -> None:
        super().__init__("it has a function in it")
        self.held = lambda: None


@pytest.mark.usefixtures("alone")
def test_an_error_that_cannot_travel_to_the_other_ranks_is_told_in_words() -> None:
    built: list[nn.Module] = []

    def second_time_lost() -> nn.Module:
        if built:
            raise OddError
        built.append(nn.Linear(4, 4))
        return built[0]

    with pytest.raises(InputError, match="a rank failed: OddError: it has a function in it"):
        hpx.check(second_time_lost, mesh="tp=1")
