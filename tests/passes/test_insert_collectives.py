"""The pass insert-collectives, rule by rule."""

from __future__ import annotations

import pytest

from hpx import bundled
from hpx.errors import ManyErrors
from hpx.graph.graph import ModuleGraph
from hpx.passes.insert_collectives import InsertCollectives
from hpx.pipeline.textform import parse_pipeline
from hpx.plan import ShardingPlan
from hpx.provenance import Event
from hpx.run import Run, run
from hpx.testing import assert_idempotent, check_contract, graph_of

PLAN = """\
params:
  "model.embed_tokens.weight": {tp: S(0)}
  "model.layers.*.self_attn.{q,k,v}_proj.weight": {tp: S(0)}
  "model.layers.*.self_attn.o_proj.weight": {tp: S(1)}
  "model.layers.*.mlp.{gate,up}_proj.weight": {tp: S(0)}
  "model.layers.*.mlp.down_proj.weight": {tp: S(1)}
  "lm_head.weight": {tp: S(0)}
default: replicate
"""


@pytest.fixture(scope="module")
def llama() -> ModuleGraph:
    return ModuleGraph.from_module(bundled.tiny_llama(), source="tiny_llama")


def attached(made: Run) -> list[Event]:
    return [event for event in made.events if event.kind == "attach"]


def test_every_boundary_of_a_llama_gets_its_installer(llama: ModuleGraph) -> None:
    made = run(llama, ShardingPlan.from_text(PLAN), "tp=2", "@run")
    names = [made.graph.path(event.nodes[0]) for event in attached(made)]
    layer = [f"model.layers.0.{name}" for name in ("self_attn", "self_attn.o_proj", "mlp")]
    assert {"model.embed_tokens", "lm_head", *layer} <= set(names)
    assert len(names) == 2 + 2 * 4
    assert {event.new["function"] for event in attached(made)} == {  # type: ignore[index]
        "hpx.runtime.boundaries:install"
    }
    assert "collectives" in made.facts


def test_a_run_with_attachments_reads_back_equal(llama: ModuleGraph) -> None:
    made = run(llama, ShardingPlan.from_text(PLAN), "tp=2", "@run")
    assert Run.from_json(made.to_json()) == made


def test_where_tp_is_not_active_nothing_is_attached_and_the_log_says_so(
    llama: ModuleGraph,
) -> None:
    made = run(llama, ShardingPlan.from_text(PLAN), "dp=2,tp=1", "@run")
    assert attached(made) == []
    notes = [event.why for event in made.events if event.pass_ == "insert-collectives"]
    assert notes == ["tp is not active: no boundary needs a collective"]


def test_without_the_pass_the_fact_does_not_hold(llama: ModuleGraph) -> None:
    assert "collectives" not in run(llama, ShardingPlan.from_text(PLAN), "tp=2").facts


def test_run_is_default_and_the_collectives() -> None:
    names = [pass_.info.name for pass_ in parse_pipeline("@run")]
    assert names == [
        *(pass_.info.name for pass_ in parse_pipeline("@default")),
        "insert-collectives",
    ]


def mlp() -> ModuleGraph:
    return graph_of(
        {"mlp.up.weight": (16, 8), "mlp.down.weight": (8, 16)},
        layouts={"mlp.up.weight": "tp:S(0)", "mlp.down.weight": "tp:S(1)"},
    )


def test_it_keeps_its_contract() -> None:
    check_contract(InsertCollectives(), mlp())


def test_what_is_attached_already_stays() -> None:
    assert_idempotent(InsertCollectives(), mlp())


def test_all_findings_are_told_together_and_name_the_parameters() -> None:
    graph = graph_of(
        {"a.up.weight": (16, 8), "b.down.weight": (8, 12)},
        layouts={"a.up.weight": "tp:S(0)", "b.down.weight": "tp:S(1)"},
    )
    with pytest.raises(ManyErrors) as caught:
        check_contract(InsertCollectives(), graph)
    assert "2 problems with boundaries; nothing was changed" in str(caught.value)
    assert "a.up.weight" in str(caught.value)
    assert "b.down.weight" in str(caught.value)


def test_the_integer_by_which_a_conv1d_views_its_outputs_is_divided() -> None:
    conv = "transformers.pytorch_utils.Conv1D"
    graph = graph_of(
        {"mlp.c_fc.weight": (8, 16), "mlp.c_proj.weight": (16, 8)},
        classes={"mlp.c_fc": conv, "mlp.c_proj": conv},
        attributes={"mlp.c_fc": {"nf": 16}, "mlp.c_proj": {"nf": 8}},
        layouts={"mlp.c_fc.weight": "tp:S(1)", "mlp.c_proj.weight": "tp:S(0)"},
    )
    after = check_contract(InsertCollectives(), graph).graph
    assert {p: after.get(p).attributes["nf"] for p in ("mlp.c_fc", "mlp.c_proj")} == {  # type: ignore[union-attr]
        "mlp.c_fc": 8,
        "mlp.c_proj": 8,
    }


def test_a_declared_output_over_a_block_with_whole_matrices_is_refused() -> None:
    graph = graph_of(
        {"h.0.qkv.weight": (24, 8), "h.0.fc.weight": (32, 8), "h.0.proj.weight": (8, 32)},
        layouts={
            "h.0.qkv.weight": "R",
            "h.0.fc.weight": "tp:S(0)",
            "h.0.proj.weight": "tp:S(1)",
        },
    )
    plan = ShardingPlan.from_text('params: {}\nboundaries:\n  "h.0": {output: R}\n')
    with pytest.raises(ManyErrors, match=r"'h\.\*?0?\.?qkv\.weight', whole, beside cut matrices"):
        check_contract(InsertCollectives(), graph, plan)
