"""The pass ``fx-transform``, from the log to the model and back."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore

import hpx


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(torch.relu(self.up(x)))
        return out


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Mlp(), Mlp()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.a(x) if x.sum() > 0 else x
        return out


def to_gelu(module: fx.GraphModule) -> None:
    """Every relu becomes a gelu, in place."""
    for node in module.graph.nodes:
        if node.target is torch.relu:
            node.target = functional.gelu


def with_dropout(module: fx.GraphModule) -> fx.GraphModule:
    """A new module without parameters at the end, in another graph module."""
    module.add_submodule("late", nn.Dropout(0.0))
    end = next(node for node in module.graph.nodes if node.op == "output")
    with module.graph.inserting_before(end):
        end.args = (module.graph.call_module("late", end.args),)
    return fx.GraphModule(module, module.graph)


def with_linear(module: fx.GraphModule) -> None:
    """A new layer, whose layout nobody has decided."""
    module.add_submodule("late", nn.Linear(4, 4))
    end = next(node for node in module.graph.nodes if node.op == "output")
    with module.graph.inserting_before(end):
        end.args = (module.graph.call_module("late", end.args),)


def broken(module: fx.GraphModule) -> None:
    raise ValueError("no such luck")


def pipeline(target: str = "layers.*", using: str = "to_gelu") -> str:
    return f"fx-transform{{target={target}, using=tests.passes.test_fx_transform:{using}}}"


def applied(model: nn.Module, text: str) -> nn.Module:
    hpx.apply(model, hpx.ShardingPlan({}, default="replicate"), "dp=1", text)
    return model


def gelu_of(model: Model, x: Tensor) -> Tensor:
    for layer in model.layers:
        assert isinstance(layer, Mlp)
        x = x + layer.down(functional.gelu(layer.up(x)))
    return x


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
class TestOnAModel:
    def test_the_model_computes_what_the_changed_graph_says(self) -> None:
        x = torch.randn(3, 4)
        expected = gelu_of(Model(), x)
        assert torch.equal(applied(Model(), pipeline())(x), expected)

    def test_only_the_target_is_changed(self) -> None:
        model = applied(Model(), pipeline("layers.1"))
        assert [("forward" in vars(m)) for m in model.get_submodule("layers").children()] == [
            False,
            True,
        ]

    def test_parameters_stay_the_objects_that_they_were(self) -> None:
        model = Model()
        before = dict(model.named_parameters())
        after = dict(applied(model, pipeline()).named_parameters())
        assert list(before) == list(after)
        assert all(before[name] is after[name] for name in before)

    def test_hooks_of_what_is_inside_still_run(self) -> None:
        model = Model()
        calls: list[str] = []
        model.get_submodule("layers.0.up").register_forward_hook(lambda *_: calls.append("up"))
        applied(model, pipeline())(torch.randn(3, 4))
        assert calls == ["up"]

    def test_a_module_without_tensors_may_be_added_and_goes_again(self) -> None:
        model = applied(Model(), pipeline(using="with_dropout"))
        assert isinstance(model.get_submodule("layers.0.late"), nn.Dropout)
        x = torch.randn(3, 4)
        assert torch.equal(model(x), Model()(x))
        hpx.restore(model)
        assert [name for name, _ in model.named_modules() if name.endswith("late")] == []

    def test_restore_takes_it_back(self) -> None:
        x = torch.randn(3, 4)
        model = hpx.restore(applied(Model(), pipeline()))
        assert torch.equal(model(x), Model()(x))
        assert not any("forward" in vars(module) for module in model.modules())

    def test_a_copy_computes_with_its_own_weights(self) -> None:
        model = applied(Model(), pipeline())
        twin = copy.deepcopy(model)
        x = torch.randn(3, 4)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.zero_()
        assert torch.equal(model(x), gelu_of(Model(), x))
        assert torch.equal(twin(x), x)

    def test_added_parameters_are_refused_and_the_model_stays(self) -> None:
        model = Model()
        with pytest.raises(hpx.HpxError, match="adds late, a Linear"):
            applied(model, pipeline(using="with_linear"))
        x = torch.randn(3, 4)
        assert torch.equal(model(x), Model()(x))
        assert not any("forward" in vars(module) for module in model.modules())

    def test_a_module_that_cannot_be_traced_is_refused(self) -> None:
        with pytest.raises(hpx.HpxError, match=r"cannot be traced.*control flow"):
            applied(nn.ModuleDict({"inner": Branches()}), pipeline("inner"))

    def test_what_a_transform_raises_is_told(self) -> None:
        with pytest.raises(hpx.HpxError, match="broken failed: ValueError: no such luck"):
            applied(Model(), pipeline(using="broken"))


def dry(text: str) -> hpx.Run:
    plan = hpx.ShardingPlan({}, default="replicate")
    return hpx.run(hpx.ModuleGraph.from_module(Model()), plan, "dp=1", text)


def test_one_event_a_module_says_what_is_installed() -> None:
    events = [event for event in dry(pipeline()).events if event.kind == "attach"]
    assert [event.pass_ for event in events] == ["fx-transform", "fx-transform"]
    assert events[0].new == {
        "function": "hpx.flow.transform:install",
        "options": {
            "using": "tests.passes.test_fx_transform:to_gelu",
            "name": "layers.0",
        },
    }


def test_a_target_that_matches_nothing_is_an_error_with_near_names() -> None:
    with pytest.raises(hpx.HpxError, match=r"target 'layer\.0' matches no module.*layers\.0"):
        dry(pipeline("layer.0"))


def test_a_function_that_is_not_there_is_an_error_with_near_names() -> None:
    with pytest.raises(hpx.HpxError, match=r"has no 'to_gelo'.*to_gelu"):
        dry(pipeline(using="to_gelo"))


def test_two_transforms_run_one_after_the_other() -> None:
    run = dry(f"{pipeline()}, {pipeline(using='with_dropout')}")
    assert [step["pass"] for step in run.schedule] == ["fx-transform#1", "fx-transform#2"]
