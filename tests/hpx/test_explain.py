from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hpx.errors import MeshError, UsageError
from hpx.run import Run

if TYPE_CHECKING:
    from tests.hpx.conftest import GraphOf, RunOf

STACKED = "model.layers.0.mlp.experts.gate_proj"
EXPERT = "model.layers.0.mlp.experts.5.gate_proj.weight"
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def test_a_stacked_parameter_says_what_it_is_made_of(moe: Run) -> None:
    text = str(moe.explain(STACKED))
    assert "parameter [8, 32, 64] float32, 64.0 KiB, trained" in text
    assert "from stack(model.layers.0.mlp.experts.{0-7}.gate_proj.weight)" in text


def test_events_are_told_in_order_with_pass_reason_and_rule(moe: Run) -> None:
    lines = str(moe.explain(STACKED)).splitlines()
    history = lines[lines.index("what happened") : lines.index("what a rank holds")]
    passes = [line.split(": ")[0].strip() for line in history if line[2:3].isdigit()]
    assert passes == sorted(passes)
    assert passes[0] == "2. stack-experts"
    assert "     rule: plan.yaml:10 'model.layers.*.mlp.experts.*' (user file)" in history


def test_a_fresh_run_and_a_loaded_one_say_the_same(moe_run: Run, tmp_path: Path) -> None:
    loaded = Run.load(moe_run.save(tmp_path / "run.json"))
    for name in (STACKED, EXPERT, Q_PROJ, "model.layers.1.self_attn", "model.norm"):
        assert str(moe_run.explain(name, rank=1)) == str(loaded.explain(name, rank=1))
        fresh = json.loads(json.dumps(moe_run.explain(name).to_json()))
        assert fresh == json.loads(json.dumps(loaded.explain(name).to_json()))


def test_the_old_name_of_an_expert_leads_to_its_slot(moe: Run) -> None:
    explanation = moe.explain(EXPERT)
    assert f"became slot 5 of 8 of {STACKED} (step 2, stack-experts)" in str(explanation)
    assert f"slot 5, which {EXPERT} became, is held at ep=2" in str(explanation)


def test_the_old_name_has_the_history_of_what_it_became(moe: Run) -> None:
    assert moe.explain(EXPERT).events == moe.explain(STACKED).events


def test_json_is_one_entry_with_events_in_full_and_tried(moe: Run) -> None:
    record = moe.explain(STACKED).to_json()
    param = moe.by_name[STACKED]
    seqs = [event["seq"] for event in record["events"]]  # type: ignore[attr-defined]
    assert set(param.events) <= set(seqs)
    assert {**param.to_json(), "events": record["events"]}.items() <= record.items()
    assert [entry["matched"] for entry in record["tried"]] == [False] * 6  # type: ignore[attr-defined]


def test_rules_that_lost_say_where_they_stopped_closest_first(moe: Run) -> None:
    lost = moe.explain(STACKED).tried
    assert lost[0].rule.pattern == "model.layers.*.mlp.gate.weight"
    assert lost[0].stopped_at == "'experts' stands where 'gate' is expected"
    assert f"plan.yaml:9 {lost[0].rule.pattern!r} (user file): {lost[0].stopped_at}" in str(
        moe.explain(STACKED)
    )


def test_rules_that_matched_and_lost_stand_apart_from_those_that_came_close(
    graph_of: GraphOf, run_of: RunOf
) -> None:
    graph = graph_of({f"a.{name}.weight": (8, 4) for name in "qko"} | {"scale": (4,)})
    rules = {"a.q.*": {"tp": "S(0)"}, "a.k.*": {"tp": "S(0)"}, "a.*.weight": {}, "**": {}}
    run = run_of(graph, {name: rule or "replicate" for name, rule in rules.items()}, "tp=2")
    lines = str(run.explain("a.q.weight")).splitlines()
    at, close = lines.index("matched and lost"), lines.index("came close")
    assert [line.split()[2] for line in lines[at + 1 : close - 1]] == ["'a.*.weight'", "'**'"]
    assert lines[close + 1].split()[2] == "'a.k.*'"
    tried = run.explain("a.q.weight").to_json()["tried"]
    assert isinstance(tried, list)
    assert [entry["matched"] for entry in tried] == [True, True, False]


def test_m4_each_parameter_of_a_moe_shows_its_mesh_axes_and_rule(moe: Run) -> None:
    q = str(moe.explain(Q_PROJ))
    expert = str(moe.explain(STACKED))
    router = str(moe.explain("model.layers.0.mlp.gate.weight"))
    assert "dense mesh dp=2,tp=2 (4 ranks), layout tp:S(0)" in q
    assert "plan.yaml:5" in q
    assert "expert mesh edp=1,ep=4 (4 ranks), layout ep:S(0)" in expert
    assert "plan.yaml:10" in expert
    assert "dense mesh dp=2,tp=2 (4 ranks), layout R" in router
    assert "plan.yaml:9" in router


def test_m5_index_ranges_are_shown_and_not_only_placements(
    graph_of: GraphOf, run_of: RunOf
) -> None:
    run = run_of(graph_of({"up.weight": (16, 16)}), {"up.weight": {"tp": "S(0)"}}, "dp=2,tp=4")
    text = str(run.explain("up.weight", rank=6))
    assert "    tp=2  [8:12, 0:16]" in text
    assert "rank 6, at dp=1, tp=2\n  holds [8:12, 0:16] = [4, 16], 256 bytes" in text


def test_m6_uneven_pieces_are_listed_with_the_empty_rank(graph_of: GraphOf, run_of: RunOf) -> None:
    graph = graph_of({"table.weight": (5, 8)}, classes={"table": "Embedding"})
    rules = {"table.weight": {"tp": "S(0)"}}
    run = run_of(graph, rules, "tp=4", "@default, shard-params{uneven=allow}")
    text = str(run.explain("table.weight", rank=3))
    assert "uneven: tp on dim 0: 2, 2, 1, 0; empty at tp=3 (ranks 3)" in text
    assert "this rank is empty" in text


def test_n9_ranges_are_shown_for_any_number_of_dims(moe: Run) -> None:
    assert "    ep=1  [2:4, 0:32, 0:64]" in str(moe.explain(STACKED))


def test_a_rank_is_pulled_back_to_the_experts_that_it_holds(moe: Run) -> None:
    explanation = moe.explain(STACKED, rank=3)
    assert "rank 3, at edp=0, ep=3\n  holds [6:8, 0:32, 0:64]" in str(explanation)
    assert "  experts 6..7 of 8\n" in str(explanation)
    assert "  = model.layers.0.mlp.experts.{6-7}.gate_proj.weight [0:32, 0:64] each" in str(
        explanation
    )
    assert explanation.to_json()["rank"] == {
        "rank": 3,
        "coordinate": {"edp": 0, "ep": 3},
        "ranges": [[6, 8], [0, 32], [0, 64]],
        "local_shape": [2, 32, 64],
        "sources": [
            {
                "names": ["model.layers.0.mlp.experts.{6-7}.gate_proj.weight"],
                "count": 2,
                "ranges": [[0, 32], [0, 64]],
            }
        ],
    }


def test_a_rank_that_the_mesh_lacks_is_an_error(moe: Run) -> None:
    with pytest.raises(MeshError, match="no rank 4"):
        moe.explain(STACKED, rank=4)


# R4: why something is replicated


def test_r4_replicated_because_the_rule_says_so(moe: Run) -> None:
    decided = moe.explain("model.layers.0.mlp.gate.weight").to_json()["decided"]
    assert decided == (
        "replicated, rule says replicate [plan.yaml:9 'model.layers.*.mlp.gate.weight' (user file)]"
    )


def test_r4_replicated_by_default_of_the_plan(graph_of: GraphOf, run_of: RunOf) -> None:
    graph = graph_of({"up.weight": (8, 8), "scale": (8,)})
    run = run_of(graph, {"up.weight": {"tp": "S(0)"}}, default="replicate")
    decided = run.explain("scale").to_json()["decided"]
    assert decided == (
        "replicated, no rule matches: the plan's default is replicate "
        "[the plan's default (default of the plan)]"
    )


def test_r4_the_bias_of_a_rowwise_layer(graph_of: GraphOf, run_of: RunOf) -> None:
    graph = graph_of({"down.weight": (8, 8), "down.bias": (8,)})
    run = run_of(graph, {"down.weight": {"tp": "S(1)"}})
    decided = run.explain("down.bias").to_json()["decided"]
    assert isinstance(decided, str)
    assert decided.startswith("replicated, bias of a rowwise layer")


def test_r4_a_norm_is_called_one(moe: Run) -> None:
    decided = moe.explain("model.norm.weight").to_json()["decided"]
    assert str(decided).endswith("; it belongs to a norm")


def test_r4_no_pass_decided(graph_of: GraphOf, run_of: RunOf) -> None:
    run = run_of(graph_of({"a": (8,)}), {}, pipeline="tie-weights")
    decided = run.explain("a").to_json()["decided"]
    assert decided == ("no layout: no pass of this run decided one, so every rank holds it whole")


def test_r4_no_weight_axis_is_active(graph_of: GraphOf, run_of: RunOf) -> None:
    run = run_of(graph_of({"a": (8,)}), {"a": "replicate"}, "dp=4")
    assert "mesh dp=4 has no weight axis larger than 1" in str(run.explain("a"))


def test_r7_every_rule_names_the_source_of_the_plan(graph_of: GraphOf, run_of: RunOf) -> None:
    run = run_of(graph_of({"up.weight": (8, 8)}), {"up.weight": {"tp": "S(0)"}})
    text = str(run.explain("up.weight"))
    rules = [line for line in text.splitlines() if "'up.weight'" in line]
    assert rules
    assert all("(user, from Python)" in line for line in rules)


def test_r3_a_top_level_name_without_a_dot_is_explained(graph_of: GraphOf, run_of: RunOf) -> None:
    run = run_of(graph_of({"scale": (8,)}), {"scale": {"tp": "S(0)"}})
    assert "    tp=1  [2:4]" in str(run.explain("scale"))


def test_h8_a_vector_as_long_as_the_heads_is_explained_by_its_rule(
    graph_of: GraphOf, run_of: RunOf
) -> None:
    graph = graph_of(
        {"attn.sinks": (8,), "attn.q_proj.weight": (16, 16)}, attributes={"attn": {"num_heads": 8}}
    )
    rules = {"attn.q_proj.weight": {"tp": "S(0)"}, "attn.sinks": {"tp": "S(0)"}}
    text = str(run_of(graph, rules).explain("attn.sinks", rank=2))
    assert "rank 2, at tp=2\n  holds [4:6] = [2]" in text


# names


def test_p7_a_tied_group_has_one_history_under_all_its_names(
    graph_of: GraphOf, run_of: RunOf
) -> None:
    graph = graph_of({"embed.weight": (8, 8)}, ties={"head.weight": "embed.weight"})
    run = run_of(graph, {"embed.weight": {"tp": "S(0)"}})
    one, other = run.explain("embed.weight"), run.explain("head.weight")
    assert one.events == other.events
    for explanation in (one, other):
        assert "one parameter, 2 names: embed.weight, head.weight" in str(explanation)


def test_a_name_that_tying_replaced_leads_to_the_group(graph_of: GraphOf, run_of: RunOf) -> None:
    graph = graph_of({"embed.weight": (8, 8), "head.weight": (8, 8)})
    rules = {"embed.weight": {"tp": "S(0)"}}
    run = run_of(graph, rules, tied=[["embed.weight", "head.weight"]])
    text = str(run.explain("head.weight"))
    assert "is one more name of embed.weight" in text
    assert "tie-weights: tied" in text


def test_wrapper_parts_may_be_given_or_left_out(graph_of: GraphOf, run_of: RunOf) -> None:
    graph = graph_of({"layer._orig_mod.up.weight": (8, 8)}, wrappers={"layer": "_orig_mod"})
    run = run_of(graph, {"layer.up.weight": {"tp": "S(0)"}})
    short, full = run.explain("layer.up.weight"), run.explain("layer._orig_mod.up.weight")
    assert short.events == full.events
    assert "canonical name: layer.up.weight" in str(full)


def test_a_module_shows_its_edited_attributes(moe: Run) -> None:
    text = str(moe.explain("model.layers.0.self_attn"))
    assert "module hpx.bundled_modules.Attention" in text
    assert "  num_heads = 8 -> 4" in text
    assert "5. update-heads: num_heads: 8 -> 4" in text


def test_an_attribute_is_explained_by_its_own_events(moe: Run) -> None:
    explanation = moe.explain("model.layers.0.self_attn.num_heads")
    assert {event.key for event in explanation.events} == {"attributes.num_heads"}
    assert "8 at first, 4 now" in str(explanation)
    record = explanation.to_json()
    assert (record["kind"], record["entry"], record["now"]) == ("attribute", 8, 4)


def test_a_deliberate_non_edit_is_explained(moe: Run) -> None:
    text = str(moe.explain("model.layers.0.self_attn.head_dim"))
    assert "update-heads: left head_dim as it is" in text


def test_a_removed_module_says_where_its_weights_went(moe: Run) -> None:
    text = str(moe.explain("model.layers.0.mlp.experts.5"))
    assert "removed in step 2 by stack-experts" in text
    assert f"{EXPERT} became slot 5 of 8 of {STACKED}" in text


def test_a_buffer_is_told_from_a_parameter(graph_of: GraphOf, run_of: RunOf) -> None:
    graph = graph_of({"up.weight": (8, 8)}, buffers={"rope.inv_freq": (4,)})
    run = run_of(graph, {"up.weight": {"tp": "S(0)"}})
    explanation = run.explain("rope.inv_freq")
    assert "buffer: [4] float32, 16 bytes" in str(explanation)
    assert explanation.to_json()["kind"] == "buffer"


def test_a_misspelt_name_is_an_error_with_the_nearest(moe: Run) -> None:
    with pytest.raises(UsageError, match=r"did you mean model\.norm\.weight\?"):
        moe.explain("model.nrm.weight")


def test_a_name_without_its_prefix_finds_the_nearest_anywhere(moe: Run) -> None:
    with pytest.raises(UsageError, match=r"layers\.[01]\.self_attn\.q_proj\.weight"):
        moe.explain("q_proj.weight")


# why not


def test_why_not_names_the_skip_of_the_pass(moe: Run) -> None:
    answer = moe.why_not("model.layers.0.self_attn.head_dim", "update-heads")
    assert not answer.acted
    assert "left head_dim as it is" in str(answer)


def test_why_not_of_a_pass_that_acted_tells_what_it_did(moe: Run) -> None:
    answer = moe.why_not("lm_head.weight", "shard-params")
    assert answer.acted
    assert "shard-params acted on lm_head.weight" in str(answer)
    assert "layout = tp:S(0)" in str(answer)


def test_why_not_of_a_pass_that_had_nothing_to_do_says_so(moe: Run) -> None:
    answer = moe.why_not("model.norm.weight", "stack-experts")
    assert not answer.acted
    assert "no event of it names model.norm.weight" in str(answer)


def test_why_not_of_a_node_that_was_gone_by_then(moe: Run) -> None:
    answer = moe.why_not("model.layers.0.mlp.experts.5", "update-heads")
    assert "it was gone by then: stack-experts: removed" in str(answer)


def test_why_not_of_a_pass_that_was_not_listed(graph_of: GraphOf, run_of: RunOf) -> None:
    run = run_of(graph_of({"a": (8,)}), {}, pipeline="tie-weights")
    answer = run.why_not("a", "localize")
    assert answer.reasons == ("localize is not in the pipeline of this run: tie-weights",)


def test_why_not_of_a_misspelt_pass_is_an_error_with_the_nearest(moe: Run) -> None:
    with pytest.raises(UsageError, match=r"did you mean shard-params"):
        moe.why_not("lm_head.weight", "shardparams")


def test_why_not_as_json(moe: Run) -> None:
    record = moe.why_not("lm_head.weight", "update-heads").to_json()
    assert (record["pass"], record["acted"], record["events"]) == ("update-heads", False, [])


# a loaded run


def test_a_loaded_run_is_explained_without_heavy_imports_or_expansion(
    moe_run: Run, tmp_path: Path
) -> None:
    path = moe_run.save(tmp_path / "run.json")
    program = f"""
import sys
from hpx.run import Run
run = Run.load({str(path)!r})
run.explain({EXPERT!r}, rank=1), run.explain("model.layers.0.self_attn"), run.explain({Q_PROJ!r})
run.why_not({Q_PROJ!r}, "localize")
heavy = {{"torch", "networkx", "pydantic", "rich", "yaml", "transformers"}} & set(sys.modules)
assert not heavy, heavy
assert not {{"entry", "graph"}} & set(vars(run)), "the graph was expanded"
"""
    subprocess.run([sys.executable, "-P", "-c", program], check=True)
