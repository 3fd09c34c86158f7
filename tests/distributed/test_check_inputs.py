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


class Scores(Writing):
    """Some scores are masked."""

    def forward(self, x: Tensor, seen: list[int]) -> Any:
        out = super().forward(x, seen)
        mask = torch.arange(8) < 2
        return {"scores": out.masked_fill(mask, -torch.inf), "out": out}


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
