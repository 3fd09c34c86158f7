"""Which modules are boundaries, read off structure and layouts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hpx.graph.graph import ModuleGraph
from hpx.mesh import MeshSpec
from hpx.plan import ShardingPlan
from hpx.regions import partial_gradients
from hpx.roles import Roles, roles
from hpx.testing import graph_of

LINEAR = "torch.nn.modules.linear.Linear"
EMBEDDING = "torch.nn.modules.sparse.Embedding"


def found(
    graph: ModuleGraph, boundaries: Mapping[str, object] | None = None, mesh: str = "tp=2"
) -> Roles:
    plan = ShardingPlan({}, default="replicate", boundaries=boundaries or {})
    return roles(graph, MeshSpec.parse(mesh), plan)


def named(graph: ModuleGraph, **how: Mapping[str, object]) -> dict[str, str]:
    made = found(graph, **how)  # type: ignore[arg-type]
    assert [finding.what for finding in made.findings] == []
    return {graph.path(role.module): role.role for role in made.boundaries}


def mlp(layouts: dict[str, str], more: Mapping[str, tuple[int, ...]] | None = None) -> ModuleGraph:
    shapes = {"mlp.up.weight": (16, 8), "mlp.down.weight": (8, 16), **(more or {})}
    names = {name.rpartition(".")[0] for name in shapes}
    classes = dict.fromkeys(names, LINEAR)
    whole = {name: layouts.get(name, "R") for name in shapes}
    return graph_of(shapes, classes=classes, layouts=whole)


CUT = {"mlp.up.weight": "tp:S(0)", "mlp.down.weight": "tp:S(1)"}


def whats(roles_: Roles) -> list[str]:
    return [finding.what for finding in roles_.findings]


def test_colwise_and_rowwise_make_a_region_with_a_sum_in_it() -> None:
    assert named(mlp(CUT)) == {"mlp": "mlp", "mlp.down": "rowwise"}


def test_without_an_active_axis_there_is_no_boundary() -> None:
    assert found(mlp(CUT), mesh="dp=2,tp=1").boundaries == []


def test_whole_layers_are_no_boundaries() -> None:
    assert named(mlp({})) == {}


def test_a_rowwise_bias_is_withheld() -> None:
    graph = mlp({**CUT, "mlp.up.bias": "tp:S(0)"}, {"mlp.up.bias": (16,), "mlp.down.bias": (8,)})
    down = next(role for role in found(graph).boundaries if role.role == "rowwise")
    assert down.bias == "bias"


def test_an_unpaired_colwise_matrix_is_refused_by_name() -> None:
    graph = mlp({"mlp.up.weight": "tp:S(0)"})
    (finding,) = found(graph).findings
    assert graph.path(finding.node) == "mlp.up.weight"
    assert finding.what == "its outputs are cut, and no rowwise matrix takes them"


def test_a_rowwise_matrix_of_whole_inputs_is_refused_by_name() -> None:
    graph = mlp({"mlp.down.weight": "tp:S(1)"})
    (finding,) = found(graph).findings
    assert graph.path(finding.node) == "mlp.down.weight"


def test_a_whole_bias_of_a_colwise_layer_is_refused() -> None:
    graph = mlp(CUT, {"mlp.up.bias": (16,)})
    assert whats(found(graph)) == ["the bias of a colwise layer is whole"]


def test_a_cut_bias_of_a_rowwise_layer_is_refused() -> None:
    graph = mlp({**CUT, "mlp.down.bias": "tp:S(0)"}, {"mlp.down.bias": (8,)})
    assert whats(found(graph)) == ["the bias of a rowwise layer is cut"]


def test_a_whole_norm_as_wide_as_the_output_is_refused_since_its_side_is_not_known() -> None:
    graph = mlp(CUT, {"mlp.norm.weight": (8,)})
    assert whats(found(graph)) == [
        "it is whole, inside a region, and as wide as the region's output"
    ]


def test_the_plan_can_say_on_which_side_it_stands() -> None:
    graph = mlp(CUT, {"mlp.norm.weight": (8,)})
    assert named(graph, boundaries={"mlp": {"output": "R"}})["mlp"] == "mlp"
    after = named(graph, boundaries={"mlp": "none"})
    assert after == {"mlp.up": "colwise", "mlp.down": "rowwise"}


def test_layers_of_a_decoder_layer_beside_its_attention_are_paired() -> None:
    graph = graph_of(
        {
            "layer.attn.q_proj.weight": (8, 8),
            "layer.attn.out.weight": (8, 8),
            "layer.fc1.weight": (32, 8),
            "layer.fc2.weight": (8, 32),
            "layer.norm.weight": (8,),
        },
        layouts={
            "layer.attn.q_proj.weight": "tp:S(0)",
            "layer.attn.out.weight": "tp:S(1)",
            "layer.fc1.weight": "tp:S(0)",
            "layer.fc2.weight": "tp:S(1)",
            "layer.norm.weight": "R",
        },
    )
    assert named(graph) == {
        "layer.attn": "attention",
        "layer.attn.out": "rowwise",
        "layer.fc1": "colwise",
        "layer.fc2": "rowwise",
    }


@pytest.mark.parametrize("tied", [True, False])
def test_an_embedding_cut_on_rows_and_a_head(tied: bool) -> None:
    shapes = {"embed.weight": (32, 8)} | ({} if tied else {"lm_head.weight": (32, 8)})
    graph = graph_of(
        shapes,
        classes={"embed": EMBEDDING, "lm_head": LINEAR},
        tied={"lm_head.weight": "embed.weight"} if tied else {},
        layouts=dict.fromkeys(shapes, "tp:S(0)"),
    )
    assert named(graph) == {"embed": "embedding", "lm_head": "lm_head"}


def test_layers_of_modules_side_by_side_are_paired_by_their_widths() -> None:
    graph = graph_of(
        {"layer.intermediate.dense.weight": (32, 8), "layer.output.dense.weight": (8, 32)},
        layouts={
            "layer.intermediate.dense.weight": "tp:S(0)",
            "layer.output.dense.weight": "tp:S(1)",
        },
    )
    assert named(graph) == {
        "layer.intermediate.dense": "colwise",
        "layer.output.dense": "rowwise",
    }


def test_an_embedding_cut_on_its_width_is_refused() -> None:
    graph = graph_of(
        {"e.weight": (32, 8)}, classes={"e": EMBEDDING}, layouts={"e.weight": "tp:S(1)"}
    )
    assert whats(found(graph)) == ["an embedding is cut on its width"]


@pytest.mark.parametrize(("columns", "refused"), [(4, False), (8, True)])
def test_a_table_with_a_column_a_head_may_be_cut_beside_cut_heads(
    columns: int, *, refused: bool
) -> None:
    shapes = {f"attn.{x}_proj.weight": (16, 16) for x in "qkvo"}
    names = [*(name.rpartition(".")[0] for name in shapes)]
    cuts = {name: "tp:S(1)" if "o_proj" in name else "tp:S(0)" for name in shapes}
    graph = graph_of(
        {**shapes, "attn.bias_of_places.weight": (32, columns)},
        classes={**dict.fromkeys(names, LINEAR), "attn.bias_of_places": EMBEDDING},
        attributes={"attn": {"num_heads": 4}},
        layouts={**cuts, "attn.bias_of_places.weight": "tp:S(1)"},
    )
    assert (whats(found(graph)) == ["an embedding is cut on its width"]) is refused


def test_experts_cut_on_tp_are_refused() -> None:
    graph = graph_of({"experts.up": (4, 16, 8)}, layouts={"experts.up": "tp:S(1)"})
    assert whats(found(graph)) == ["it is cut on tp, and has 3 dims"]


def test_whole_matrices_of_a_lora_layer_have_partial_gradients() -> None:
    names = {
        "mlp.up.base_layer.weight": ((16, 8), "tp:S(0)"),
        "mlp.up.lora_A.default.weight": ((2, 8), "R"),
        "mlp.up.lora_B.default.weight": ((16, 2), "tp:S(0)"),
        "mlp.down.base_layer.weight": ((8, 16), "tp:S(1)"),
        "mlp.down.lora_A.default.weight": ((2, 16), "tp:S(1)"),
        "mlp.down.lora_B.default.weight": ((8, 2), "R"),
    }
    graph = graph_of(
        {name: shape for name, (shape, _) in names.items()},
        layouts={name: layout for name, (_, layout) in names.items()},
    )
    made = found(graph)
    assert whats(made) == []
    assert {graph.path(node) for node in {*made.partial, *partial_gradients(graph)}} == {
        "mlp.up.lora_A.default.weight",
        "mlp.down.lora_B.default.weight",
    }
    assert {graph.path(role.module) for role in made.boundaries} == {"mlp", "mlp.down"}


@pytest.mark.parametrize("wrapped", ["q_proj", "v_proj"])
def test_head_norms_beside_a_lora_layer_have_partial_gradients(wrapped: str) -> None:
    shapes = {f"attn.{name}.weight": (32, 32) for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
    del shapes[f"attn.{wrapped}.weight"]
    lora = f"attn.{wrapped}.lora_A.default.weight"
    graph = graph_of(
        {
            **shapes,
            f"attn.{wrapped}.base_layer.weight": (32, 32),
            lora: (2, 32),
            f"attn.{wrapped}.lora_B.default.weight": (32, 2),
            "attn.q_norm.weight": (8,),
        },
        layouts={
            **{name: "tp:S(1)" if "o_proj" in name else "tp:S(0)" for name in shapes},
            f"attn.{wrapped}.base_layer.weight": "tp:S(0)",
            lora: "R",
            f"attn.{wrapped}.lora_B.default.weight": "tp:S(0)",
            "attn.q_norm.weight": "R",
        },
    )
    assert {graph.path(node) for node in partial_gradients(graph)} == {lora, "attn.q_norm.weight"}


def test_a_declared_module_that_matches_nothing_is_an_error_with_the_nearest_name() -> None:
    (finding,) = found(mlp(CUT), {"mpl": "none"}).findings
    assert "matches no module" in finding.what
    assert (finding.fix or "").startswith("did you mean mlp")


def test_a_declared_entry_that_never_wins_is_an_error() -> None:
    (finding,) = found(mlp(CUT), {"mlp": {"output": "R"}, "ml*": "none"}).findings
    assert "never wins" in finding.what


def test_declared_inputs_take_the_place_of_the_first_one() -> None:
    made = found(mlp(CUT), {"mlp": {"input": {"hidden": "R", "residual": "none"}}})
    region = next(role for role in made.boundaries if role.role == "mlp")
    assert region.inputs == {"hidden": "R", "residual": "none"}


def test_a_declared_boundary_around_another_is_refused() -> None:
    graph = graph_of(
        {"block.mlp.up.weight": (16, 8), "block.mlp.down.weight": (8, 16)},
        layouts={"block.mlp.up.weight": "tp:S(0)", "block.mlp.down.weight": "tp:S(1)"},
    )
    (what,) = whats(found(graph, {"block": {"output": "R"}}))
    assert what == "it is declared a boundary, and 'block.mlp' inside it is one"


def test_scales_that_are_cut_with_their_rowwise_weight_are_no_matrices_of_their_own() -> None:
    shapes = {"mlp.up.weight_scale_inv": (4, 2), "mlp.down.weight_scale_inv": (2, 4)}
    cut = {"mlp.up.weight_scale_inv": "tp:S(0)", "mlp.down.weight_scale_inv": "tp:S(1)"}
    assert named(mlp({**CUT, **cut}, shapes)) == {"mlp": "mlp", "mlp.down": "rowwise"}
