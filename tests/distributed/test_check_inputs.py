"""`hpx.check` on inputs that a person gives: labels, embeddings, one token, what is written to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hpx
from hpx.numeric.pool import Pool
from tests.distributed.equality_models import VOCABULARY
from tests.distributed.faults import NoNormReduction, NoReduction
from tests.distributed.loss_in_parts import own_loss
from tests.hpx.derive.models import family

MESHES = ("tp=2", "dp=2,tp=2")
PARTS = "@run, insert-collectives{loss=parallel}"
SEQUENCE = "@run, insert-collectives{sp=true}"


def ids(length: int = 9) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, VOCABULARY, (2, length), generator=generator)


def labelled() -> dict[str, Tensor]:
    """Padded on the right, with labels that do not count."""
    tokens, mask = ids(), torch.ones(2, 9, dtype=torch.int64)
    mask[1, -2:] = 0
    labels = tokens.masked_fill(mask == 0, -100)
    labels[:, :3] = -100
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def small(name: str) -> nn.Module:
    return family(name, "cpu", vocab_size=VOCABULARY)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("pipeline", ["@run", SEQUENCE, PARTS])
def test_a_loss_of_the_model_itself_is_computed_of_labels(
    pipeline: str, mesh: str, gloo: Pool
) -> None:
    report = hpx.check(
        small("llama"), None, mesh, pipeline, inputs=labelled(), loss=own_loss, pool=gloo
    )
    report.raise_if_different()
    assert report.held <= 0.55  # attention too is cut, though the model keeps a cache


def test_what_no_data_rank_uses_has_no_gradient(gloo: Pool) -> None:
    inputs = {"inputs_embeds": torch.randn(2, 7, 32), "labels": ids(7)}
    report = hpx.check(small("llama"), None, "dp=2,tp=2", inputs=inputs, loss=own_loss, pool=gloo)
    report.raise_if_different()


@pytest.mark.parametrize("pipeline", ["@run", SEQUENCE, PARTS])
def test_one_token_has_no_next_one_and_a_loss_all_the_same(pipeline: str, gloo: Pool) -> None:
    inputs = {"input_ids": ids(1)[:1]}
    report = hpx.check(small("llama"), None, "tp=2", pipeline, inputs=inputs, pool=gloo)
    report.raise_if_different()
    assert report.largest("gradient") > 0


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_hidden_states_that_a_model_records_are_whole_outputs(name: str, gloo: Pool) -> None:
    inputs = {"input_ids": ids(), "output_hidden_states": True}
    report = hpx.check(small(name), None, "tp=2", SEQUENCE, inputs=inputs, pool=gloo)
    report.raise_if_different()
    (outputs, *_) = report.figures
    assert outputs.tensors == 4


def test_the_scores_of_routers_are_there_for_a_loss_of_the_model(gloo: Pool) -> None:
    model = family("mixtral", "cpu", vocab_size=VOCABULARY, output_router_logits=True)
    model.config._experts_implementation = "eager"
    hpx.check(model, None, "tp=2", inputs=labelled(), loss=own_loss, pool=gloo).raise_if_different()


@pytest.mark.parametrize(("length", "fault"), [(9, NoNormReduction()), (1, NoReduction())])
def test_the_module_is_named_where_ranks_do_not_divide_the_sequence(
    length: int, fault: Any, gloo: Pool
) -> None:
    pipeline = ["@run", "insert-collectives{sp=true}", fault]
    inputs = {"input_ids": ids(length)}
    report = hpx.check(small("qwen3"), None, "tp=2", pipeline, inputs=inputs, pool=gloo)
    assert report.blame is not None
    assert report.blame.module == f"model.{fault.module}"


# -- models of one's own ---------------------------------------------------------------------------


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.up_proj(hidden).relu())
        return out


class Writing(nn.Module):
    """Scales what it is given in place, and counts what it was given in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mlp = nn.Linear(8, 8), Mlp()

    def forward(self, x: Tensor, seen: list[int]) -> Tensor:
        seen.append(len(seen))
        x.mul_(2.0)
        hidden = self.embed(x) * len(seen)
        out: Tensor = hidden + self.mlp(hidden)
        return out


class Outside(nn.Module):
    """Scores with the weight of its table, which is not running then."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mlp = nn.Embedding(8, 8), Mlp()

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.mlp(self.embed(x)), self.embed.weight)


class Shared(nn.Module):
    """One of its layers has two names and is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Mlp()
        self.layers = nn.ModuleList([self.layer, Mlp(), self.layer])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class Scores(Writing):
    """Some scores are masked."""

    def forward(self, x: Tensor, seen: list[int]) -> Any:
        out = super().forward(x, seen)
        mask = torch.arange(8) < 2
        return {"scores": out.masked_fill(mask, -torch.inf), "out": out}


def outside() -> tuple[nn.Module, object]:
    return Outside(), (torch.tensor([[1, 2, 7]]),)


def shared() -> tuple[nn.Module, object]:
    return Shared(), (torch.randn(2, 5, 8),)


def writing() -> tuple[nn.Module, object]:
    return Writing(), (torch.randn(2, 5, 8), [])


def of_one_that_is_trained() -> tuple[nn.Module, object]:
    return Writing(), (torch.randn(2, 5, 8, requires_grad=True) * 1.0, [])


def masked() -> tuple[nn.Module, object, object]:
    return Scores(), (torch.randn(2, 5, 8), []), out_of


def out_of(output: dict[str, Tensor]) -> Tensor:
    return output["out"].square().mean()


def no_number(output: dict[str, Tensor]) -> Tensor:
    return (output["out"].abs() * -1).log().mean()


@pytest.mark.parametrize("factory", ["writing", "of_one_that_is_trained", "masked"])
@pytest.mark.parametrize("mesh", MESHES)
def test_a_model_may_write_to_what_it_is_given(mesh: str, factory: str, gloo: Pool) -> None:
    hpx.check(f"{__name__}:{factory}", mesh=mesh, steps=2, pool=gloo).raise_if_different()


def test_a_loss_that_is_no_number_is_not_the_fault_of_the_plan(gloo: Pool) -> None:
    with pytest.raises(hpx.InputError, match="masked gives nothing to compare with, unsharded: of"):
        hpx.check(masked, mesh="tp=2", loss=no_number, pool=gloo)


def test_a_layer_with_two_names_is_cut_by_one_rule(gloo: Pool) -> None:
    report = hpx.check(shared, mesh="tp=2", pool=gloo)
    report.raise_if_different()
    assert report.held < 0.55


def test_a_weight_that_is_read_outside_of_its_module_is_said_to_be_a_dtensor(gloo: Pool) -> None:
    report = hpx.check(outside, mesh="tp=2", pool=gloo)
    assert report.blame is not None
    assert report.blame.module == ""
    assert "outside of the forward of its own module a parameter is a DTensor" in str(report)
    assert "tests/distributed/test_check_inputs.py:" in str(report)


def test_what_a_model_returns_in_parts_is_the_fault_of_the_model_itself(gloo: Pool) -> None:
    plan = hpx.ShardingPlan({"embed.weight": {"tp": "S(0)"}}, default="replicate")
    report = hpx.check(outside, plan, "tp=2", "@run, localize{mode=permanent}", pool=gloo)
    assert report.blame is not None
    assert (report.blame.module, report.blame.direction) == ("", "forward")


@pytest.mark.parametrize("pipeline", [PARTS])
def test_scores_in_columns_of_other_tokens_than_the_first_input_have_a_loss(
    pipeline: str, gloo: Pool
) -> None:
    inputs = {"input_ids": ids(), "decoder_input_ids": ids(5)}
    model = family("t5", "cpu", vocab_size=VOCABULARY, tie_word_embeddings=False)
    hpx.check(model, None, "tp=2", pipeline, inputs=inputs, pool=gloo).raise_if_different()
