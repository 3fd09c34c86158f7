"""The layout that a boundary gives is the one that the next takes."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

import hpx
from hpx.graph.graph import ModuleGraph
from hpx.mesh import MeshSpec
from hpx.plan import ShardingPlan
from hpx.roles import Roles, roles
from hpx.roles.edges import gives, takes
from hpx.testing import graph_of

LINEAR = "torch.nn.modules.linear.Linear"
EMBEDDING = "torch.nn.modules.sparse.Embedding"
SHAPES = {
    "embed.weight": (64, 8),
    "layers.0.attn.q_proj.weight": (8, 8),
    "layers.0.attn.o_proj.weight": (8, 8),
    "layers.0.mlp.up.weight": (16, 8),
    "layers.0.mlp.down.weight": (8, 16),
    "norm.weight": (8,),
    "lm_head.weight": (64, 8),
}
LAYOUTS = {
    "embed.weight": "tp:S(0)",
    "layers.0.attn.q_proj.weight": "tp:S(0)",
    "layers.0.attn.o_proj.weight": "tp:S(1)",
    "layers.0.mlp.up.weight": "tp:S(0)",
    "layers.0.mlp.down.weight": "tp:S(1)",
    "norm.weight": "R",
    "lm_head.weight": "tp:S(0)",
}


def model() -> ModuleGraph:
    classes = {name.removesuffix(".weight"): LINEAR for name in SHAPES if "proj" in name}
    classes |= {"embed": EMBEDDING, "lm_head": LINEAR, "norm": "torch.nn.LayerNorm"}
    return graph_of(SHAPES, classes=classes, layouts=LAYOUTS)


def found(
    graph: ModuleGraph, boundaries: Mapping[str, object] | None = None, *, sp: bool = False
) -> Roles:
    plan = ShardingPlan({}, default="replicate", boundaries=boundaries or {})
    return roles(graph, MeshSpec.parse("tp=2"), plan, sp=sp)


def states(graph: ModuleGraph, made: Roles) -> dict[str, tuple[str, str]]:
    return {
        graph.path(role.module): (takes(role), gives(graph, made, role)) for role in made.boundaries
    }


def test_every_boundary_takes_and_gives_a_known_state() -> None:
    graph = model()
    assert states(graph, found(graph)) == {
        "embed": ("R", "R"),
        "layers.0.attn": ("R", "R"),
        "layers.0.attn.o_proj": ("S(-1)", "R"),
        "layers.0.mlp": ("R", "R"),
        "layers.0.mlp.down": ("S(-1)", "R"),
        "lm_head": ("R", "R"),
    }


def test_in_a_stream_that_is_cut_regions_take_and_give_positions() -> None:
    graph = model()
    made = states(graph, found(graph, sp=True))
    assert made["layers.0.attn"] == made["layers.0.mlp"] == ("S(1)", "S(1)")
    assert made["layers.0.mlp.down"] == ("S(-1)", "S(1)")
    assert made["lm_head"] == ("R", "R")


def test_logits_that_stay_in_columns_are_given_so() -> None:
    graph = model()
    plan = ShardingPlan({}, default="replicate")
    made = roles(graph, MeshSpec.parse("tp=2"), plan, loss="parallel")
    assert states(graph, made)["lm_head"] == ("R", "S(-1)")


def test_a_loss_in_parts_without_a_cut_head_is_a_finding() -> None:
    layouts = {"lm_head.weight": "R"}
    graph = graph_of({"lm_head.weight": (64, 8)}, classes={"lm_head": LINEAR}, layouts=layouts)
    plan = ShardingPlan({}, default="replicate")
    (finding,) = roles(graph, MeshSpec.parse("tp=2"), plan, loss="parallel").findings
    assert finding.what.endswith("no head is cut on its vocabulary")


# -- sums read off the tree ----------------------------------------------------------------------


def whats(made: Roles) -> list[str]:
    return [finding.what for finding in made.findings]


def test_a_rowwise_layer_that_nobody_sums_is_a_finding() -> None:
    graph = model()
    (finding,) = found(graph, {"layers.*.mlp.down": "none"}).findings
    assert graph.path(finding.node) == "layers.0.mlp.down.weight"
    assert finding.what == "its output is P, a part of a sum, and nothing sums it"
    assert "its own of 16 inputs" in (finding.why or "")


def test_the_region_around_it_may_sum_in_its_place() -> None:
    graph = model()
    made = found(graph, {"layers.*.mlp": {"output": "R"}, "layers.*.mlp.down": "none"})
    assert whats(made) == []
    region = next(role for role in made.boundaries if graph.path(role.module) == "layers.0.mlp")
    assert region.output == "sum"


def test_a_model_that_sums_by_itself_can_say_so() -> None:
    graph = model()
    made = found(graph, {"layers.*.mlp.down": {"output": "none"}})
    assert whats(made) == []
    assert "layers.0.mlp.down" not in states(graph, made)


def test_r9_a_sum_of_what_is_whole_already_is_a_finding() -> None:
    graph = model()
    (finding,) = found(graph, {"norm": {"output": "R"}}).findings
    assert graph.path(finding.node) == "norm"
    assert finding.what == "its output is R already, and declared to be summed"


def test_columns_that_are_gathered_twice_are_a_finding() -> None:
    shapes = {"tower.lm_head.weight": (64, 8), "embed.weight": (64, 8)}
    graph = graph_of(
        shapes,
        classes={"tower.lm_head": LINEAR, "embed": EMBEDDING},
        layouts={"tower.lm_head.weight": "tp:S(0)", "embed.weight": "R"},
    )
    made = found(graph, {"tower": {"output": "R", "input": {"0": "none"}}})
    assert "its output is R already, and would be gathered again" in whats(made)


def test_attention_whose_projections_are_sequences_of_one_layer_is_one_region() -> None:
    attention = nn.ModuleDict({name: nn.Sequential(nn.Linear(8, 8)) for name in ("q", "k", "v")})
    attention["o_proj"] = nn.Linear(8, 8)
    model = nn.ModuleDict({"attn": attention})
    plan = ShardingPlan(
        {"attn.{q,k,v}.0.weight": {"tp": "S(0)"}, "attn.o_proj.weight": {"tp": "S(1)"}},
        default="replicate",
    )
    run = hpx.run(model, plan, "tp=2", "@run")
    made = roles(run.graph, run.mesh, run.plan)
    assert states(run.graph, made) == {"attn": ("R", "R"), "attn.o_proj": ("S(-1)", "R")}
