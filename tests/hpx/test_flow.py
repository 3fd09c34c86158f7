"""Which rowwise matrix takes the outputs of which colwise one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import hpx
from hpx import HpxError, ShardingPlan
from hpx.bundled import tiny_llama
from hpx.graph.graph import ModuleGraph
from hpx.mesh import MeshSpec
from hpx.projections import Role
from hpx.roles import Roles, roles
from hpx.roles.flow import Flow, pairs
from hpx.roles.types import Cut
from hpx.testing import graph_of

LINEAR = "torch.nn.modules.linear.Linear"
NOT_FED = "a rowwise matrix takes what no colwise one gives"
NOT_TAKEN = "its outputs are cut, and no rowwise matrix takes them"
QKV, OUT = "**.{q,k,v}_proj.weight", "**.o_proj.weight"
UP, DOWN = "**.mlp.{gate,up}_proj.weight", "**.mlp.down_proj.weight"
COL, ROW = {"tp": "S(0)"}, {"tp": "S(1)"}
COLWISE, ROWWISE = "tp:S(0)", "tp:S(1)"


def flow(columns: Mapping[int, tuple[int, Role | None]], *rows: int) -> Flow:
    """Of columns by id with their outputs and role, and rows with their inputs, from id 10."""
    given = [(Cut(i, i, "weight", 8, out, i), role) for i, (out, role) in columns.items()]
    return pairs(given, [Cut(10 + i, i, "weight", n, 8, i) for i, n in enumerate(rows)])


@pytest.mark.parametrize(
    ("columns", "rows", "fed", "taken"),
    [
        pytest.param({0: (32, None), 1: (32, None)}, [32], {10}, {0, 1}, id="gate, up, down"),
        pytest.param({0: (64, None)}, [32], {10}, {0}, id="gate and up in one"),
        pytest.param({0: (128, None)}, [32], set(), set(), id="a block's fc is not attention's"),
        pytest.param({0: (8, "q"), 1: (4, "k"), 2: (4, "v")}, [8], {10}, {0, 1, 2}, id="gqa"),
        pytest.param({0: (16, "q"), 1: (4, "k"), 2: (4, "v")}, [8], {10}, {0, 1, 2}, id="gated q"),
        pytest.param({0: (12, "q"), 1: (6, "k"), 2: (4, "v")}, [8], {10}, {0, 1, 2}, id="narrow v"),
        pytest.param(
            {0: (8, "q"), 1: (8, "k"), 2: (8, "v")}, [32], set(), set(), id="down is mlp's"
        ),
        pytest.param({0: (14, "kv"), 1: (12, "q")}, [8], {10}, {0, 1}, id="latent"),
        pytest.param({0: (20, "qkv"), 1: (32, None)}, [32, 12], {10, 11}, {0, 1}, id="flat block"),
        pytest.param({0: (20, "qkv"), 1: (32, None)}, [32], {10}, {1}, id="flat, o whole"),
        pytest.param({0: (32, None)}, [32, 8], {10}, {0}, id="flat, qkv whole"),
    ],
)
def test_matrices_are_paired_by_width(
    columns: Mapping[int, tuple[int, Role | None]], rows: list[int], fed: set[int], taken: set[int]
) -> None:
    assert flow(columns, *rows) == Flow(frozenset(fed), frozenset(taken))


@pytest.mark.parametrize(
    ("rules", "what", "node"),
    [
        ({OUT: ROW, UP: COL, DOWN: ROW}, NOT_FED, "self_attn.o_proj"),
        ({QKV: COL, OUT: ROW, DOWN: ROW}, NOT_FED, "mlp.down_proj"),
        ({QKV: COL, UP: COL, DOWN: ROW}, NOT_TAKEN, "self_attn.q_proj"),
        ({QKV: COL, DOWN: ROW}, NOT_TAKEN, "self_attn.q_proj"),
        ({QKV: COL, OUT: ROW, UP: COL}, NOT_TAKEN, "mlp.gate_proj"),
    ],
)
def test_a_pair_that_is_cut_feeds_no_other_matrix_of_its_layer(
    rules: Mapping[str, object], what: str, node: str
) -> None:
    plan = ShardingPlan(rules, default="replicate")
    warned = hpx.run(tiny_llama(), plan, "tp=2").problems
    assert [p.level for p in warned if p.text.startswith(what)] == ["warning"]
    with pytest.raises(HpxError, match=what) as caught:
        hpx.run(tiny_llama(), plan, "tp=2", "@run")
    assert f"model.layers.{{0-1}}.{node}.weight" in str(caught.value)


def flat(layouts: Mapping[str, str]) -> ModuleGraph:
    """A block that holds its attention and its mlp itself."""
    shapes = {
        "h.qkv.weight": (24, 8),
        "h.out.weight": (8, 8),
        "h.fc.weight": (32, 8),
        "h.proj.weight": (8, 32),
    }
    return graph_of(
        shapes,
        classes={name.removesuffix(".weight"): LINEAR for name in shapes},
        layouts={name: layouts.get(name[2:-7], "R") for name in shapes},
    )


def found(graph: ModuleGraph, boundaries: Mapping[str, object] | None = None) -> Roles:
    plan = ShardingPlan({}, default="replicate", boundaries=boundaries or {})
    return roles(graph, MeshSpec.parse("tp=2"), plan)


@pytest.mark.parametrize(
    ("layouts", "expected"),
    [
        ({"out": ROWWISE, "fc": COLWISE, "proj": ROWWISE}, {"h.out.weight": NOT_FED}),
        ({"qkv": COLWISE, "out": ROWWISE, "proj": ROWWISE}, {"h.proj.weight": NOT_FED}),
        ({"qkv": COLWISE, "fc": COLWISE, "proj": ROWWISE}, {"h.qkv.weight": NOT_TAKEN}),
        ({"qkv": COLWISE, "out": ROWWISE, "fc": COLWISE}, {"h.fc.weight": NOT_TAKEN}),
        ({"qkv": COLWISE, "out": ROWWISE, "fc": COLWISE, "proj": ROWWISE}, {}),
    ],
)
def test_in_a_block_that_holds_both_each_matrix_needs_its_own(
    layouts: Mapping[str, str], expected: Mapping[str, str]
) -> None:
    graph = flat(layouts)
    made = [f for f in found(graph).findings if f.what in (NOT_FED, NOT_TAKEN)]
    assert {graph.path(f.node): f.what for f in made} == expected


# -- what is said of whole tensors in a region, and whether it can be followed -------------------

MAY_BE = "it is whole, and may be read between cut layers"
SIDE = "it is whole, inside a region, and as wide as the region's output"


def blocks(more: Mapping[str, tuple[int, ...]]) -> ModuleGraph:
    """Three blocks of which the mlp is cut, with whole tensors that are all read on a rank."""
    layers = {"qkv.weight": (24, 8), "fc.weight": (32, 8), "proj.weight": (8, 32), **more}
    shapes = {f"h.{i}.{name}": shape for i in range(3) for name, shape in layers.items()}
    cut = {"fc.weight": COLWISE, "proj.weight": ROWWISE}
    graph = graph_of(
        shapes,
        classes={name.rpartition(".")[0]: LINEAR for name in shapes},
        layouts={name: cut.get(name[4:], "R") for name in shapes},
    )
    for node in graph.parameters():
        if graph.path(node.id)[4:] not in cut:
            props = {**node.props, "reduce": ("tp",)}
            graph.nodes[node.id] = node._replace(props=props)
    return graph


def test_of_equal_layers_one_thing_is_said_and_it_can_be_followed() -> None:
    graph = blocks({"norm.weight": (8,)})
    findings = [f for f in found(graph).findings if f.what == SIDE]
    assert len(findings) == 3
    (fix,) = {finding.fix for finding in findings}
    assert fix == (
        'say so under boundaries: in the plan: "h.*": none, as it stands before the cut layers'
        " or after the sum"
    )
    declared = found(graph, {"h.*": "none"})
    assert declared.findings == []
    names = {graph.path(node) for node in declared.whole}
    assert names == {f"h.{i}.{name}" for i in range(3) for name in ("norm.weight", "qkv.weight")}


@pytest.mark.parametrize("shape", [(32,), (32, 32), (1,)])
def test_none_is_neither_said_nor_taken_where_a_tensor_may_stand_between(
    shape: tuple[int, ...],
) -> None:
    graph = blocks({"norm.weight": (8,), "between.weight": shape})
    findings = found(graph).findings
    (fix,) = {finding.fix for finding in findings if finding.what == SIDE}
    assert fix is not None
    assert fix.startswith("replicate the cut layers of the region")
    refused = [f for f in found(graph, {"h.*": "none"}).findings if f.what == MAY_BE]
    assert [graph.path(f.node) for f in refused] == [f"h.{i}.between.weight" for i in range(3)]
    assert len({finding._replace(node=0) for finding in refused}) == 1
    assert "take the entry out" not in (refused[0].fix or "")
