from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpx.errors import HpxError
from hpx.runtime.experts import StackedExperts, stack_container
from tests.hpx.runtime.expert_models import (
    SIZE,
    Bank,
    Expert,
    Owner,
    Plain,
    assert_same_step,
    numbered,
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


# -- a module like the one before --------------------------------------------------------------


def test_only_stacked_names_are_in_the_module_tree(owner: Owner) -> None:
    names = ["experts.up", "experts.up_bias", "experts.down"]
    assert [name for name, _ in owner.named_parameters()] == names
    assert list(owner.state_dict()) == names
    assert [name for name, _ in owner.named_modules()] == ["", "experts"]


def test_a_stacked_list_is_still_a_list(owner: Owner) -> None:
    experts = owner.experts
    assert isinstance(experts, nn.ModuleList)
    assert isinstance(experts, StackedExperts)
    assert len(experts) == SIZE
    assert [expert.scale for expert in experts] == [1.0, 1.125, 1.25, 1.375]
    assert [expert.scale for expert in experts[1:3]] == [1.125, 1.25]
    assert experts[-1] is experts[3]
    assert experts[2] in experts
    assert owner not in experts


@pytest.mark.parametrize("index", [SIZE, -SIZE - 1])
def test_an_index_beyond_the_experts_is_an_index_error(owner: Owner, index: int) -> None:
    with pytest.raises(IndexError, match=f"index {index} is out of range for 4 experts"):
        owner.experts[index]


def test_a_stacked_dictionary_is_still_a_dictionary() -> None:
    bank = Bank()
    before = dict(bank.items())
    new: Any = stack(bank).module
    assert isinstance(new, nn.ModuleDict)
    assert dict(new.items()) == before
    assert list(new) == list(new.keys()) == list(before)
    assert list(new.values()) == list(before.values())
    assert len(new) == 5
    assert "expert_3" in new
    assert "expert_4" not in new
    assert new["expert_1"] is new.expert_1 is before["expert_1"]
    with pytest.raises(KeyError):
        new["expert_4"]


def test_what_else_stands_in_a_container_stays_there() -> None:
    bank = Bank()
    new: Any = stack(bank).module
    assert new.num_experts == SIZE
    assert new.load is bank.load
    assert new.shared is bank["shared"]
    plain = Plain()
    assert stack(plain).module.get_parameter("gain") is plain.gain


def test_a_container_of_another_class_counts_indexes_and_iterates_its_experts() -> None:
    plain = Plain()
    new: Any = stack(plain).module
    assert issubclass(type(new), Plain)
    assert len(new) == SIZE
    assert list(new) == [new[number] for number in range(SIZE)] == numbered(plain)
    assert new["expert_2"] is plain.expert_2


def test_experts_are_found_by_path(owner: Owner) -> None:
    assert owner.get_submodule("experts.2.up") is owner.experts[2].up


@pytest.mark.parametrize(
    "change",
    [
        lambda experts: experts.append(Expert(9)),
        lambda experts: experts.insert(0, Expert(9)),
        lambda experts: experts.pop(0),
        lambda experts: experts.__setitem__(0, Expert(9)),
        lambda experts: experts.__delitem__(0),
        lambda experts: setattr(experts, "0", Expert(9)),
    ],
)
def test_experts_cannot_be_exchanged_one_by_one(
    owner: Owner, change: Callable[[Any], object]
) -> None:
    with pytest.raises(HpxError, match="stacked experts cannot be added, removed or replaced"):
        change(owner.experts)


def test_a_parameter_of_one_expert_cannot_be_replaced(owner: Owner) -> None:
    with pytest.raises(HpxError, match="expert 1 cannot be replaced one by one"):
        owner.experts[1].down.weight = nn.Parameter(torch.zeros(6, 8))


def test_the_mode_reaches_the_experts(owner: Owner) -> None:
    owner.eval()
    assert not owner.experts[1].drop.training
    owner.train()
    assert owner.experts[1].drop.training


def test_a_function_is_applied_to_modules_inside_experts(owner: Owner) -> None:
    def fill(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.weight, 2.0)
            module.weight.data.add_(1.0)

    owner.apply(fill)
    assert (owner.experts.up == 3.0).all()
    assert (owner.experts.down == 3.0).all()


def test_conversion_reaches_the_slots(owner: Owner, x: Tensor) -> None:
    owner.to(torch.bfloat16)
    assert owner.experts[0].up.weight.dtype == torch.bfloat16
    assert owner(x.bfloat16()).dtype == torch.bfloat16


def test_experts_on_the_meta_device_stay_there() -> None:
    with torch.device("meta"):
        model = Owner()
    stack_in(model)
    assert model(torch.empty(5, 6, device="meta")).is_meta
    assert model.experts[3].up.weight.is_meta


def test_functional_calls_reach_the_slots(whole: Owner, owner: Owner, x: Tensor) -> None:
    owner.eval()
    whole.eval()
    halved = {name: p.detach() / 2 for name, p in owner.named_parameters()}
    for parameter in whole.parameters():
        parameter.data /= 2
    assert torch.equal(torch.func.functional_call(owner, halved, x), whole(x))


def test_a_state_dict_loads_back(owner: Owner, x: Tensor) -> None:
    saved = {name: tensor.clone() for name, tensor in owner.state_dict().items()}
    answer = owner.eval()(x)
    with torch.no_grad():
        for parameter in owner.parameters():
            parameter.zero_()
    owner.load_state_dict(saved, assign=True)
    assert torch.equal(owner(x), answer)


def test_an_expert_has_the_names_that_it_had(whole: Owner, owner: Owner) -> None:
    before, after = whole.experts[1].state_dict(), owner.experts[1].state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert dict(owner.experts[1].down._parameters).keys() == {"weight", "bias"}
    assert dict(owner.experts[1].down._parameters)["bias"] is None


def _pickled(model: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(model))


def _saved(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, _pickled, _saved])
def test_a_copy_is_whole_and_independent(
    copied: Callable[[Owner], Any], whole: Owner, owner: Owner, x: Tensor
) -> None:
    twin = copied(owner)
    assert_same_step(whole, twin, x)
    assert all(parameter.grad is None for parameter in owner.parameters())
    with torch.no_grad():
        twin.experts.down.zero_()
    assert not twin.experts[0].down.weight.any()
    assert owner.experts[0].down.weight.all()
    assert isinstance(twin.experts, nn.ModuleList)


def test_the_container_is_printed_in_one_line(owner: Owner) -> None:
    assert repr(owner.experts) == (
        "StackedModuleList(4 experts: up (4, 8, 6), up_bias (4, 8), down (4, 6, 8))"
    )


# -- forth and back ----------------------------------------------------------------------------


def test_nothing_changes_before_the_exchange_is_made(whole: Owner) -> None:
    tables = [module._parameters for module in whole.experts[0].modules()]
    stack(whole.experts)
    assert all(
        module._parameters is table
        for module, table in zip(whole.experts[0].modules(), tables, strict=True)
    )
    assert not isinstance(whole.experts, StackedExperts)


def test_the_exchange_is_taken_back_to_the_same_objects(whole: Owner) -> None:
    before = [
        (module, module._parameters, list(module._parameters.items())) for module in whole.modules()
    ]
    container = dict(whole.experts.__dict__)
    exchange = stack(whole.experts)
    exchange.change()
    exchange.undo()
    for module, table, content in before:
        assert module._parameters is table
        assert list(table.items()) == content
    assert whole.experts.__dict__ == container


def test_unstacked_experts_are_a_container_of_the_original_class_again(
    whole: Owner, owner: Owner, x: Tensor
) -> None:
    owner.eval()
    names = ("up", "up_bias", "down")
    own = {
        name: [nn.Parameter(slot) for slot in owner.experts.get_parameter(name).detach().clone()]
        for name in names
    }
    exchange = owner.experts.unstack(own)
    exchange.change()
    owner.experts = exchange.module
    assert type(owner.experts) is nn.ModuleList
    assert list(owner.state_dict()) == list(whole.state_dict())
    assert not owner.experts.training
    assert torch.equal(owner(x), whole.eval()(x))
    assert owner.experts.get_parameter("2.down.weight") is own["down"][2]


def test_unstacking_keeps_order_and_other_children() -> None:
    bank = Bank()
    names = [name for name, _ in bank.named_parameters()]
    exchange = stack(bank)
    exchange.change()
    stacked = exchange.module
    own = {
        name: list(map(nn.Parameter, stacked.get_parameter(name).detach()))
        for name in stacked.slots.names
    }
    back = stacked.unstack(own)
    back.change()
    assert type(back.module) is Bank
    assert [name for name, _ in back.module.named_parameters()] == names


def test_unstacking_can_be_taken_back(owner: Owner, x: Tensor) -> None:
    answer = owner.eval()(x)
    own = {name: [nn.Parameter(torch.zeros(()))] * SIZE for name in owner.experts.slots.names}
    exchange = owner.experts.unstack(own)
    exchange.change()
    exchange.undo()
    assert torch.equal(owner(x), answer)


def test_stacked_experts_cannot_be_stacked_again(owner: Owner) -> None:
    with pytest.raises(HpxError, match="stacked already"):
        stack_container(owner.experts, list(owner.experts), {})


def test_a_parameter_without_a_stack_is_an_error(whole: Owner) -> None:
    only = {"up": ("up.weight", nn.Parameter(torch.zeros(SIZE, 8, 6)))}
    with pytest.raises(HpxError, match=r"no stacked parameter for 'up\.bias'"):
        stack_container(whole.experts, list(whole.experts), only)


def test_a_stacked_name_that_the_class_uses_is_an_error() -> None:
    class Named(nn.ModuleList):
        def up(self) -> None: ...

    with pytest.raises(HpxError, match="'up' is an attribute of a Named"):
        stack(Named(Expert(number) for number in range(SIZE)))


def test_a_container_that_has_a_name_of_stacked_containers_is_an_error(whole: Owner) -> None:
    whole.experts.slots = 3
    with pytest.raises(HpxError, match="a ModuleList that has an attribute 'slots'"):
        stack(whole.experts)


def test_experts_that_keep_their_parameters_elsewhere_too_are_refused() -> None:
    experts = nn.ModuleList(nn.LSTM(4, 4) for _ in range(SIZE))
    with pytest.raises(HpxError, match="the experts keep parameters in '_flat_weights' as well"):
        stack(experts)
