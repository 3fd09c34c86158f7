"""Siblings that are alike are imported from the first; what differs in anything is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from hpx.bundled import tiny_llama, tiny_moe
from hpx.errors import InputError
from hpx.graph import ModuleGraph, from_module
from hpx.graph.jsonform import FoldedTree, graph_to_json


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.index = 7
        self.up = nn.Linear(4, 6)
        self.act: nn.Module | None = nn.GELU()
        self.down = nn.Linear(6, 4)


class Experts(nn.ModuleList):
    """A list that a checker knows the elements of."""

    def one(self, index: int) -> Expert:
        found = self[index]
        assert isinstance(found, Expert)
        return found

    def all(self) -> list[Expert]:
        return [self.one(index) for index in range(len(self))]


def experts(count: int = 6) -> Experts:
    return Experts(Expert() for _ in range(count))


def one_by_one(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> ModuleGraph:
    """The import without the short cut."""
    with monkeypatch.context() as patch:
        patch.setattr(from_module, "_MANY", 10**9)
        return ModuleGraph.from_module(model)


def put_hook(model: Experts) -> None:
    model.one(3).up.register_forward_pre_hook(lambda module, args: None)


def put_buffer(model: Experts) -> None:
    model.one(3).register_buffer("scale", torch.ones(1))


def tie_across(model: Experts) -> None:
    model.one(4).up.weight = model.one(1).up.weight


def tie_within_each(model: Experts) -> None:
    for one in model.all():
        one.other = one.up


def tie_memory(model: Experts) -> None:
    model.one(4).up.weight = nn.Parameter(model.one(1).up.weight.data)


def put_twice(model: Experts) -> None:
    model[5] = model[2]


def other_integer(model: Experts) -> None:
    model.one(3).index = 8


def flag_for_integer(model: Experts) -> None:
    model.one(3).index = True


def tensor_attribute(model: Experts) -> None:
    model.one(3).table = torch.ones(2)


def attribute_of_parameter(model: Experts) -> None:
    model.one(3).up.weight.tag = "special"  # type: ignore[attr-defined]


def frozen(model: Experts) -> None:
    model.one(3).down.bias.requires_grad_(False)


def other_shape(model: Experts) -> None:
    model.one(3).down = nn.Linear(6, 4, bias=False)


def other_dtype(model: Experts) -> None:
    model.one(3).down.to(torch.bfloat16)


def other_class(model: Experts) -> None:
    model.one(3).act = nn.ReLU()


def other_strides(model: Experts) -> None:
    model.one(3).up.weight = nn.Parameter(torch.ones(4, 6).t())


def own_forward(model: Experts) -> None:
    model.one(3).forward = lambda x: x


def nothing(model: Experts) -> None:
    pass


def no_bias_anywhere(model: Experts) -> None:
    for one in model.all():
        one.up.register_parameter("bias", None)


def no_act_anywhere(model: Experts) -> None:
    for one in model.all():
        one.act = None


@pytest.mark.parametrize(
    "change",
    [
        nothing,
        put_hook,
        put_buffer,
        tie_across,
        tie_within_each,
        tie_memory,
        put_twice,
        other_integer,
        flag_for_integer,
        tensor_attribute,
        attribute_of_parameter,
        frozen,
        other_shape,
        other_dtype,
        other_class,
        other_strides,
        own_forward,
        no_bias_anywhere,
        no_act_anywhere,
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_the_short_cut_gives_the_graph_of_an_import_one_by_one(
    change: Callable[[Experts], None], nested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = experts()
    model: nn.Module = inner
    if nested:
        layers = [nn.ModuleDict({"experts": experts()}) for _ in range(5)]
        inner = experts()
        layers[2]["experts"] = inner
        model = nn.ModuleList(layers)
    change(inner)
    assert ModuleGraph.from_module(model) == one_by_one(model, monkeypatch)


@pytest.mark.parametrize("model", [tiny_llama(), tiny_moe(), tiny_llama(tied=True)])
def test_bundled_models_import_equally_either_way(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ModuleGraph.from_module(model)
    assert found == one_by_one(model, monkeypatch)
    assert FoldedTree(graph_to_json(found)).expand() == found


def test_a_later_parameter_that_is_one_of_a_twin_is_a_second_name() -> None:
    inner = experts()
    model = nn.ModuleDict({"experts": inner, "head": nn.Linear(4, 6)})
    head = model["head"]
    assert isinstance(head, nn.Linear)
    head.weight = inner.one(5).up.weight
    graph = ModuleGraph.from_module(model)
    node = graph.get("head.weight")
    assert graph.paths(node.id) == ["experts.5.up.weight", "head.weight"]


def test_a_later_overlap_with_a_twin_names_it() -> None:
    inner = experts()
    model = nn.ModuleDict({"experts": inner, "head": nn.Linear(4, 3)})
    head = model["head"]
    assert isinstance(head, nn.Linear)
    head.weight = nn.Parameter(inner.one(5).up.weight.data[:3])
    with pytest.raises(InputError, match=r"overlaps a part of 'experts\.5\.up\.weight'"):
        ModuleGraph.from_module(model)


def test_a_cycle_through_a_twin_names_both_ends() -> None:
    inner = experts()
    model = nn.ModuleDict({"experts": inner})
    last = inner.one(5)
    last.up.back = last
    with pytest.raises(InputError, match=r"'experts\.5\.up\.back' is 'experts\.5'"):
        ModuleGraph.from_module(model)
