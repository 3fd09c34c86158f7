"""Models with experts, small and each with a habit of its own; how tests stack and compare them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from hpx.experts import stacked_name
from hpx.runtime.experts import Exchange, StackedExperts, stack_container

SIZE = 4


class Expert(nn.Module):
    """A bias, an activation, dropout, and something that differs from expert to expert."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.up = nn.Linear(6, 8)
        self.act = nn.GELU()
        self.drop = nn.Dropout(0.5)
        self.down = nn.Linear(8, 6, bias=False)
        self.scale = 1.0 + number / 8
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.down(self.drop(self.act(self.up(x))))
        return out * self.scale


class Owner(nn.Module):
    """Calls each of the experts in a list."""

    def __init__(self, size: int = SIZE) -> None:
        super().__init__()
        self.experts: Any = nn.ModuleList(Expert(number) for number in range(size))

    def forward(self, x: Tensor) -> Tensor:
        for index in range(len(self.experts)):
            x = x + self.experts[index](x)
        return x


class Bank(nn.ModuleDict):
    """Experts by name and a shared one, with a forward of its own."""

    def __init__(self) -> None:
        super().__init__({f"expert_{number}": Expert(number) for number in (2, 0, 1, 3)})
        self.add_module("shared", nn.Linear(6, 6))
        self.register_buffer("load", torch.zeros(SIZE))
        self.num_experts = SIZE

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self["shared"](x)
        for number in range(SIZE):
            out = out + self[f"expert_{number}"](x)
            self.get_buffer("load")[number] += 1
        return out


class Plain(nn.Module):
    """Experts as attributes; one more parameter; a forward that walks through children."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(6))
        for number in range(SIZE):
            self.add_module(f"expert_{number}", Expert(number))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = cast(Expert, self.expert_1)(x) * self.gain
        for child in self.children():
            out = out + child(x)
        return out


def numbered(container: nn.Module) -> list[nn.Module]:
    """The experts of a container in numeric order."""
    found = {
        int(name.removeprefix("expert_")): child
        for name, child in container.named_children()
        if name.removeprefix("expert_").isdigit()
    }
    return [found[number] for number in sorted(found)]


Wrap = Callable[[Tensor], Tensor]


def stack(
    container: nn.Module, wrap: Wrap = lambda whole: whole, **how: Any
) -> Exchange[StackedExperts]:
    experts = numbered(container)
    stacked = {}
    for path, _ in experts[0].named_parameters():
        whole = torch.stack([expert.get_parameter(path).detach() for expert in experts])
        stacked[stacked_name(path)] = (path, nn.Parameter(wrap(whole)))
    return stack_container(container, experts, stacked, **how)


def stack_in(owner: nn.Module, name: str = "experts", **how: Any) -> StackedExperts:
    """Stack the experts in a child of a module, which is armed to run them."""
    exchange = stack(owner.get_submodule(name), **how)
    exchange.change()
    owner.set_submodule(name, exchange.module)
    owner.register_forward_pre_hook(exchange.module.slots.arm)
    owner.register_forward_hook(exchange.module.slots.disarm, always_call=True)
    return exchange.module


def expected(whole: nn.Module, prefix: str, experts: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Gradients of the unsharded model, those of experts stacked."""
    grads = {}
    for path, _ in experts[0].named_parameters():
        parts = [cast(Tensor, expert.get_parameter(path).grad) for expert in experts]
        grads[prefix + stacked_name(path)] = torch.stack(parts)
    inside = {id(p) for expert in experts for p in expert.parameters()}
    for path, parameter in whole.named_parameters():
        if id(parameter) not in inside:
            grads[path] = cast(Tensor, parameter.grad)
    return grads


def assert_same_step(
    whole: nn.Module, stacked: nn.Module, x: Tensor, prefix: str = "experts."
) -> None:
    """Outputs and gradients are equal, bit for bit."""
    answers = []
    for model in (whole, stacked):
        torch.manual_seed(3)
        model.zero_grad()
        answers.append(model(x))
        answers[-1].square().sum().backward()
    assert torch.equal(*answers)
    grads = expected(whole, prefix, numbered(whole.get_submodule(prefix.rstrip("."))))
    assert {name for name, _ in stacked.named_parameters()} == set(grads)
    for name, parameter in stacked.named_parameters():
        assert parameter.grad is not None, name
        assert torch.equal(parameter.grad, grads[name]), name
