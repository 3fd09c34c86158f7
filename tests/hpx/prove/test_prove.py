"""A count that nobody divided, and a number in the code, are found at plan time."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import hpx
from hpx import ShardingPlan
from hpx.bundled import tiny_llama
from hpx.errors import InputError
from hpx.prove import Proof, prove
from hpx.prove.inputs import example_inputs
from tests.cases.models import values_of
from tests.hpx.prove import models
from tests.hpx.prove.models import (
    PLAN,
    ByAttribute,
    ByNumber,
    Counted,
    HeadSize,
    HeldApart,
    Mlp,
    Model,
)

FILE = str(Path(models.__file__).relative_to(Path(models.__file__).parents[3]))


def proof(model: nn.Module, mesh: str = "tp=4", inputs: object = None, **how: object) -> Proof:
    seconds = how.pop("seconds", 60.0)
    assert isinstance(seconds, float)
    plan = ShardingPlan(_used(model, how.pop("rules", PLAN)), default="replicate", **how)  # type: ignore[arg-type]
    return prove(hpx.run(model, plan, mesh), model, inputs, seconds=seconds)


def _used(model: nn.Module, rules: object) -> dict[str, object]:
    """The rules that match something."""
    assert isinstance(rules, dict)
    names = {name.rpartition(".")[0].rpartition(".")[2] for name, _ in model.named_parameters()}
    return {
        pattern: layout
        for pattern, layout in rules.items()
        if names & set(re.findall(r"\w+", pattern.split(".")[-2]))
    }


def text_of(found: Proof) -> str:
    (problem,) = found.problems
    assert problem.level == "error"
    return problem.text


# -- what fits ---------------------------------------------------------------------------------


def test_heads_that_follow_from_the_shape_are_proved() -> None:
    found = proof(Model(HeadSize(), HeadSize()))
    assert (found.status, found.boundaries, found.distinct, found.proved) == ("proved", 2, 1, 1)
    assert found.problems == ()


def test_a_declared_count_is_proved() -> None:
    assert proof(Model(ByAttribute()), heads={"layers.*": ["n"]}).status == "proved"


def test_the_bundled_models_are_proved() -> None:
    rules: dict[str, object] = {
        "**.{q,k,v}_proj.weight": {"tp": "S(0)"},
        "**.o_proj.weight": {"tp": "S(1)"},
        "**.{gate,up}_proj.weight": {"tp": "S(0)"},
        "**.down_proj.weight": {"tp": "S(1)"},
    }
    plan = ShardingPlan(rules, default="replicate")
    model = tiny_llama()
    found = prove(hpx.run(model, plan, "tp=2"), model)
    assert (found.status, found.distinct, found.boundaries) == ("proved", 2, 4)


def test_without_a_cut_region_there_is_nothing_to_prove() -> None:
    found = proof(Model(ByNumber()), "dp=2,tp=1")
    assert str(found) == "shapes: nothing to prove, no region is cut on tp"
    assert found.status == "proved"


def test_layers_that_differ_in_their_place_alone_are_replayed_once() -> None:
    layers = [HeadSize() for _ in range(3)]
    for index, layer in enumerate(layers):
        layer.layer_idx = index  # type: ignore[assignment]
    found = proof(Model(*layers))
    assert (found.boundaries, found.distinct) == (3, 1)


def test_layers_of_other_sizes_are_replayed_apart() -> None:
    found = proof(Model(Mlp(64), Mlp(128)), heads={"layers.*": ["width"]})
    assert (found.boundaries, found.distinct, found.proved) == (2, 2, 2)


# -- H2 and its kin ----------------------------------------------------------------------------


def test_h2_an_undeclared_count_is_named_with_module_attribute_and_line() -> None:
    found = proof(Model(ByAttribute()))
    line = _line_of("x.view(*x.shape[:2], self.n, 4)")
    text = text_of(found)
    assert f"{FILE}:{line}, in layers.0: return x.view(*x.shape[:2], self.n, 4)" in text
    assert text.endswith("it reads n = 8, which nobody divided")
    assert found.problems[0].hint == 'declare it under heads: in the plan: "layers.0": [n]'


def test_h2_a_count_with_a_free_head_size_is_found_though_no_view_fails() -> None:
    text = text_of(proof(Model(Counted())))
    assert "query and key are multiplied over 1 of the 4 of a head" in text
    assert text.endswith("x.view(*x.shape[:2], self.n, -1); it reads n = 8, which nobody divided")


def test_a_number_in_the_code_is_named() -> None:
    found = proof(Model(ByNumber()))
    assert "the numbers in the code (2, 8, 4) are those of the unsharded model" in text_of(found)
    assert "write -1" in found.problems[0].hint


def test_a_count_that_is_read_on_another_line_is_named() -> None:
    assert "it reads n = 8, which nobody divided" in text_of(proof(Model(HeldApart())))


def test_a_width_that_nobody_divided_is_named() -> None:
    assert "it reads width = 64, which nobody divided" in text_of(proof(Model(Mlp(64))))


def test_equal_layers_fail_once_for_all_of_them() -> None:
    (problem,) = proof(Model(ByAttribute(), ByAttribute(), ByAttribute())).problems
    assert len(problem.nodes) == 3


class SixHeads(nn.Module):
    """Six heads of eight, by the number eight alone: nothing else tells how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(48, 48, bias=False) for _ in range(4))

    def forward(self, hidden: Tensor) -> Tensor:
        q, k, v = (layer(hidden).unflatten(-1, (-1, 8)) for layer in (self.q, self.k, self.v))
        scores = torch.einsum("blhd,bmhd->bhlm", q, k).softmax(-1)
        mixed = torch.einsum("bhlm,bmhd->blhd", scores, v).flatten(-2)
        out: Tensor = self.o(mixed)
        return out


def test_h9_six_heads_on_tp_4_are_found_from_shapes_where_no_attribute_tells() -> None:
    model = nn.Sequential(SixHeads())
    text = text_of(proof(model, "tp=4"))
    assert "unflatten(-1, (-1, 8))" in text
    assert "test_prove.py:" in text


def test_h9_six_heads_on_tp_2_are_proved() -> None:
    assert proof(nn.Sequential(SixHeads()), "tp=2").status == "proved"


class Biased(HeadSize):
    """Adds a bias of positions to its scores: one of its own, or that of the layer before it."""

    def __init__(self, *, owns: bool) -> None:
        super().__init__()
        self.bias = nn.Linear(1, 8, bias=False) if owns else None

    def forward(self, hidden: Tensor, given: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        if self.bias is not None:
            table: Tensor = self.bias(hidden.new_zeros(6, 6, 1))
            given = table.permute(2, 0, 1)
        assert given is not None
        q, k, v = (self.heads(layer(hidden)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = (q @ k.mT + given).softmax(-1) @ v
        out: Tensor = self.o(mixed.transpose(1, 2).flatten(2))
        return out, given


class SharesBias(nn.Module):
    """The second layer uses the bias of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.one, self.two = Biased(owns=True), Biased(owns=False)

    def forward(self, ids: Tensor) -> Tensor:
        hidden, bias = self.one(self.embed(ids))
        out: Tensor = self.two(hidden, bias)[0]
        return out


def test_what_a_region_gave_cut_enters_the_next_one_cut() -> None:
    found = proof(SharesBias(), rules={**PLAN, "one.bias.weight": {"tp": "S(0)"}})
    assert (found.status, found.distinct, found.problems) == ("proved", 2, ())


def test_a_bias_of_all_heads_beside_cut_ones_is_found() -> None:
    one, two = proof(SharesBias()).problems
    assert "in one: mixed = (q @ k.mT + given)" in one.text
    assert "in two: mixed = (q @ k.mT + given)" in two.text


# -- what cannot be tried ----------------------------------------------------------------------


class AsksForValues(nn.Module):
    """Its forward depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.attn = HeadSize()

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.first(hidden)
        if hidden.sum().item() > 0:
            hidden = -hidden
        out: Tensor = self.attn(hidden)
        return out


def test_a_model_that_asks_for_values_is_unproven_with_the_reason() -> None:
    found = proof(AsksForValues())
    assert (found.status, found.proved, found.problems) == ("unproven", 0, ())
    assert found.unproven.startswith("its forward does not run on fake tensors: ")
    assert "shapes unproven: 0 of 1 distinct regions" in str(found)


class TakesTwo(Model):
    """Needs something besides its ids."""

    def forward(self, ids: Tensor, bias: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(ids) + bias


def test_a_first_layer_that_does_not_tell_its_input_is_said() -> None:
    told = "to be called with is not known: its first layer does not tell what it takes"
    with pytest.raises(InputError, match=told):
        example_inputs(nn.Sequential(nn.ReLU()), None, FakeTensorMode())


def test_a_model_with_unknown_inputs_is_unproven_and_says_what_to_give() -> None:
    found = proof(TakesTwo(HeadSize()))
    assert found.status == "unproven"
    assert "to be called with is not known: its forward takes ids, bias" in found.unproven
    assert "name a factory that returns (model, example inputs)" in found.unproven


def test_inputs_that_are_given_are_used() -> None:
    ids, bias = torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, 3, 32)
    assert proof(TakesTwo(HeadSize()), inputs=(ids, bias)).status == "proved"
    assert proof(TakesTwo(HeadSize()), inputs={"ids": ids, "bias": bias}).status == "proved"


def test_a_region_that_is_never_called_is_unproven() -> None:
    class Skips(Model):
        def forward(self, ids: Tensor) -> Tensor:
            out: Tensor = self.embed(ids)
            return out

    found = proof(Skips(HeadSize()))
    assert (found.status, found.unproven) == ("unproven", "layers.0 is never called")


def test_a_proof_that_takes_too_long_is_given_up() -> None:
    found = proof(Model(HeadSize()), seconds=0.0)
    assert (found.status, found.unproven) == (
        "unproven",
        "its forward took too long on fake tensors",
    )


def test_a_model_that_cannot_be_copied_is_unproven() -> None:
    class NoCopy(Model):
        def __deepcopy__(self, memo: object) -> Model:
            raise TypeError("not this one")

    found = proof(NoCopy(HeadSize()))
    assert found.unproven == "the model cannot be copied: TypeError: not this one"


class CopiesOnce(HeadSize):
    """Can be copied, but not its copy."""

    copies = 0

    def __deepcopy__(self, memo: dict[int, object]) -> CopiesOnce:
        if self.copies:
            raise TypeError("not twice")
        made = CopiesOnce.__new__(CopiesOnce)
        memo[id(self)] = made
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        made.copies = 1
        return made


def test_a_region_that_cannot_be_copied_again_is_unproven() -> None:
    found = proof(Model(CopiesOnce()))
    assert found.unproven == "layers.0 cannot be replayed: TypeError: not twice"


# -- what stays as it is -----------------------------------------------------------------------


@pytest.mark.parametrize("layer", [ByAttribute, HeadSize])
def test_nothing_of_the_model_is_changed(layer: Callable[[], nn.Module]) -> None:
    model = Model(layer())
    before, fields = values_of(model), dict(model.layers[0].__dict__)
    modules = list(model.modules())
    proof(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.layers[0].__dict__ == fields
    assert all(a is b for a, b in zip(modules, model.modules(), strict=True))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_model_on_meta_is_proved() -> None:
    with torch.device("meta"):
        model = Model(HeadSize())
    assert proof(model).status == "proved"


def test_tensors_that_are_plain_attributes_are_no_obstacle() -> None:
    class Masked(HeadSize):
        def __init__(self) -> None:
            super().__init__()
            self.mask = torch.zeros(32)
            self.masks = {"one": [torch.zeros(32)]}

        def forward(self, hidden: Tensor) -> Tensor:
            return super().forward(hidden + self.mask + self.masks["one"][0])

    assert proof(Model(Masked())).status == "proved"


def _line_of(code: str) -> int:
    lines = Path(models.__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if code in line)
