"""Values that are made so that going through them, or printing them, has no end."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from torch import nn

from hpx.inert import open_inert
from hpx.inert.contents import mapping_of
from hpx.inert.dtensor import placed_as
from hpx.inert.errors import DamagedError
from hpx.inert.rebuild import call_of
from hpx.inert.values import Name, Object, Storage, Tensor

TENSOR = Tensor(Storage("0", "float32", 4, "cpu", 16), 0, (4,), (1,), False, "float32")


def unfolding() -> object:
    """A short value whose text has ten billion parts."""
    value: object = "x"
    for _ in range(10):
        value = [value] * 10
    return value


@pytest.mark.parametrize(
    ("attribute", "key", "kept"),
    [
        ("_tp_plan", "tp_plan", {"bias": "colwise"}),
        ("_ep_plan", "ep_plan", {"bias": "colwise"}),
        ("all_tied_weights_keys", "tied", [["colwise", "bias"]]),
    ],
)
def test_what_a_model_declares_is_not_printed_unless_it_is_text(
    attribute: str, key: str, kept: object, tmp_path: Path
) -> None:
    model = nn.Linear(2, 2)
    setattr(model, attribute, {"weight": unfolding(), "bias": "colwise"})
    torch.save(model, tmp_path / "m.pt")
    assert open_inert(tmp_path / "m.pt").hints[key] == kept


def test_a_config_that_contains_itself_is_read_once(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    config = Namespace(n_head=4)
    config.text_config = vars(config)
    vars(model)["config"] = config
    torch.save(model, tmp_path / "m.pt")
    assert open_inert(tmp_path / "m.pt").hints["config"] == {"n_head": 4}


def test_a_number_of_a_config_that_is_too_large_to_print_is_left_out(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    vars(model)["config"] = Namespace(n_head=4, n_layer=1 << 20_000)
    torch.save(model, tmp_path / "m.pt")
    assert open_inert(tmp_path / "m.pt").hints["config"] == {"n_head": 4}


def test_names_of_axes_that_are_no_text_are_not_printed() -> None:
    mesh = Object(None, ())
    mesh.state = {
        "_layout": Object(None, (), {"shape": (2, 4)}),
        "_mesh_dim_names": ("dp", unfolding()),
    }
    whole = TENSOR.copy()
    whole.cls = "torch.distributed.tensor.DTensor"
    replicate = Object(Name("torch.distributed.tensor.placement_types.Replicate", None), ())
    spec = Object(None, (), {"mesh": mesh, "placements": (replicate, replicate)})
    whole.extra = {"_spec": spec}
    assert placed_as(whole) == (("axis0", 2, "R"), ("axis1", 4, "R"))


def test_a_parameter_is_not_made_of_any_number_of_values() -> None:
    make = call_of("torch._utils._rebuild_parameter")
    assert make is not None
    with pytest.raises(DamagedError, match="made of too many values"):
        make((TENSOR, True, None, *range(1000)))


def test_what_is_no_mapping_is_gone_through_once() -> None:
    value = Object(None, ())
    value.items = [("a", 1), ("b", 2), "no pair"]
    assert mapping_of(value) is None
    assert value.items == []
