"""Whole modules that were pickled, read without their classes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from hpx.errors import InputError, TooLargeError, UnsafeInputError
from hpx.graph.sources import open_model
from hpx.inert import modules, open_inert


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("m.pt")


def test_a_module_has_its_structure(file: Path) -> None:
    torch.save(nn.Sequential(nn.Linear(2, 3), nn.MultiheadAttention(4, 2)), file)
    graph = open_inert(file)
    assert graph.has_structure
    assert [node.spec.short_cls for node in graph.modules()][:3] == [
        "Sequential",
        "Linear",
        "MultiheadAttention",
    ]
    attention = graph.module(graph.get("1").id)
    assert attention.attribute("num_heads") == 2


def test_a_module_inside_a_checkpoint_is_found(file: Path) -> None:
    torch.save({"epoch": 3, "model": nn.Linear(2, 3), "optimizer": None}, file)
    graph = open_inert(file)
    assert graph.source == "checkpoint:m.pt[model]"
    assert [graph.path(node.id) for node in graph.parameters()] == ["weight", "bias"]


def test_a_run_refuses_a_module_in_one_line(file: Path) -> None:
    torch.save(nn.Linear(2, 2), file)
    with pytest.raises(
        UnsafeInputError, match=r"^refused m\.pt: it needs torch\.nn.*model:factory|Fix"
    ):
        open_model("m.pt")


def test_a_module_inside_itself_is_refused(file: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model._modules["self"] = model
    torch.save(model, file)
    with pytest.raises(
        InputError, match=r"^m\.pt: module 'self' is 'the model', which contains it"
    ):
        open_inert(file)


def test_what_is_no_module_among_the_modules_is_refused(file: Path) -> None:
    model = nn.Sequential()
    model._modules["x"] = 3  # type: ignore[assignment]
    torch.save(model, file)
    with pytest.raises(InputError, match="'x' is a int where a module belongs"):
        open_inert(file)


@pytest.mark.parametrize("name", ["a.b", "", 3])
def test_a_name_that_no_module_takes_is_refused(file: Path, name: str) -> None:
    model = nn.Sequential()
    model._modules[name] = nn.Linear(2, 2)
    torch.save(model, file)
    with pytest.raises(InputError, match="text without dots"):
        open_inert(file)


def test_a_part_of_another_parameter_is_refused(file: Path) -> None:
    model = nn.Linear(2, 4)
    model.part = nn.Parameter(model.weight.data[1:])
    torch.save(model, file)
    with pytest.raises(InputError, match=r"'part' \[3, 2\] overlaps a part of 'weight' \[4, 2\]"):
        open_inert(file)


def test_tables_without_end_are_too_large(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "_MOST_PLACES", 10)
    torch.save(nn.Sequential(*(nn.Linear(2, 2) for _ in range(5))), file)
    with pytest.raises(TooLargeError, match="too many parts"):
        open_inert(file)
