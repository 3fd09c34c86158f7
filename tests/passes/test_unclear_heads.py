"""Counts of heads of which nothing tells whether what they count is cut."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hpx.errors import HpxError
from hpx.graph import ModuleGraph
from hpx.passes.insert_collectives import InsertCollectives
from hpx.passes.update_heads import UpdateHeads
from hpx.plan import ShardingPlan
from hpx.testing import assert_pass, graph_of, run_pass

LINEAR = "torch.nn.modules.linear.Linear"
MLP = {"fc": (32, 8), "proj": (8, 32)}
MLP_CUT = {"fc": "tp:S(0)", "proj": "tp:S(1)"}
UNCLEAR = "n_head counts heads, and it is unknown whether what it counts is cut"


def block(
    layers: Mapping[str, tuple[int, int]], layouts: Mapping[str, str], count: int = 2
) -> ModuleGraph:
    """Blocks that count heads and hold their layers themselves."""
    shapes = {f"h.{i}.{name}.weight": layers[name] for i in range(count) for name in layers}
    return graph_of(
        shapes,
        attributes={f"h.{i}": {"n_head": 4} for i in range(count)},
        classes={name.removesuffix(".weight"): LINEAR for name in shapes},
        layouts={name: layouts.get(name.split(".", 2)[2][:-7], "R") for name in shapes},
    )


def declaring(names: list[str], boundaries: Mapping[str, object] | None = None) -> ShardingPlan:
    return ShardingPlan({}, default="replicate", heads={"h.*": names}, boundaries=boundaries or {})


ATTENTIONS: list[Mapping[str, tuple[int, int]]] = [
    {"attn_qkv": (24, 8), "attn_out": (8, 8)},
    {"attn_q": (8, 8), "attn_k": (8, 8), "attn_v": (8, 8), "attn_o": (8, 8)},
    {"attn_in": (24, 8), "attn_out": (8, 8)},
    {"self_attn_in_proj": (24, 8), "self_attn_out": (8, 8)},
    {"attn.q_proj": (8, 8), "attn.k_proj": (8, 8), "attn.v_proj": (8, 8), "attn.o_proj": (8, 8)},
]


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_count_stays_where_a_known_projection_is_whole(
    attention: Mapping[str, tuple[int, int]],
) -> None:
    outcome = assert_pass(UpdateHeads(), block({**attention, **MLP}, MLP_CUT), {})
    assert outcome.problems == ()


UNKNOWN: list[Mapping[str, tuple[int, int]]] = [
    {"mix": (24, 8), "back": (8, 8), **MLP},
    {"mix": (8, 8), **MLP},
    MLP,
]


@pytest.mark.parametrize("layers", UNKNOWN)
def test_where_no_projection_is_known_the_count_stays_with_one_warning_and_is_refused_later(
    layers: Mapping[str, tuple[int, int]],
) -> None:
    before = block(layers, MLP_CUT)
    outcome = assert_pass(UpdateHeads(), before, {})
    (problem,) = outcome.problems
    assert (problem.level, problem.text.partition(":")[0]) == ("warning", UNCLEAR)
    assert [before.path(node) for node in problem.nodes] == ["h.0", "h.1"]
    assert "declare it under heads:" in problem.hint
    with pytest.raises(HpxError, match=UNCLEAR):
        run_pass(InsertCollectives(), before)


@pytest.mark.parametrize(("names", "left"), [(["n_head"], 2), ([], 4)])
@pytest.mark.parametrize("layers", UNKNOWN)
def test_the_plan_tells_that_a_count_is_cut_or_whole(
    layers: Mapping[str, tuple[int, int]], names: list[str], left: int
) -> None:
    changes = {f"h.{i}": {"n_head": left} for i in range(2)} if names else {}
    before = block(layers, MLP_CUT)
    outcome = assert_pass(UpdateHeads(), before, changes, plan=declaring(names))
    assert outcome.problems == ()
    boundaries = {"h.*": "none"}
    run_pass(InsertCollectives(), outcome.graph, plan=declaring(names, boundaries))


def test_a_count_is_divided_where_all_layers_are_cut_and_are_no_mlp() -> None:
    before = block({"mix": (8, 8), "back": (8, 8)}, {"mix": "tp:S(0)", "back": "tp:S(1)"})
    outcome = assert_pass(UpdateHeads(), before, {f"h.{i}": {"n_head": 2} for i in range(2)})
    assert outcome.problems == ()


def test_saying_that_the_count_of_cut_heads_stays_is_an_error() -> None:
    before = block({"q_proj": (8, 8), "o_proj": (8, 8)}, {"q_proj": "tp:S(0)", "o_proj": "tp:S(1)"})
    with pytest.raises(HpxError, match="says that its counts stay, and 'n_head' counts cut heads"):
        run_pass(UpdateHeads(), before, plan=declaring([]))
