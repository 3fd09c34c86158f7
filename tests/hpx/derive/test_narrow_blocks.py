"""Blocks that narrow the stream and widen again: which matrix reads it is told by its width."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hpx.plan import Rule
from tests.hpx.derive.models import Attention, Layer, Mlp, Stack, linear
from tests.hpx.derive.test_derived_cases import rule_for


class Narrow(nn.Module):
    """Two matrices in the order in which they run, under names that say nothing."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.first = linear(32, inner)
        self.second = linear(inner, 32)


class Gated(Narrow):
    """A third one, which reads the stream as well."""

    def __init__(self, inner: int) -> None:
        super().__init__(inner)
        self.gate = linear(32, inner)


class Adapted(nn.Module):
    """A feed-forward block with an adapter after it."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.mlp = Mlp(32)
        self.adapter = Narrow(inner)


class Scaled(Attention):
    """Attention with a vector as wide as the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(32, device="meta"))


def rule(feed: nn.Module, name: str, mixer: nn.Module | None = None) -> Rule:
    model = Stack([Layer(mixer or Attention(), feed)])
    return rule_for(model, f"layers.0.{name}")


@pytest.mark.parametrize("cls", [Narrow, Gated])
def test_the_matrix_that_reads_the_stream_is_cut_on_its_outputs(cls: type[Narrow]) -> None:
    assert str(rule(cls(16), "feed.first.weight").layout) == "tp:S(0)"
    assert str(rule(cls(16), "feed.second.weight").layout) == "tp:S(1)"


def test_an_adapter_of_few_channels_stays_whole_with_the_numbers() -> None:
    found = rule(Adapted(4), "feed.adapter.second.weight")
    assert str(found.layout) == "R"
    assert "an adapter of 4 channels beside 32 of the stream" in (found.reason or "")


def test_the_block_before_an_adapter_is_cut() -> None:
    assert rule(Adapted(4), "feed.mlp.c_fc.weight").layout.shards


def test_a_reason_names_the_parameter_that_it_is_about() -> None:
    found = rule(Mlp(32), "mixer.q_proj.weight", Scaled())
    assert str(found.layout) == "R"
    assert (found.reason or "").startswith("scale: it is whole, inside a region")
