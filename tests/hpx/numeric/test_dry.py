"""One forward on DTensors: boundaries that fit, and those that do not."""

from __future__ import annotations

import json

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import hpx
from hpx.numeric.dry import DryReport, validate
from hpx.numeric.preparing import prepare
from hpx.tools.cli import main
from tests.hpx.pairs import CUT, Around, Mlp, TakesTheWrongOne


class TakesTheMean(Mlp):
    """The mean over channels needs all of them: DTensor gathers."""

    def forward(self, x: Tensor) -> Tensor:
        up = torch.sort(self.up(x), dim=-1).values
        out: Tensor = self.down(up)
        return out


class FailsInside(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)
        return self.down(up @ up)  # type: ignore[no-any-return]


class HasNoRule(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)
        return self.down(up.unfold(-1, 1, 1).squeeze(-1))  # type: ignore[no-any-return]


class DependsOnData(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)
        return self.down(up + len(torch.nonzero(up)))  # type: ignore[no-any-return]


def report(inner: nn.Module, pipeline: str = "@run") -> DryReport:
    plan = hpx.ShardingPlan(CUT, default="replicate")
    return validate(prepare(Around(inner), plan, "tp=2", pipeline, inputs=torch.randn(2, 3, 8)))


def test_a_model_whose_layouts_fit() -> None:
    found = report(Mlp())
    assert found.ok
    assert found.verdict == "fits"
    assert (found.crossed, found.boundaries) == (2, 2)
    assert "2 of 2 boundaries take and give what they declare" in str(found)


@pytest.mark.parametrize("pipeline", ["@run", "@run, insert-collectives{sp=true}"])
@pytest.mark.parametrize("model", ["tiny_llama", "tiny_moe"])
def test_bundled_models_fit(model: str, pipeline: str) -> None:
    found = validate(prepare(f"hpx.bundled:{model}", None, "dp=2,tp=2", pipeline))
    assert found.verdict == "fits"
    assert found.crossed == found.boundaries
    assert found.gathered == ()


def test_a_rowwise_layer_that_gets_the_whole_is_named_with_what_decided_it() -> None:
    found = report(TakesTheWrongOne())
    assert not found.ok
    assert found.blame is not None
    assert found.blame.module == "mlp.down"
    assert found.blame.what == (
        "what arrives is whole (R of [2, 3, 16]), and its weight takes a part of the columns"
    )
    assert found.blame.parameters == ("mlp.down.weight",)
    assert "shard-params" in found.blame.passes


def test_a_region_in_which_dtensor_gathers_is_told_apart() -> None:
    found = report(TakesTheMean())
    assert found.ok
    assert found.gathered == ("mlp",)
    assert "not followed, as DTensor gathers what is cut inside: mlp" in str(found)


def test_what_fails_at_an_operator_names_the_module_and_the_line() -> None:
    found = report(FailsInside())
    assert found.blame is not None
    assert found.blame.module == "mlp"
    assert "RuntimeError" in found.blame.what
    assert "test_dry.py:" in found.blame.what


@pytest.mark.parametrize(("inner", "operator"), [(HasNoRule, "unfold"), (DependsOnData, "nonzero")])
def test_an_operator_without_a_rule_proves_nothing_and_is_no_mistake(
    inner: type[Mlp], operator: str
) -> None:
    found = report(inner())
    assert found.ok
    assert found.verdict == "unproven"
    assert operator in found.unproven


def test_nothing_of_the_fake_group_is_left() -> None:
    report(TakesTheWrongOne())
    assert not dist.is_initialized()


def test_the_given_model_stays_as_it_is() -> None:
    model = Around(Mlp())
    before = [id(parameter) for parameter in model.parameters()]
    plan = hpx.ShardingPlan(CUT, default="replicate")
    validate(prepare(model, plan, "tp=2", inputs=torch.randn(2, 3, 8)))
    assert [id(parameter) for parameter in model.parameters()] == before


@pytest.mark.parametrize(
    ("mesh", "pipeline", "why"),
    [
        ("dp=2,tp=1", "@run", "tp is not active"),
        ("tp=2", "@default", "the pipeline is"),
    ],
)
def test_what_has_no_boundaries_is_refused(mesh: str, pipeline: str, why: str) -> None:
    plan = hpx.ShardingPlan(CUT, default="replicate")
    subject = prepare(Around(Mlp()), plan, mesh, pipeline, inputs=torch.randn(2, 3, 8))
    with pytest.raises(hpx.UsageError, match=why):
        validate(subject)


def test_a_process_group_that_runs_is_left_alone() -> None:
    plan = hpx.ShardingPlan(CUT, default="replicate")
    subject = prepare(Around(Mlp()), plan, "tp=2", inputs=torch.randn(2, 3, 8))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        with pytest.raises(hpx.UsageError, match="has a real one already"):
            validate(subject)
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_the_command_says_it_as_json_and_by_its_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "hpx.bundled:tiny_llama", "--mesh", "tp=2", "--dry", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["checks"]
    assert found["verdict"] == "fits"
    assert found["boundaries"] == found["crossed"] == 10
