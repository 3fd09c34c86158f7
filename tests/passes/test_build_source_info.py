from __future__ import annotations

import json

import pytest

from hpx.errors import PassError
from hpx.graph import ModuleGraph
from hpx.graph.edit import set_key
from hpx.layout import Layout
from hpx.passes.build_source_info import BuildSourceInfo
from hpx.testing import Outcome, assert_idempotent, assert_pass, check_contract, graph_of, run_pass

COLWISE = {"mesh": "dense", "axis": "tp", "size": 2, "placements": ["S(0)"]}
ROWWISE = {"mesh": "dense", "axis": "tp", "size": 2, "placements": ["S(1)"]}
WHOLE = {"mesh": "dense", "axis": "tp", "size": 2, "placements": ["R"]}


def info(before: ModuleGraph, mesh: str = "tp=2") -> Outcome:
    return run_pass(BuildSourceInfo(), before, mesh=mesh)


def reduced(outcome: Outcome) -> set[str]:
    """Names of the parameters whose gradients are summed over tp."""
    graph = outcome.graph
    return {
        graph.path(node.id) for node in graph.parameters() if node.props.get("reduce") == ("tp",)
    }


def test_every_parameter_with_a_layout_gets_a_record_replicated_ones_too() -> None:
    before = graph_of(
        {"up.weight": (8, 4), "down.weight": (4, 8), "norm.weight": (4,)},
        layouts={"up.weight": "tp:S(0)", "down.weight": "tp:S(1)", "norm.weight": "R"},
    )
    assert_pass(
        BuildSourceInfo(),
        before,
        {
            "up.weight": {"source": COLWISE, "reduce": ()},
            "down.weight": {"source": ROWWISE, "reduce": ()},
            "norm.weight": {"source": WHOLE, "reduce": ("tp",)},
        },
        events=[
            f"set source {COLWISE}: up.weight",
            f"set source {ROWWISE}: down.weight",
            f"set source {WHOLE}: norm.weight",
            "set reduce []: up.weight, down.weight",
            "set reduce ['tp']: norm.weight",
        ],
    )


def test_an_expert_is_recorded_on_the_expert_mesh() -> None:
    before = graph_of({"experts.w": (4, 6, 8)}, layouts={"experts.w": "ep:S(0)"})
    outcome = info(before, "dp=2,tp=2,ep=4")
    record = {"mesh": "expert", "axis": "ep", "size": 4, "placements": ["S(0)"]}
    assert next(outcome.graph.parameters()).props["source"] == record


def test_the_axes_of_fsdp_are_in_no_record() -> None:
    before = graph_of({"w": (4, 4)}, layouts={"w": "tp:S(0)"})
    outcome = info(before, "dp_replicate=2,dp_shard=2,cp=2,tp=2")
    assert next(outcome.graph.parameters()).props["source"] == COLWISE


def test_a_record_survives_json() -> None:
    outcome = info(graph_of({"w": (4, 4)}, layouts={"w": "tp:S(0)"}))
    record = next(outcome.graph.parameters()).props["source"]
    assert json.loads(json.dumps(record)) == record


def test_a_tied_parameter_has_one_record_for_all_its_names() -> None:
    before = graph_of(
        {"embed.weight": (8, 4)},
        tied={"head.weight": "embed.weight"},
        layouts={"embed.weight": "tp:S(0)"},
    )
    graph = info(before).graph
    assert graph.find("head.weight") == graph.find("embed.weight")
    assert graph.tensor(graph.find("head.weight") or -1).props["source"] == COLWISE


def test_parameters_without_a_layout_get_none() -> None:
    assert_pass(BuildSourceInfo(), graph_of({"w": (4, 4)}), {}, mesh="dp=4", events=[])


@pytest.mark.parametrize(("layout", "mesh"), [("ep:S(0)", "dense"), ("tp:S(0)", "expert")])
def test_a_layout_that_cuts_on_another_axis_than_its_mesh_is_refused(
    layout: str, mesh: str
) -> None:
    before = graph_of({"w": (4, 4)})
    node = before.find("w") or -1
    set_key(before, [node], "layout", Layout.parse(layout))
    set_key(before, [node], "mesh", mesh)
    with pytest.raises(PassError, match=f"w: its layout {layout[:2]}"):
        info(before, "dp=2,tp=2,ep=4")


# -- gradients that are partial ----------------------------------------------------------------


def test_what_an_attention_reads_between_its_cut_projections_has_a_partial_gradient() -> None:
    shapes = {
        "layer.norm.weight": (32,),
        "layer.attn.q_proj.weight": (32, 32),
        "layer.attn.o_proj.weight": (32, 32),
        "layer.attn.o_proj.bias": (32,),
        "layer.attn.q_norm.weight": (4,),
        "layer.attn.q_a_proj.weight": (8, 32),
    }
    layouts = dict.fromkeys(shapes, "R") | {
        "layer.attn.q_proj.weight": "tp:S(0)",
        "layer.attn.o_proj.weight": "tp:S(1)",
    }
    outcome = info(graph_of(shapes, layouts=layouts))
    assert reduced(outcome) == {"layer.attn.q_norm.weight", "layer.attn.q_a_proj.weight"}


def test_the_whole_key_of_a_single_kv_head_has_a_partial_gradient() -> None:
    shapes = {
        "attn.q_proj.weight": (32, 32),
        "attn.k_proj.weight": (4, 32),
        "attn.o_proj.weight": (32, 32),
    }
    layouts = {
        "attn.q_proj.weight": "tp:S(0)",
        "attn.k_proj.weight": "R",
        "attn.o_proj.weight": "tp:S(1)",
    }
    assert reduced(info(graph_of(shapes, layouts=layouts))) == {"attn.k_proj.weight"}


def test_the_norms_of_a_layer_that_owns_its_mlp_matrices_have_whole_gradients() -> None:
    shapes = {
        "layer.attn.q_proj.weight": (32, 32),
        "layer.attn.out_proj.weight": (32, 32),
        "layer.fc1.weight": (64, 32),
        "layer.fc2.weight": (32, 64),
        "layer.final_layer_norm.weight": (32,),
    }
    layouts = {
        "layer.attn.q_proj.weight": "tp:S(0)",
        "layer.attn.out_proj.weight": "tp:S(1)",
        "layer.fc1.weight": "tp:S(0)",
        "layer.fc2.weight": "tp:S(1)",
        "layer.final_layer_norm.weight": "R",
    }
    assert reduced(info(graph_of(shapes, layouts=layouts))) == set()


def test_a_head_norm_is_partial_where_the_output_matrix_stands_in_another_module() -> None:
    shapes = {
        "attention.self.query.weight": (32, 32),
        "attention.self.q_norm.weight": (4,),
        "attention.output.dense.weight": (32, 32),
        "attention.output.norm.weight": (32,),
    }
    layouts = {
        "attention.self.query.weight": "tp:S(0)",
        "attention.self.q_norm.weight": "R",
        "attention.output.dense.weight": "tp:S(1)",
        "attention.output.norm.weight": "R",
    }
    outcome = info(graph_of(shapes, layouts=layouts))
    assert reduced(outcome) == {"attention.self.q_norm.weight"}


def test_a_norm_between_the_matrices_of_an_mlp_is_partial() -> None:
    shapes = {"mlp.fc1.weight": (64, 32), "mlp.mid_norm.weight": (1,), "mlp.fc2.weight": (32, 64)}
    layouts = {"mlp.fc1.weight": "tp:S(0)", "mlp.mid_norm.weight": "R", "mlp.fc2.weight": "tp:S(1)"}
    assert reduced(info(graph_of(shapes, layouts=layouts))) == {"mlp.mid_norm.weight"}


def test_an_embedding_and_a_head_are_no_region() -> None:
    before = graph_of(
        {"embed.weight": (8, 4), "norm.weight": (4,), "head.weight": (8, 4)},
        classes={"embed": "torch.nn.modules.sparse.Embedding"},
        layouts={"embed.weight": "tp:S(0)", "norm.weight": "R", "head.weight": "tp:S(0)"},
    )
    assert reduced(info(before)) == set()


# -- what shares a data-parallel group ---------------------------------------------------------


def test_dtypes_that_share_a_data_parallel_group_are_counted() -> None:
    before = graph_of({"a": (4, 4), "b": (4, 4), "c": (4, 4)}, dtypes={"c": "bfloat16"})
    (problem,) = info(before, "dp=2").problems
    assert problem.text == "parameters of the dense mesh have 2 dtypes: float32 x2, bfloat16 x1"
    assert [before.path(node) for node in problem.nodes] == ["c"]


def test_dtypes_of_the_dense_and_the_expert_mesh_may_differ() -> None:
    before = graph_of(
        {"w": (4, 4), "experts.w": (4, 4, 4)},
        dtypes={"experts.w": "bfloat16"},
        layouts={"w": "R", "experts.w": "ep:S(0)"},
    )
    assert info(before, "dp=2,tp=2,ep=2").problems == ()


def test_without_a_data_parallel_axis_dtypes_are_not_counted() -> None:
    before = graph_of({"a": (4, 4), "b": (4, 4)}, dtypes={"b": "bfloat16"})
    assert info(before, "tp=2").problems == ()


def test_frozen_parameters_among_trained_ones_are_told() -> None:
    (problem,) = info(graph_of({"a": (4,), "b": (4,)}, frozen=["a"]), "dp=2").problems
    assert problem.level == "info"
    assert problem.text == "1 of 2 parameters of the dense mesh are frozen"


def test_it_keeps_its_contract_and_records_once() -> None:
    before = graph_of({"w": (4, 4)}, layouts={"w": "tp:S(0)"})
    check_contract(BuildSourceInfo(), before)
    assert_idempotent(BuildSourceInfo(), before)
