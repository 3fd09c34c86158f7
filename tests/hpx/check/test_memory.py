"""What ranks hold and send: numbers that one can work out by hand."""

from __future__ import annotations

import hpx
from hpx import MeshSpec, ShardingPlan
from hpx.check.gradients import gradient_reductions
from hpx.check.memory import Held, memory
from hpx.check.replicated import REMARK_BYTES, WARNING_BYTES, large_replicated
from hpx.check.subject import Subject
from hpx.check.traffic import Traffic, traffic
from hpx.graph.graph import ModuleGraph
from hpx.testing import graph_of
from tests.hpx.check.asking import EMBEDDING, LINEAR, ask, levels, subject

SHAPES = {"embed.weight": (64, 8), "mlp.up.weight": (16, 8), "mlp.down.weight": (8, 16), "n": (8,)}
CUT = {"embed.weight": "tp:S(0)", "mlp.up.weight": "tp:S(0)", "mlp.down.weight": "tp:S(1)"}
CLASSES = {"embed": EMBEDDING, "mlp.up": LINEAR, "mlp.down": LINEAR}


def block(**how: object) -> ModuleGraph:
    layouts = {name: CUT.get(name, "R") for name in SHAPES}
    return graph_of(SHAPES, classes=CLASSES, layouts=layouts, **how)  # type: ignore[arg-type]


# -- memory ------------------------------------------------------------------------------------


def test_adamw_holds_two_moments_of_the_dtype_of_the_parameter() -> None:
    held = memory(block(), MeshSpec.parse("tp=2")).most
    elements = 32 * 8 + 8 * 8 + 8 * 8 + 8
    assert held == Held(4 * elements, 4 * elements, 8 * elements, 12 * elements)
    assert held.total == 16 * elements


def test_mixed_precision_holds_12_bytes_for_a_bfloat16_element() -> None:
    graph = graph_of({"w": (10, 10)}, dtypes={"w": "bfloat16"})
    held = memory(graph, MeshSpec.parse("tp=1")).most
    assert (held.parameters, held.optimizer, held.mixed_total) == (200, 400, 200 + 200 + 1200)


def test_frozen_parameters_have_no_gradient_and_no_state() -> None:
    graph = graph_of({"w": (10, 10)}, frozen=("w",))
    assert memory(graph, MeshSpec.parse("tp=1")).most == Held(400, 0, 0, 0)


def test_fsdp_cuts_what_tp_left_over_the_data_axis() -> None:
    found = memory(block(), MeshSpec.parse("dp=4,tp=2"))
    assert found.fsdp_most is not None
    assert found.fsdp_most.parameters * 4 == found.most.parameters
    assert found.data == {"dense": 4}


def test_without_a_data_axis_there_is_nothing_that_fsdp_would_cut() -> None:
    assert memory(block(), MeshSpec.parse("tp=2")).fsdp_most is None


def test_replicas_do_not_cut() -> None:
    found = memory(block(), MeshSpec.parse("dp_replicate=4,dp_shard=2,tp=2"))
    assert found.fsdp_most is not None
    assert found.fsdp_most.parameters * 2 == found.most.parameters


def test_experts_are_cut_over_the_data_axis_of_their_own_mesh() -> None:
    graph = graph_of({"experts.w": (8, 4, 4)}, layouts={"experts.w": "ep:S(0)"})
    found = memory(graph, MeshSpec.parse("dp=4,tp=2,ep=4"))
    assert found.fsdp_most is not None
    assert (found.most.parameters, found.fsdp_most.parameters) == (2 * 16 * 4, 16 * 4)
    assert found.data == {"dense": 4, "expert": 2}


def test_uneven_pieces_make_an_imbalance() -> None:
    graph = graph_of({"w": (5, 4)}, layouts={"w": "tp:S(0)"})
    found = memory(graph, MeshSpec.parse("tp=3"))
    assert (found.most.parameters, found.least.parameters) == (2 * 16, 16)
    assert found.imbalance == 1.0


def test_even_pieces_make_none() -> None:
    assert memory(block(), MeshSpec.parse("tp=2")).imbalance == 0


# -- large tensors -----------------------------------------------------------------------------


def replicated(size: int, layout: str = "R") -> ModuleGraph:
    return graph_of({"table.weight": (size // 4 // 8, 8)}, layouts={"table.weight": layout})


def test_a_large_tensor_that_is_whole_on_every_rank_is_a_warning() -> None:
    (problem,) = found = ask(large_replicated, replicated(3 * WARNING_BYTES))
    assert levels(found) == ["warning"]
    assert problem.text == (
        "3.0 GiB replicated on every rank of tp=2: 100 % of the 3.0 GiB of parameters that it holds"
    )


def test_a_tensor_of_middle_size_is_a_remark() -> None:
    assert levels(ask(large_replicated, replicated(2 * REMARK_BYTES))) == ["info"]


def test_a_small_tensor_is_silent() -> None:
    assert ask(large_replicated, replicated(REMARK_BYTES // 2)) == []


def test_a_large_tensor_that_is_cut_is_silent() -> None:
    assert ask(large_replicated, replicated(3 * WARNING_BYTES, "tp:S(0)")) == []


def test_a_large_tensor_is_silent_where_tp_is_not_active() -> None:
    assert ask(large_replicated, replicated(3 * WARNING_BYTES), "dp=2") == []


def test_a_tensor_that_is_a_small_share_of_the_rank_is_silent() -> None:
    shapes = {"table.weight": (WARNING_BYTES // 32, 8), "big": (50 * WARNING_BYTES // 32, 8)}
    graph = graph_of(shapes, layouts={"table.weight": "R", "big": "tp:S(0)"})
    assert ask(large_replicated, graph) == []


def test_layers_of_one_name_are_one_sum() -> None:
    shapes = {f"layers.{i}.latent.weight": (WARNING_BYTES // 64, 8) for i in range(4)}
    graph = graph_of(shapes, layouts=dict.fromkeys(shapes, "R"))
    (problem,) = ask(large_replicated, graph)
    assert (len(problem.nodes), problem.text.partition(" repl")[0]) == (4, "2.0 GiB")


# -- traffic -----------------------------------------------------------------------------------


def test_a_ring_sends_every_output_of_a_rowwise_layer_and_embedding_once_a_token() -> None:
    found = traffic(subject(block(), "tp=2"))
    assert found.reductions == 2
    assert found.tp_forward == 2 * 32 * 1 // 2 * 2
    assert found.tp_backward == 2 * 32 * 1 // 2
    assert found.tp_gather == 0


def test_without_tp_and_data_axes_nothing_is_sent() -> None:
    assert traffic(subject(block(), "tp=1")) == Traffic()


def test_fsdp_gathers_twice_and_reduces_once() -> None:
    found = traffic(subject(block(), "dp=4,tp=1"))
    parts = memory(block(), MeshSpec.parse("dp=4,tp=1")).most.parameters
    assert parts == 4 * (64 * 8 + 2 * 16 * 8 + 8)
    assert found.fsdp_gather == 2 * 3 * parts // 4
    assert found.fsdp_reduce == 3 * parts // 4
    assert found.dp_reduce == 2 * 3 * parts // 4


def test_frozen_parameters_are_gathered_and_not_reduced() -> None:
    found = traffic(subject(block(frozen=tuple(SHAPES)), "dp=4,tp=1"))
    assert found.fsdp_gather > 0
    assert (found.fsdp_reduce, found.dp_reduce) == (0, 0)


def test_tokens_go_to_the_experts_that_the_router_chooses_and_back() -> None:
    shapes = {"moe.experts.w": (8, 4, 16), "moe.gate.weight": (8, 16)}
    graph = graph_of(
        shapes,
        attributes={"moe": {"top_k": 2}},
        layouts={"moe.experts.w": "ep:S(0)", "moe.gate.weight": "R"},
    )
    found = traffic(subject(graph, "dp=4,ep=4"))
    assert found.chosen == 2
    assert found.ep_exchange == 4 * 3 * (2 * 16 * 4) // 4


def test_experts_that_stay_whole_exchange_nothing() -> None:
    graph = graph_of({"moe.experts.w": (8, 4, 16)}, layouts={"moe.experts.w": "R"})
    assert traffic(subject(graph, "dp=4,ep=4")).ep_exchange == 0


def test_every_number_has_its_formula() -> None:
    found = Traffic().to_json()
    formulas = found.pop("formulas")
    assert isinstance(formulas, dict)
    assert set(formulas) == set(found) - {"reductions", "chosen"}


# -- P11 ---------------------------------------------------------------------------------------

NORMED = {
    "attn.q_proj.weight": (16, 16),
    "attn.o_proj.weight": (16, 16),
    "attn.q_norm.weight": (4,),
    "norm.weight": (16,),
}


def normed(mesh: str) -> Subject:
    graph = graph_of(NORMED, attributes={"attn": {"num_heads": 4}})
    rules = {"**.q_proj.weight": {"tp": "S(0)"}, "**.o_proj.weight": {"tp": "S(1)"}}
    plan = ShardingPlan(rules, default="replicate")
    done = hpx.run(graph, plan, mesh)
    return Subject(done.graph, plan, done.mesh)


def test_p11_a_norm_that_is_whole_between_cut_matrices_needs_an_all_reduce() -> None:
    needed, not_needed = gradient_reductions(normed("tp=2"))
    assert (needed.names, str(needed)) == (
        ("attn.q_norm.weight",),
        "needs gradient all-reduce over tp: yes",
    )
    assert (not_needed.names, str(not_needed)) == (
        ("norm.weight",),
        "needs gradient all-reduce over tp: no",
    )


def test_p11_nothing_is_listed_where_tp_is_not_active() -> None:
    assert gradient_reductions(normed("dp=2,tp=1")) == []


def test_p11_the_reduction_is_sent_once_a_step() -> None:
    assert traffic(normed("tp=2")).tp_gradients == 2 * 16 // 2
