from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from hpx import bundled
from tests.hpx.runtime.expert_models import (
    SIZE,
    Bank,
    Owner,
    Plain,
    assert_same_step,
    expected,
    stack,
    stack_in,
)


@pytest.fixture
def whole() -> Owner:
    torch.manual_seed(0)
    return Owner()


@pytest.fixture
def owner(whole: Owner) -> Owner:
    twin = copy.deepcopy(whole)
    stack_in(twin)
    return twin


@pytest.fixture
def x() -> Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


# -- computing as before -----------------------------------------------------------------------


def test_the_bundled_mixture_computes_the_same_outputs_and_gradients() -> None:
    torch.manual_seed(0)
    whole = bundled.tiny_moe().double()
    model = copy.deepcopy(whole)
    for layer in model.model.layers:
        stack_in(layer.get_submodule("mlp"))
    ids = torch.randint(256, (2, 16))
    for each in (whole, model):
        each(ids).square().mean().backward()
    assert torch.equal(whole(ids), model(ids))
    for number in range(2):
        prefix = f"model.layers.{number}.mlp.experts."
        grads = expected(whole, prefix, whole.get_submodule(prefix[:-1]))  # type: ignore[arg-type]
        for name, grad in grads.items():
            if name.startswith(prefix) or ".experts." not in name:
                torch.testing.assert_close(
                    model.get_parameter(name).grad, grad, rtol=1e-12, atol=1e-12
                )


def test_experts_with_bias_dropout_and_own_attributes_compute_the_same(
    whole: Owner, owner: Owner, x: Tensor
) -> None:
    assert_same_step(whole, owner, x)


def test_an_expert_called_outside_of_its_owner_computes_the_same(
    whole: Owner, owner: Owner, x: Tensor
) -> None:
    owner.eval()
    whole.eval()
    owner.experts[2](x).sum().backward()
    whole.experts[2](x).sum().backward()
    assert torch.equal(owner.experts.down.grad[2], whole.experts[2].down.weight.grad)
    assert not owner.experts.down.grad[[0, 1, 3]].any()


def test_a_module_inside_an_expert_can_be_used_alone(whole: Owner, owner: Owner, x: Tensor) -> None:
    assert torch.equal(owner.experts[1].up(x), whole.experts[1].up(x))
    assert torch.equal(owner.experts[1].up.weight, whole.experts[1].up.weight)


def test_a_dictionary_with_a_forward_of_its_own_runs(x: Tensor) -> None:
    whole = nn.Sequential(Bank())
    model = copy.deepcopy(whole)
    exchange = stack(model[0])
    exchange.change()
    model[0] = exchange.module
    assert_same_step(whole, model, x, "0.")
    assert model[0].get_buffer("load").tolist() == [1.0] * SIZE


def test_a_container_of_any_class_runs_through_attributes_and_children(x: Tensor) -> None:
    whole = nn.Sequential(Plain())
    model = copy.deepcopy(whole)
    exchange = stack(model[0])
    exchange.change()
    model[0] = exchange.module
    assert_same_step(whole, model, x, "0.")


def test_frozen_stacks_get_no_gradient(owner: Owner, x: Tensor) -> None:
    owner.experts.requires_grad_(False)
    assert not owner(x).requires_grad


def test_experts_reached_by_an_old_reference_use_the_stacked_parameters(x: Tensor) -> None:
    model = Owner().eval()
    old, first = model.experts, model.experts[0]
    experts = stack_in(model)
    with torch.no_grad():
        experts.get_parameter("down").zero_()
    assert not first(x).any()
    assert not old[3](x).any()


# -- one unbind per forward --------------------------------------------------------------------


def test_slots_come_from_one_unbind_for_each_stacked_parameter(owner: Owner, x: Tensor) -> None:
    with Count() as count:
        owner(x)
    assert count.names.count("unbind") == 3
    assert "select" not in count.names


def test_a_container_with_its_own_forward_unbinds_once_though_its_owner_is_armed(x: Tensor) -> None:
    model = nn.Sequential(Bank())
    stack_in(model, "0")
    with Count() as count:
        model(x)
    assert count.names.count("unbind") == 3


def test_nothing_unbound_is_kept_after_the_forward(owner: Owner, x: Tensor) -> None:
    owner(x)
    assert not owner.experts.slots.armed
    assert not owner.experts.slots._unbound


def test_nothing_unbound_is_kept_after_a_forward_that_fails(owner: Owner) -> None:
    with pytest.raises(RuntimeError):
        owner(torch.randn(5, 7))
    assert not owner.experts.slots.armed
    assert not owner.experts.slots._unbound


def test_a_forward_that_was_interrupted_leaves_no_stale_slots_to_the_next(
    whole: Owner, owner: Owner, x: Tensor
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    handle = owner.experts[3].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        owner(x)
    handle.remove()
    for parameter in owner.experts.parameters():
        parameter.data = parameter.data * 2
    for parameter in whole.parameters():
        parameter.data = parameter.data * 2
    assert_same_step(whole, owner, x)
    assert not owner.experts.slots.armed


def test_an_owner_that_calls_itself_computes_the_same(x: Tensor) -> None:
    class Twice(Owner):
        inner = False

        def forward(self, x: Tensor) -> Tensor:
            if self.inner:
                return super().forward(x)
            self.inner = True
            try:
                return cast(Tensor, self(x)) + super().forward(x)
            finally:
                self.inner = False

    whole = Twice()
    model = copy.deepcopy(whole)
    stack_in(model)
    assert_same_step(whole, model, x)


def test_experts_run_without_gradients_first_still_get_gradients_after(x: Tensor) -> None:
    class Peek(Owner):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                for expert in self.experts:
                    expert(x)
            return super().forward(x)

    whole = Peek()
    model = copy.deepcopy(whole)
    stack_in(model)
    assert_same_step(whole, model, x)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_around_the_owner_changes_nothing(
    reentrant: bool, whole: Owner, owner: Owner, x: Tensor
) -> None:
    class Checkpointed(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, checkpoint(self.inner, x, use_reentrant=reentrant))

    assert_same_step(Checkpointed(whole), Checkpointed(owner), x.requires_grad_(), "inner.experts.")
    assert not owner.experts.slots.armed


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_inside_the_owner_changes_nothing(
    reentrant: bool, x: Tensor
) -> None:
    class Inside(Owner):
        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, checkpoint(super().forward, x, use_reentrant=reentrant))

    whole = Inside()
    model = copy.deepcopy(whole)
    stack_in(model)
    assert_same_step(whole, model, x.requires_grad_())


@pytest.fixture
def compiler() -> Iterator[list[torch.fx.GraphModule]]:
    graphs: list[torch.fx.GraphModule] = []
    torch._dynamo.reset()
    yield graphs
    torch._dynamo.reset()


def test_a_compiled_model_computes_the_same_and_compiles_once(
    compiler: list[torch.fx.GraphModule], x: Tensor
) -> None:
    def keep(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        compiler.append(graph)
        return graph.forward

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Owner().eval()

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.inner(x))

    whole = Around()
    model = copy.deepcopy(whole)
    stack_in(model.inner)
    compiled = torch.compile(model, backend=keep, fullgraph=True)
    for _ in range(3):
        whole.zero_grad()
        model.zero_grad()
        answers = compiled(x), whole(x)
        torch.testing.assert_close(*answers)
        for answer in answers:
            answer.sum().backward()
        grads = expected(whole, "inner.experts.", list(whole.inner.experts))
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, grads[name])
        for each in (whole, model):
            for parameter in each.parameters():
                parameter.data = parameter.data * 0.9
        for expert in model.inner.experts:  # counters are plain integers, which compile in
            expert.calls = 0
    assert len(compiler) == 1
    calls = [node.target for node in compiler[0].graph.nodes if node.op == "call_method"]
    assert calls.count("unbind") == 3


# The hook that arms runs outside of what is compiled, which then takes slots as inputs.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_owner_computes_the_same(
    compiler: list[torch.fx.GraphModule], x: Tensor
) -> None:
    def keep(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        compiler.append(graph)
        return graph.forward

    whole = Owner().eval()
    model = copy.deepcopy(whole)
    stack_in(model)
    compiled = torch.compile(model, backend=keep)
    for _ in range(3):
        for expert in model.experts:
            expert.calls = 0
        torch.testing.assert_close(compiled(x), whole(x))
        for parameter in (*whole.parameters(), *model.parameters()):
            parameter.data = parameter.data * 0.9
    assert len(compiler) == 2  # the hook's unbind, and the forward
