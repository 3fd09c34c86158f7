"""Colwise and rowwise matrices of a block belong together; what is summed is summed once."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from torch import nn

import hpx
from hpx import HpxError, ShardingPlan
from hpx.check.pairing import summed_twice, unpaired
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleSpec
from hpx.testing import graph_of
from tests.cases.models import Attention, holding
from tests.hpx.check.asking import EMBEDDING, LINEAR, ask, levels, where

SHAPES = {"mlp.up.weight": (16, 8), "mlp.down.weight": (8, 16)}
CUT = {"mlp.up.weight": "tp:S(0)", "mlp.down.weight": "tp:S(1)"}
QKV = {"attn.{q,k,v}_proj.weight": {"tp": "S(0)"}}
COL = {"tp": "S(0)"}
LOST = "its outputs are cut, and no rowwise matrix takes them"


def mlp(
    layouts: Mapping[str, str], more: Mapping[str, tuple[int, ...]] | None = None
) -> ModuleGraph:
    shapes = {**SHAPES, **(more or {})}
    classes = {name.rpartition(".")[0]: EMBEDDING if "embed" in name else LINEAR for name in shapes}
    return graph_of(
        shapes, classes=classes, layouts={name: layouts.get(name, "R") for name in shapes}
    )


def test_a_pair_is_silent() -> None:
    assert ask(unpaired, mlp(CUT)) == []


def test_whole_layers_are_silent() -> None:
    assert ask(unpaired, mlp({})) == []


def test_nothing_is_unpaired_where_tp_is_not_active() -> None:
    assert ask(unpaired, mlp({"mlp.up.weight": "tp:S(0)"}), "dp=2,tp=1") == []


def test_a_colwise_matrix_that_nobody_takes_is_a_warning_with_its_numbers() -> None:
    graph = mlp({"mlp.side.weight": "tp:S(0)"}, {"mlp.side.weight": (24, 8)})
    (problem,) = found = ask(unpaired, graph)
    assert levels(found) == ["warning"]
    assert where(graph, found) == [["mlp.side.weight"]]
    assert problem.text == f"{LOST}: it has 24, and no layer near it takes as many"
    assert "replicate it" in problem.hint


def test_the_whole_layer_that_takes_the_outputs_of_a_colwise_one_is_named() -> None:
    graph = mlp({"mlp.up.weight": "tp:S(0)"})
    (problem,) = found = ask(unpaired, graph)
    assert where(graph, found) == [["mlp.up.weight"]]
    assert problem.text == f"{LOST}: down takes as many, and is whole"


def test_r9_a_rowwise_matrix_of_whole_inputs_is_flagged_with_its_edge_state() -> None:
    graph = mlp({"mlp.down.weight": "tp:S(1)"})
    (problem,) = found = ask(unpaired, graph)
    assert where(graph, found) == [["mlp.down.weight"]]
    assert problem.text.endswith(
        "a rank takes some of 16 inputs, and what comes in is whole (edge state: R)"
    )


def test_an_embedding_cut_on_its_width_is_a_warning() -> None:
    graph = mlp({**CUT, "embed.weight": "tp:S(1)"}, {"embed.weight": (32, 8)})
    assert [p.text.partition(":")[0] for p in ask(unpaired, graph)] == [
        "an embedding is cut on its width"
    ]


def test_layers_of_equal_blocks_are_told_once() -> None:
    shapes = {f"layers.{i}.up.weight": (16, 8) for i in range(3)}
    classes = {name.removesuffix(".weight"): LINEAR for name in shapes}
    graph = graph_of(shapes, classes=classes, layouts=dict.fromkeys(shapes, "tp:S(0)"))
    (problem,) = ask(unpaired, graph)
    assert len(problem.nodes) == 3


def test_the_embedding_of_a_tree_of_names_is_not_taken_for_an_unpaired_layer() -> None:
    graph = graph_of(
        {**SHAPES, "embed_tokens.weight": (32, 8)},
        layouts={**CUT, "embed_tokens.weight": "tp:S(0)"},
        classes=dict.fromkeys(("mlp", "mlp.up", "mlp.down", "embed_tokens", ""), ""),
    )
    graph.has_structure = False
    assert ask(unpaired, graph) == []


def test_q_k_v_cut_and_o_whole_is_a_warning_of_the_run() -> None:
    model = holding(Attention(4, 4, 4, 16, num_heads=4))
    done = hpx.run(model, ShardingPlan(QKV, default="replicate"), "tp=2")
    (problem,) = done.problems
    assert (problem.level, problem.text.partition(":")[0]) == ("warning", LOST)
    assert [done.graph.path(node) for node in problem.nodes] == [
        f"attn.{name}_proj.weight" for name in "qkv"
    ]


def test_q_k_v_cut_and_o_whole_is_an_error_with_insert_collectives() -> None:
    model = holding(Attention(4, 4, 4, 16, num_heads=4))
    plan = ShardingPlan(QKV, default="replicate")
    with pytest.raises(HpxError, match=LOST):
        hpx.run(model, plan, "tp=2", "@default, insert-collectives")


def test_an_attention_cut_on_q_k_v_and_o_is_silent() -> None:
    plan = ShardingPlan({**QKV, "attn.o_proj.weight": {"tp": "S(1)"}})
    assert hpx.run(holding(Attention(4, 4, 4, 16, num_heads=4)), plan, "tp=2").problems == ()


def test_r8_a_rowwise_bias_is_added_once_and_no_problem() -> None:
    model = nn.ModuleDict(
        {"mlp": nn.ModuleDict({"up": nn.Linear(8, 16), "down": nn.Linear(16, 8)})}
    )
    plan = ShardingPlan({"mlp.up.weight": {"tp": "S(0)"}, "mlp.down.weight": {"tp": "S(1)"}})
    done = hpx.run(model, plan, "tp=4")
    assert done.problems == ()
    assert "added once after the reduction" in str(done.explain("mlp.down.bias"))


def test_r9_a_boundary_that_is_to_sum_what_is_summed_is_flagged_as_whole() -> None:
    graph = mlp(CUT)
    (problem,) = ask(summed_twice, graph, boundaries={"mlp": {"output": "R"}})
    assert problem.level == "info"
    assert "that it is already (edge state: R): mlp.down is summed where it stands" in problem.text


def test_boundaries_without_a_declaration_are_silent() -> None:
    assert ask(summed_twice, mlp(CUT)) == []


def test_r9_a_rowwise_layer_with_a_hook_of_its_own_may_be_summed_twice() -> None:
    graph = mlp(CUT)
    down = graph.get("mlp.down")
    spec = ModuleSpec(LINEAR, hooks=("forward",))
    graph.nodes[down.id] = graph.module(down.id)._replace(spec=spec)
    (problem,) = ask(summed_twice, graph)
    assert (problem.level, problem.nodes) == ("warning", (down.id,))
    assert "hooks of its own (forward): if one of them sums too" in problem.text


def test_a_whole_vector_that_may_stand_on_either_side_of_a_sum_is_a_remark() -> None:
    graph = mlp(CUT, {"mlp.scale.weight": (8, 8)})
    found = ask(unpaired, graph)
    assert (levels(found), where(graph, found)) == (["info"], [["mlp.scale.weight"]])


def test_a_bias_that_contradicts_its_weight_is_told_once() -> None:
    model = nn.ModuleDict(
        {"mlp": nn.ModuleDict({"up": nn.Linear(8, 16), "down": nn.Linear(16, 8)})}
    )
    rules = {"mlp.up.*": {"tp": "S(0)"}, "mlp.down.weight": {"tp": "S(1)"}, "mlp.down.bias": COL}
    done = hpx.run(model, ShardingPlan(rules), "tp=2")
    (problem,) = done.problems
    assert problem.text.startswith("mlp.down.bias is tp:S(0), and its weight tp:S(1) asks for R")


def test_the_matrices_of_an_adapter_are_left_to_the_check_of_pairs() -> None:
    shapes = {**SHAPES, "mlp.up.lora_B.weight": (16, 4)}
    layouts = {**CUT, "mlp.up.lora_B.weight": "tp:S(0)"}
    graph = graph_of(shapes, classes={"mlp.up": LINEAR, "mlp.down": LINEAR}, layouts=layouts)
    assert ask(unpaired, graph) == []
