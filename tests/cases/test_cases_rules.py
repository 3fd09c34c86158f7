"""Field cases R1 to R3, R5, R6 and R10: rules and explanations."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import hpx
from hpx import HpxError, ShardingPlan
from hpx.plan import Pattern


class Gated(nn.Module):
    """w1, w2 and w3 of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Linear(8, 8, bias=False)
        self.w2 = nn.Linear(8, 8, bias=False)
        self.w3 = nn.Linear(8, 8, bias=False)


def layers(count: int = 2) -> nn.Module:
    model = nn.Module()
    model.layers = nn.ModuleList(nn.ModuleDict({"mlp": Gated()}) for _ in range(count))
    return model


def refused(model: nn.Module, plan: ShardingPlan, mesh: str = "tp=2") -> str:
    with pytest.raises(HpxError) as caught:
        hpx.run(model, plan, mesh)
    return str(caught.value)


def test_r1_a_layer_wildcard_does_not_hide_the_1_of_w1() -> None:
    plan = ShardingPlan(
        {"layers.*.mlp.w{1,3}.weight": {"tp": "S(0)"}, "layers.*.mlp.w2.weight": {"tp": "S(1)"}}
    )
    done = hpx.run(layers(), plan, "tp=2")
    assert {param.name[-9:-7]: str(param.layout) for param in done.params} == {
        "w1": "tp:S(0)",
        "w2": "tp:S(1)",
        "w3": "tp:S(0)",
    }
    assert not Pattern.parse("layers.*.mlp.w*.weight").matches("layers.0.mlp.w1.x.weight")


def test_r2_a_key_that_matches_nothing_is_an_error_with_the_nearest_names() -> None:
    plan = ShardingPlan({"layers.*.mlp.w4.weight": {"tp": "S(0)"}, "**": "replicate"})
    text = refused(layers(80), plan)
    assert "rule 1: rule 'layers.*.mlp.w4.weight' matches no parameter" in text
    assert "did you mean layers.0.mlp.w" in text
    assert len(text) < 600


def test_r3_top_level_names_without_a_dot_are_legal_keys() -> None:
    model = nn.Module()
    model.scale = nn.Parameter(torch.ones(8, 4))
    done = hpx.run(model, ShardingPlan({"scale": {"tp": "S(0)"}}), "tp=2")
    assert done.by_name["scale"].local_shape == (4, 4)


PLAN = """\
version: 1
params:
  "w1.weight": {tp: S(0)}
"""


def test_r5_an_error_names_pass_parameter_rule_and_a_way_out_and_no_operators() -> None:
    model = nn.Module()
    model.w1 = nn.Linear(4, 7, bias=False)
    text = refused(model, ShardingPlan.from_text(PLAN, "plan.yaml"))
    assert text.splitlines()[1] == (
        "  - pass shard-params, w1.weight, plan.yaml:3: dim 0 of [7, 4] cannot be cut evenly by"
        " tp=2: 7 % 2 = 1, ranks would hold 4,3. Fix: use a tp of 1, 7, or"
        " shard-params{uneven=allow}"
    )
    assert "0x" not in text
    assert "aten" not in text


def test_r6_a_table_of_all_parameters_goes_to_a_file(tmp_path: object) -> None:
    plan = ShardingPlan({"layers.*.mlp.*.weight": {"tp": "S(0)"}})
    done = hpx.run(layers(), plan, "tp=2")
    table = json.loads(json.dumps(done.to_json()))["params"]
    assert [(row["name"], row["layout"], row["rule"]["pattern"]) for row in table] == [
        (f"layers.{i}.mlp.{w}.weight", {"tp": "S(0)"}, "layers.*.mlp.*.weight")
        for i in range(2)
        for w in ("w1", "w2", "w3")
    ]


class Quantised(nn.Module):
    """A weight of 512 rows with a scale for each 128, as fp8 checkpoints have it."""

    def __init__(self) -> None:
        super().__init__()
        fp8 = torch.zeros(256, 512).to(torch.float8_e4m3fn)
        self.weight = nn.Parameter(fp8, requires_grad=False)
        self.weight_scale_inv = nn.Parameter(torch.ones(2, 4))


def test_r10_a_cut_through_a_quantised_block_is_refused_with_the_sizes_that_would_do() -> None:
    model = nn.Module()
    model.up = Quantised()
    plan = ShardingPlan({"up.weight": {"tp": "S(1)"}}, default="replicate")
    text = refused(model, plan, "tp=8")
    assert "up.weight, rule 1: the cut goes through a quantised block" in text
    assert "dim 1 of size 512 is quantised in 4 blocks of 128" in text
    assert "allowed tp 1, 2, 4" in text


def test_r10_a_cut_between_blocks_is_fine() -> None:
    model = nn.Module()
    model.up = Quantised()
    plan = ShardingPlan({"up.*": {"tp": "S(1)"}})
    assert hpx.run(model, plan, "tp=4").by_name["up.weight"].local_shape == (256, 128)


class Nf4(torch.Tensor):
    """A tensor type that hpx does not know."""


def test_r10_an_unknown_tensor_type_is_refused_by_name() -> None:
    model = nn.Module()
    model.up = nn.Module()
    model.up.weight = nn.Parameter(torch.zeros(8, 8).as_subclass(Nf4))
    text = refused(model, ShardingPlan({"up.weight": {"tp": "S(0)"}}))
    assert "up.weight, rule 1: cannot shard type" in text
    assert "Nf4" in text
