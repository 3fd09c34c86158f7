"""Which modules work on a part of the sequence, and which are computed whole."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hpx.graph.graph import ModuleGraph
from hpx.mesh import MeshSpec
from hpx.plan import ShardingPlan
from hpx.roles import Roles, roles
from hpx.testing import graph_of

LINEAR = "torch.nn.modules.linear.Linear"
NORM = "torch.nn.modules.normalization.LayerNorm"
MLP = {
    "layers.0.mlp.up.weight": (16, 8),
    "layers.0.mlp.down.weight": (8, 16),
    "layers.0.mlp.down.bias": (8,),
    "layers.0.norm.weight": (8,),
    "layers.0.norm.bias": (8,),
    "final.weight": (8,),
}
CUT = {"layers.0.mlp.up.weight": "tp:S(0)", "layers.0.mlp.down.weight": "tp:S(1)"}


def made(
    more: Mapping[str, tuple[int, ...]],
    classes: Mapping[str, str] | None = None,
    cut: Mapping[str, str] = CUT,
    *,
    shapes: Mapping[str, tuple[int, ...]] = MLP,
) -> tuple[ModuleGraph, Roles]:
    together = {**shapes, **more}
    graph = graph_of(
        together,
        classes={
            **{name.rpartition(".")[0]: LINEAR for name in together},
            **{name.rpartition(".")[0]: NORM for name in together if "norm" in name},
            **(classes or {}),
        },
        layouts={name: cut.get(name, "R") for name in together},
    )
    plan = ShardingPlan({}, default="replicate")
    return graph, roles(graph, MeshSpec.parse("tp=2"), plan, sp=True)


def kinds(graph: ModuleGraph, found: Roles) -> dict[str, str]:
    assert [finding.what for finding in found.findings] == []
    return {graph.path(role.module): role.role for role in found.boundaries}


def positions(graph: ModuleGraph, found: Roles) -> set[str]:
    return {graph.path(node) for node in found.positions}


def test_the_module_around_the_layers_cuts_the_stream_and_regions_gather_it() -> None:
    graph, found = made({})
    assert kinds(graph, found) == {
        "": "stream",
        "layers.0.mlp": "mlp",
        "layers.0.mlp.down": "rowwise",
    }
    stream, mlp, down = found.boundaries
    assert [graph.path(layer) for layer in stream.layers] == ["layers.0"]
    assert [graph.path(region) for region in stream.regions] == ["layers.0.mlp"]
    assert mlp.sequence
    assert down.sequence


def test_norms_and_rowwise_biases_have_a_part_of_their_gradient_and_what_follows_has_all() -> None:
    graph, found = made({})
    assert positions(graph, found) == {
        "layers.0.norm.weight",
        "layers.0.norm.bias",
        "layers.0.mlp.down.bias",
    }


def test_a_whole_linear_layer_beside_regions_works_position_by_position() -> None:
    graph, found = made({"layers.0.gate.weight": (8, 8)})
    assert "layers.0.gate" not in kinds(graph, found)
    assert "layers.0.gate.weight" in positions(graph, found)


def test_a_module_that_may_look_at_all_positions_is_computed_whole() -> None:
    more = {"layers.0.attn.q_proj.weight": (8, 8), "layers.0.attn.norm.weight": (8,)}
    graph, found = made(more)
    assert kinds(graph, found)["layers.0.attn"] == "whole"
    assert not {name for name in positions(graph, found) if "attn" in name}


def test_a_region_beside_a_router_stays_inside_what_is_computed_whole() -> None:
    shapes = {
        "layers.0.moe.shared.up.weight": (16, 8),
        "layers.0.moe.shared.down.weight": (8, 16),
        "layers.0.moe.gate.weight": (4, 8),
        "layers.0.moe.experts.gate_up_proj": (4, 8, 8),
    }
    cut = {
        "layers.0.moe.shared.up.weight": "tp:S(0)",
        "layers.0.moe.shared.down.weight": "tp:S(1)",
    }
    graph, found = made({}, {"layers.0.moe.experts": "my.Experts"}, cut, shapes=shapes)
    assert kinds(graph, found)["layers.0.moe"] == "whole"
    inner = [role for role in found.boundaries if "shared" in graph.path(role.module)]
    assert [role.sequence for role in inner] == [False, False]
    assert positions(graph, found) == set()


def test_a_module_around_parts_that_stand_in_the_stream_is_looked_into() -> None:
    shapes = {
        "layers.0.attention.self.query.weight": (8, 8),
        "layers.0.attention.output.dense.weight": (8, 8),
        "layers.0.attention.output.norm.weight": (8,),
    }
    cut = {
        "layers.0.attention.self.query.weight": "tp:S(0)",
        "layers.0.attention.output.dense.weight": "tp:S(1)",
    }
    graph, found = made({}, None, cut, shapes=shapes)
    assert "whole" not in kinds(graph, found).values()
    assert positions(graph, found) == {"layers.0.attention.output.norm.weight"}


@pytest.mark.parametrize("name", ["batchnorm", "instance_norm"])
def test_norms_over_positions_are_computed_whole(name: str) -> None:
    classes = {f"layers.0.{name}": f"my.{name.title().replace('_', '')}"}
    graph, found = made({f"layers.0.{name}.weight": (8,)}, classes)
    assert kinds(graph, found)[f"layers.0.{name}"] == "whole"


def test_a_parameter_of_the_layer_itself_with_more_dims_is_refused() -> None:
    graph, found = made({"layers.0.table": (4, 8)}, {"layers.0": "my.Layer"})
    (finding,) = found.findings
    assert graph.path(finding.node) == "layers.0.table"
    assert finding.what == "a layer holds a parameter of 2 dims itself"


def test_cut_matrices_in_no_list_of_layers_are_refused() -> None:
    shapes = {"mlp.up.weight": (16, 8), "mlp.down.weight": (8, 16)}
    cut = {"mlp.up.weight": "tp:S(0)", "mlp.down.weight": "tp:S(1)"}
    _, found = made({}, None, cut, shapes=shapes)
    (finding,) = found.findings
    assert finding.what == "no layers of which the sequence could be cut"


def test_a_layer_that_is_a_region_itself_is_refused() -> None:
    shapes = {"blocks.0.up.weight": (16, 8), "blocks.0.down.weight": (8, 16)}
    cut = {"blocks.0.up.weight": "tp:S(0)", "blocks.0.down.weight": "tp:S(1)"}
    graph, found = made({}, None, cut, shapes=shapes)
    (finding,) = found.findings
    assert graph.path(finding.node) == "blocks.0"
    assert finding.what == "it is a layer of a stream that is to be cut on the sequence"


def test_without_sequence_parallelism_nothing_of_it_is_found() -> None:
    graph, _ = made({})
    found = roles(graph, MeshSpec.parse("tp=2"), ShardingPlan({}, default="replicate"))
    assert found.positions == []
    assert [role.role for role in found.boundaries] == ["mlp", "rowwise"]
