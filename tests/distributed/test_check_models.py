"""Every supported family computes sharded what it computes unsharded: derived plan, full config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hpx
from hpx.numeric.pool import Pool
from hpx.numeric.report import Report
from tests.distributed.configs import config_file
from tests.hpx.derive.models import FAMILIES as KNOWN

LANGUAGE = (
    *("llama", "qwen2", "qwen3", "gemma2", "phi3", "gpt2", "gpt_neox"),
    *("deepseek_v3", "mixtral"),
)
FAMILIES = (*LANGUAGE, "bert", "vit")
BUNDLED = ("tiny_llama", "tiny_moe", "moe_671b")
MORE = tuple(name for name in KNOWN if name not in FAMILIES)
"""The other families that hpx derives plans for."""
INCOMPLETE: dict[str, dict[str, Any]] = {"deepseek_v2": {"num_experts_per_tok": 6}}
"""What the configuration of a class leaves open."""
CUT = {"mixtral": 1.0, "deepseek_v3": 0.8, "tiny_moe": 0.9, "moe_671b": 0.9}
"""The largest share of all elements that a rank of two holds: whole experts are most of these."""


def equal(report: Report) -> None:
    report.raise_if_different()
    assert {figure.kind for figure in report.figures} == {
        *("output", "loss", "gradient", "parameter")
    }
    assert report.largest("gradient") > 0  # sums in another order: nothing was compared with itself
    assert all(figure.tensors >= 15 for figure in report.figures[2:])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_on_two_ranks(family: str, gloo: Pool, tmp_path: Path) -> None:
    report = hpx.check(config_file(tmp_path, family), mesh="tp=2", pool=gloo)
    equal(report)
    assert 0.5 <= report.held <= CUT.get(family, 0.65)


@pytest.mark.slow
@pytest.mark.parametrize("family", MORE)
def test_another_family_on_two_ranks(family: str, gloo: Pool, tmp_path: Path) -> None:
    config = config_file(tmp_path, family, **INCOMPLETE.get(family, {}))
    report = hpx.check(config, mesh="tp=2", pool=gloo)
    equal(report)
    assert report.held < 1


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["tp=4", "dp=2,tp=2"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_on_four_ranks(family: str, mesh: str, gloo: Pool, tmp_path: Path) -> None:
    equal(hpx.check(config_file(tmp_path, family), mesh=mesh, pool=gloo))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["tp=2", "dp=2,tp=2"])
@pytest.mark.parametrize("family", [*LANGUAGE, "bert"])
def test_a_family_with_its_stream_cut_on_the_sequence(
    family: str, mesh: str, gloo: Pool, tmp_path: Path
) -> None:
    pipeline = "@run, insert-collectives{sp=true}"
    report = hpx.check(config_file(tmp_path, family), None, mesh, pipeline, pool=gloo)
    equal(report)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3", "deepseek_v3", "gpt_neox"])
def test_a_family_whose_loss_is_computed_in_parts(family: str, gloo: Pool, tmp_path: Path) -> None:
    pipeline = "@run, insert-collectives{sp=true, loss=parallel}"
    report = hpx.check(config_file(tmp_path, family), None, "tp=2", pipeline, pool=gloo)
    equal(report)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_with_eager_attention(family: str, gloo: Pool, tmp_path: Path) -> None:
    config = config_file(tmp_path, family)
    equal(hpx.check(config, mesh="tp=2", attention="eager", pool=gloo))


@pytest.mark.parametrize("mesh", ["tp=2", "tp=4", "dp=2,tp=2"])
@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_model(name: str, mesh: str, gloo: Pool) -> None:
    equal(hpx.check(f"hpx.bundled:{name}", mesh=mesh, pool=gloo))
