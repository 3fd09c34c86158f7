"""A stream that is cut on the sequence, on one rank of a fake group."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

import hpx
from hpx.bundled import tiny_llama
from hpx.errors import ManyErrors, NotRunnableError
from hpx.plan import ShardingPlan
from tests.hpx.runtime.conftest import FakeGroup

SP = "@run, insert-collectives{sp=true}"
PLAN = {"**.up.weight": {"tp": "S(0)"}, "**.down.weight": {"tp": "S(1)"}}
LLAMA = {
    "**.{gate,up,q,k,v}_proj.weight": {"tp": "S(0)"},
    "**.{down,o}_proj.weight": {"tp": "S(1)"},
}


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.down(self.up(hidden))
        return out


class Mixer(nn.Module):
    """It looks at all positions, and nothing of it is cut."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.lengths: list[int] = []

    def forward(self, hidden: Tensor, beside: Tensor) -> Tensor:
        assert hidden.shape == beside.shape
        self.lengths.append(hidden.shape[1])
        return hidden.cumsum(1) * self.weight + beside


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp, self.mixer = nn.LayerNorm(4), Mlp(), Mixer()
        self.lengths: list[int] = []

    def forward(self, hidden: Tensor) -> tuple[Tensor, None]:
        self.lengths.append(hidden.shape[1])
        hidden = hidden + self.mlp(self.norm(hidden))
        return hidden + self.mixer(hidden, hidden), None


class Model(nn.Module):
    def __init__(self, order: tuple[int, ...] = (0, 1, 2)) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.order = order

    def forward(self, hidden: Tensor) -> Tensor:
        for index in self.order:
            hidden = self.layers[index](hidden)[0]
        return hidden


def sharded(model: nn.Module, world: FakeGroup) -> Any:
    world(1, 2)
    hpx.apply(model, ShardingPlan(PLAN, default="replicate"), "tp=2", SP)
    return model


def test_layers_see_their_positions_and_the_model_returns_all(fake_group: FakeGroup) -> None:
    model = sharded(Model(), fake_group)
    assert model(torch.randn(2, 6, 4)).shape == (2, 6, 4)
    assert [layer.lengths for layer in model.layers] == [[3]] * 3


def test_a_module_that_is_computed_whole_gets_all_its_activations_whole(
    fake_group: FakeGroup,
) -> None:
    model = sharded(Model(), fake_group)
    model(torch.randn(2, 6, 4, requires_grad=True)).sum().backward()
    assert [layer.mixer.lengths for layer in model.layers] == [[6]] * 3


@pytest.mark.parametrize(("length", "own"), [(7, 4), (1, 1)])
def test_a_length_that_the_ranks_do_not_divide_is_filled_up(
    length: int, own: int, fake_group: FakeGroup
) -> None:
    model = sharded(Model(), fake_group)
    assert model(torch.randn(2, length, 4)).shape == (2, length, 4)
    assert [layer.lengths for layer in model.layers] == [[own]] * 3
    assert [layer.mixer.lengths for layer in model.layers] == [[length]] * 3


def test_a_stream_of_other_dims_is_an_error(fake_group: FakeGroup) -> None:
    model = sharded(Model(), fake_group)
    with pytest.raises(NotRunnableError, match="2 dims cannot be cut on its sequence"):
        model(torch.randn(6, 4))


def test_layers_that_run_out_of_order_are_refused(fake_group: FakeGroup) -> None:
    model = sharded(Model((0, 2, 1)), fake_group)
    with pytest.raises(NotRunnableError, match=r"layers\.1 is called out of order"):
        model(torch.randn(2, 6, 4))


def test_layers_without_the_first_one_are_refused(fake_group: FakeGroup) -> None:
    model = sharded(Model((1, 2)), fake_group)
    with pytest.raises(NotRunnableError, match="none of the layers ran before it"):
        model(torch.randn(2, 6, 4))


def test_a_model_that_ends_early_is_refused_rather_than_returned_in_parts(
    fake_group: FakeGroup,
) -> None:
    model = sharded(Model((0, 1)), fake_group)
    with pytest.raises(NotRunnableError, match="ends after layer 1 of 3"):
        model(torch.randn(2, 6, 4))


def test_a_layer_in_the_middle_may_be_skipped(fake_group: FakeGroup) -> None:
    model = sharded(Model((0, 2)), fake_group)
    assert model(torch.randn(2, 6, 4)).shape == (2, 6, 4)


def test_after_a_failed_forward_the_next_one_starts_afresh(fake_group: FakeGroup) -> None:
    model = sharded(Model((0, 1)), fake_group)
    with pytest.raises(NotRunnableError, match="ends after"):
        model(torch.randn(2, 6, 4))
    model.order = (0, 1, 2)
    assert model(torch.randn(2, 8, 4)).shape == (2, 8, 4)


def test_a_region_that_is_given_something_else_than_the_stream_is_refused(
    fake_group: FakeGroup,
) -> None:
    model = sharded(Model(), fake_group)
    inner = model.layers[0].mlp
    model.layers[0].mlp = Flat(inner)
    with pytest.raises(NotRunnableError, match=r"layers\.0\.mlp is \[6, 4\].*\[batch, 3, features"):
        model(torch.randn(2, 6, 4))


class Flat(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.inner(hidden.flatten(0, 1))
        return out.view_as(hidden)


def test_a_copy_of_the_model_has_a_stream_of_its_own(fake_group: FakeGroup) -> None:
    model = sharded(Model((0, 1)), fake_group)
    other = copy.deepcopy(model)
    other.order = (0, 1, 2)
    with pytest.raises(NotRunnableError, match="ends after"):
        model(torch.randn(2, 6, 4))
    assert other(torch.randn(2, 8, 4)).shape == (2, 8, 4)


def test_restoring_takes_the_stream_out(fake_group: FakeGroup) -> None:
    model = sharded(Model(), fake_group)
    hpx.restore(model)
    assert model(torch.randn(2, 7, 4)).shape == (2, 7, 4)
    assert [layer.lengths for layer in model.layers] == [[7]] * 3


def test_norms_under_sequence_parallelism_need_a_reduction(fake_group: FakeGroup) -> None:
    fake_group(0, 2)
    plan = ShardingPlan(PLAN, default="replicate")
    run = hpx.run(Model(), plan, "tp=2", SP)
    reduce = {run.graph.path(n.id): n.props["reduce"] for n in run.graph.parameters()}
    assert reduce["layers.0.norm.weight"] == ("tp",)
    assert reduce["layers.0.mixer.weight"] == ()
    told = run.explain("layers.0.norm.weight")
    assert "read for the positions that a rank has" in str(told)


def test_a_model_of_one_layer_cuts_and_gathers_there(fake_group: FakeGroup) -> None:
    model = Model((0,))
    model.layers = model.layers[:1]
    sharded(model, fake_group)
    assert model(torch.randn(2, 6, 4)).shape == (2, 6, 4)


def test_a_model_without_layers_is_refused_before_anything_changes(fake_group: FakeGroup) -> None:
    model = nn.ModuleDict({"mlp": Mlp()})
    with pytest.raises(ManyErrors, match="no layers of which the sequence could be cut"):
        sharded(model, fake_group)


class States(dict[str, Any]):
    """As the outputs of transformers: items are attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self.values())


class Recording(Model):
    """It returns what stands between its layers as well."""

    def forward(self, hidden: Tensor) -> Any:
        states = []
        for layer in self.layers:
            hidden = layer(hidden)[0]
            states.append(hidden)
        return States(last_hidden_state=hidden, hidden_states=tuple(states))


def test_hidden_states_that_a_model_returns_are_whole(fake_group: FakeGroup) -> None:
    out = sharded(Recording(), fake_group)(torch.randn(2, 6, 4))
    assert [tuple(state.shape) for state in out.hidden_states] == [(2, 6, 4)] * 3
    assert out.last_hidden_state.shape == (2, 6, 4)


def test_the_bundled_model_runs_with_its_causal_attention(fake_group: FakeGroup) -> None:
    fake_group(0, 2)
    model = tiny_llama()
    hpx.apply(model, ShardingPlan(LLAMA, default="replicate"), "tp=2", SP)
    assert model(torch.randint(256, (2, 8))).shape == (2, 8, 256)


class Beside(Mlp):
    """It reads another input of its stream, by a name that attention has for one."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []

    def forward(self, hidden: Tensor, key_value_states: Tensor | None = None) -> Tensor:
        assert key_value_states is not None
        self.lengths.append(key_value_states.shape[1])
        return super().forward(hidden)


class BesideLayer(nn.Module):
    def __init__(self, other: Tensor | None) -> None:
        super().__init__()
        self.mlp = Beside()
        self.other = other

    def forward(self, hidden: Tensor) -> Tensor:
        other = hidden if self.other is None else self.other
        out: Tensor = self.mlp(hidden, key_value_states=other)
        return out


def beside(other: Tensor | None, world: FakeGroup) -> Any:
    layers = nn.Sequential(BesideLayer(other), BesideLayer(other))
    return sharded(nn.ModuleDict({"layers": layers}), world)["layers"]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("other", "length"), [(None, 6), (torch.ones(2, 5, 4), 5)])
def test_the_stream_by_another_name_is_gathered_and_another_sequence_is_not(
    other: Tensor | None, length: int, training: bool, fake_group: FakeGroup
) -> None:
    layers = beside(other, fake_group)
    with torch.set_grad_enabled(training):
        layers(torch.randn(2, 6, 4))
    assert [layer.mlp.lengths for layer in layers] == [[length], [length]]


@pytest.mark.parametrize("training", [True, False])
def test_another_sequence_as_long_as_a_part_of_the_stream_is_refused(
    training: bool, fake_group: FakeGroup
) -> None:
    layers = beside(torch.ones(2, 3, 4), fake_group)
    with torch.set_grad_enabled(training), pytest.raises(NotRunnableError, match="cannot be told"):
        layers(torch.randn(2, 6, 4))


# -- code between the boundaries -----------------------------------------------------------------


class Told(Model):
    """Its code between the layers is what a test says."""

    def __init__(self, between: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.between = between

    def forward(self, hidden: Tensor) -> Tensor:
        first = hidden
        for layer in self.layers:
            hidden = self.between(layer(hidden)[0], first)
        return hidden


MIXES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a mean over the tokens": lambda x, _: x - x.mean(1, keepdim=True),
    "a mean over everything": lambda x, _: x - x.mean(),
    "a sum over no dim in particular": lambda x, _: x - x.sum(None),
    "a deviation over everything": lambda x, _: x / x.std(),
    "the place of the largest": lambda x, _: x + x.argmax(),
    "a shift": lambda x, _: x.roll(1, 1),
    "a padded shift": lambda x, _: nn.functional.pad(x, (0, 0, 1, -1)),
    "the first token": lambda x, _: x + x[:, :1],
    "the last token": lambda x, _: x + x[:, -1].unsqueeze(1),
    "tokens by number": lambda x, _: x + x[:, torch.tensor([0])],
    "the last token of each row": lambda x, _: x + x[torch.arange(2), -1].unsqueeze(1),
    "gathered tokens": lambda x, _: x + x.gather(1, torch.zeros(2, 1, 4, dtype=torch.int64)),
    "windows of tokens": lambda x, _: x + x.unfold(1, 2, 1).mean((1, 3)).unsqueeze(1),
    "a mean over the last dim of another layout": lambda x, _: x - x.mT.mean(-1).unsqueeze(1),
    "attention without weights": lambda x, _: torch.softmax(x @ x.mT, -1) @ x,
    "a product that sums over tokens": lambda x, _: torch.ones(2, x.shape[1], x.shape[1]) @ x,
    "a softmax over tokens": lambda x, _: x.softmax(1),
    "the whole embedding": lambda x, first: x + first,
    "a row for each position": lambda x, first: x * first[0],
}


@pytest.mark.parametrize("what", MIXES)
def test_code_between_layers_that_looks_at_other_positions_is_refused(
    what: str, fake_group: FakeGroup
) -> None:
    model = sharded(Told(MIXES[what]), fake_group)
    for _ in range(2):
        with pytest.raises(
            NotRunnableError, match=r"looks at other positions: .* a rank has 3 of 6"
        ):
            model(torch.randn(2, 6, 4))


POINTWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a mean over features": lambda x, _: x - x.mean(-1, keepdim=True),
    "some features": lambda x, _: x + x[..., :1] + x[:, :, -1:],
    "one flat list of tokens": lambda x, _: (x.flatten(0, 1) * 2).view_as(x),
    "all positions": lambda x, _: x[:, :].clone(),
    "a product with one matrix for each row": lambda x, _: x @ torch.ones(2, 4, 4),
    "features in another order": lambda x, _: x[..., torch.arange(4).flip(0)],
}


@pytest.mark.parametrize("what", POINTWISE)
def test_code_between_layers_that_works_position_by_position_runs(
    what: str, fake_group: FakeGroup
) -> None:
    model = sharded(Told(POINTWISE[what]), fake_group)
    for length in (6, 7, 12, 3):  # 3 and 6, 6 and 12: what is whole here is a part there
        assert model(torch.randn(2, length, 4)).shape == (2, length, 4)


def test_one_run_is_watched_to_its_end_and_no_other(fake_group: FakeGroup) -> None:
    seen: list[bool] = []

    def watched(x: Tensor, _first: Tensor) -> Tensor:
        seen.append(_get_current_dispatch_mode() is not None)
        return x

    model = sharded(Told(watched), fake_group)
    for length in (2, 6, 6):  # one position on each rank tells nothing
        model(torch.randn(2, length, 4))
    assert seen == [True] * 6 + [False] * 3
    assert _get_current_dispatch_mode() is None


def test_a_run_that_fails_or_is_interrupted_leaves_no_watch_that_refuses(
    fake_group: FakeGroup,
) -> None:
    def interrupted(_x: Tensor, _first: Tensor) -> Tensor:
        raise KeyboardInterrupt

    model = sharded(Told(interrupted), fake_group)
    with pytest.raises(KeyboardInterrupt):
        model(torch.randn(2, 6, 4))
    assert torch.randn(2, 3, 4).mean(1).shape == (2, 4)
    model.between = lambda x, _: x
    assert model(torch.randn(2, 6, 4)).shape == (2, 6, 4)
    assert _get_current_dispatch_mode() is None
