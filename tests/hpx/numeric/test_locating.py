"""Where two models part, from what was recorded of them."""

from __future__ import annotations

import torch
from torch import Tensor

from hpx._graph_of import graph_of
from hpx.graph.edit import set_key
from hpx.numeric.locating import Located, Regions, locate
from hpx.numeric.recording import Call, Spot, Value

LAYOUTS = {"mlp.up.weight": "tp:S(0)", "mlp.down.weight": "tp:S(1)"}


def regions() -> Regions:
    graph = graph_of({"mlp.up.weight": (8, 4), "mlp.down.weight": (4, 8)}, layouts=LAYOUTS)
    for name, role in (("mlp", "mlp"), ("mlp.down", "rowwise")):
        found = graph.find(name)
        assert found is not None
        set_key(graph, [found], "boundary", role)
    return Regions(graph)


def spot(module: str, value: Value) -> Spot:
    return Spot(Call(module, 0), value, "")


def found(parts: dict[Spot, tuple[Tensor, Tensor]], expected: dict[Spot, Tensor]) -> Located | None:
    ranks = [{key: pair[rank] for key, pair in parts.items()} for rank in (0, 1)]
    return locate(ranks, expected, regions(), [], 1e-9)


def test_columns_of_a_region_are_put_side_by_side() -> None:
    whole = torch.arange(8.0)
    expected = {spot("mlp.up", "output"): whole}
    assert found({spot("mlp.up", "output"): (whole[:4], whole[4:])}, expected) is None
    swapped = found({spot("mlp.up", "output"): (whole[4:], whole[:4])}, expected)
    assert swapped is not None
    assert (swapped.module, swapped.direction) == ("mlp.up", "forward")


def test_a_sum_that_was_not_made_is_no_part_of_a_whole_output() -> None:
    whole = torch.arange(4.0)
    halves = (whole / 2, whole / 2)
    located = found({spot("mlp.down", "output"): halves}, {spot("mlp.down", "output"): whole})
    assert located is not None
    assert located.module == "mlp.down"


def test_inside_a_region_what_fits_in_no_way_is_not_judged() -> None:
    whole = torch.arange(8.0)
    expected = {spot("mlp.act", "output"): whole}
    assert found({spot("mlp.act", "output"): (whole[:4] + 1, whole[4:])}, expected) is None


def test_a_region_is_named_where_what_its_last_layer_is_given_is_not_known() -> None:
    whole = torch.arange(4.0)
    given, out = spot("mlp.down", "input"), spot("mlp.down", "output")
    expected = {given: torch.arange(8.0), out: whole}
    parts = {given: (torch.ones(4), torch.ones(4)), out: (whole + 1, whole + 1)}
    located = found(parts, expected)
    assert located is not None
    assert located.module == "mlp"
    assert "down" in located.what


def test_backward_the_call_is_named_that_gives_what_is_wrong() -> None:
    whole = torch.arange(4.0)
    out, given = spot("mlp", "output gradient"), spot("mlp", "input gradient")
    expected = {out: whole, given: whole}
    located = found({out: (whole, whole), given: (whole / 2, whole / 2)}, expected)
    assert located is not None
    assert (located.module, located.direction) == ("mlp", "backward")
