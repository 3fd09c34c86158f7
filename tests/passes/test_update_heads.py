from __future__ import annotations

import pytest

from hpx.graph import ModuleGraph
from hpx.heads import KV_COUNTS, Q_COUNTS
from hpx.passes.update_heads import UpdateHeads
from hpx.plan import ShardingPlan
from hpx.testing import assert_idempotent, assert_pass, check_contract, graph_of
from tests.passes.heads import CUT, attention, heads_of, refused, skipped, update

# -- what is divided ---------------------------------------------------------------------------


def test_counts_are_divided_in_modules_whose_projections_are_cut() -> None:
    assert_pass(
        UpdateHeads(),
        attention(8, 4, integers={"num_heads": 8, "num_key_value_heads": 4}),
        {"layers.0.attn": {"num_heads": 2, "num_key_value_heads": 1}},
        mesh="tp=4",
        events=["set num_heads 2: layers.0.attn", "set num_key_value_heads 1: layers.0.attn"],
    )


def test_equal_modules_of_all_layers_are_one_event() -> None:
    outcome = update(attention(layers=3, integers={"n_heads": 8}))
    sets = [event for event in outcome.events if event.kind == "set"]
    assert [len(event.nodes) for event in sets] == [3]
    assert sets[0].why == "head count / tp 4: 8 -> 2"


@pytest.mark.parametrize("name", [*Q_COUNTS, *KV_COUNTS])
def test_every_known_count_is_divided(name: str) -> None:
    assert_pass(
        UpdateHeads(), attention(integers={name: 8}), {"layers.0.attn": {name: 2}}, mesh="tp=4"
    )


def test_a_count_on_a_child_of_the_attention_module_is_divided() -> None:
    before = graph_of(
        {"attn.q_proj.weight": (32, 32)},
        attributes={"attn.core": {"num_heads": 8}},
        layouts={"attn.q_proj.weight": "tp:S(0)"},
    )
    assert_pass(UpdateHeads(), before, {"attn.core": {"num_heads": 2}}, mesh="tp=4")


@pytest.mark.parametrize("name", ["split_size", "all_head_size"])
def test_a_width_equal_to_a_cut_projection_is_divided(name: str) -> None:
    before = attention(integers={"num_heads": 8, name: 32})
    changes = {"layers.0.attn": {"num_heads": 2, name: 8}}
    assert_pass(UpdateHeads(), before, changes, mesh="tp=4")


def test_a_width_of_something_else_stays() -> None:
    before = attention(integers={"num_heads": 8, "all_head_size": 48})
    assert_pass(UpdateHeads(), before, {"layers.0.attn": {"num_heads": 2}}, mesh="tp=4")


def test_the_projections_decide_not_the_name_of_the_module() -> None:
    names = {"mixer.query.weight": (32, 32), "mixer.out.weight": (32, 32)}
    before = graph_of(
        names, attributes={"mixer": {"n_head": 8}}, layouts={"mixer.query.weight": "tp:S(0)"}
    )
    assert_pass(UpdateHeads(), before, {"mixer": {"n_head": 2}}, mesh="tp=4")


def test_a_module_that_counts_heads_is_found_without_a_telling_name() -> None:
    before = graph_of(
        {"attn.mix.weight": (32, 32)},
        attributes={"attn": {"num_heads": 8}},
        layouts={"attn.mix.weight": "tp:S(0)"},
    )
    assert_pass(UpdateHeads(), before, {"attn": {"num_heads": 2}}, mesh="tp=4")


def test_a_layer_that_counts_heads_around_its_attention_module_keeps_its_count() -> None:
    before = graph_of(
        {"layer.fc1.weight": (64, 32), "layer.attn.q_proj.weight": (32, 32)},
        attributes={"layer": {"num_heads": 8}, "layer.attn": {"num_heads": 8}},
        layouts={"layer.fc1.weight": "tp:S(0)", "layer.attn.q_proj.weight": "tp:S(0)"},
    )
    outcome = assert_pass(UpdateHeads(), before, {"layer.attn": {"num_heads": 2}}, mesh="tp=4")
    assert "num_heads = 8 stays: it is not on the attention module or its children" in skipped(
        outcome
    )


def test_projections_inside_lora_layers_are_found() -> None:
    before = graph_of(
        {"attn.q_proj.base_layer.weight": (32, 32), "attn.q_proj.lora_A.weight": (4, 32)},
        attributes={"attn": {"num_heads": 8}},
        layouts={"attn.q_proj.base_layer.weight": "tp:S(0)"},
    )
    assert_pass(UpdateHeads(), before, {"attn": {"num_heads": 2}}, mesh="tp=4")


def test_projections_that_are_bare_parameters_are_found() -> None:
    before = graph_of(
        {"attn.q_proj_weight": (32, 32)},
        attributes={"attn": {"num_heads": 8}},
        layouts={"attn.q_proj_weight": "tp:S(0)"},
    )
    assert_pass(UpdateHeads(), before, {"attn": {"num_heads": 2}}, mesh="tp=4")


# -- what stays --------------------------------------------------------------------------------


def test_nothing_changes_where_tp_is_not_active() -> None:
    before = attention(integers={"num_heads": 8})
    outcome = assert_pass(UpdateHeads(), before, {}, mesh="dp=4,tp=1", events=["note"])
    assert outcome.events[0].why == "tp is not active: every count stays"


def test_a_module_whose_projections_stay_whole_keeps_its_counts() -> None:
    whole = dict.fromkeys(CUT, "R")
    before = attention(integers={"num_heads": 8}, layouts=whole)
    assert_pass(UpdateHeads(), before, {}, mesh="tp=4", events=[])


def test_a_projection_that_is_cut_on_its_inputs_has_all_heads() -> None:
    before = attention(integers={"num_heads": 8}, layouts={**dict.fromkeys(CUT, "tp:S(1)")})
    assert_pass(UpdateHeads(), before, {}, mesh="tp=4", events=[])


@pytest.mark.parametrize("name", ["head_dim", "head_size", "attention_head_size"])
def test_the_size_of_a_head_is_never_divided_and_said_so(name: str) -> None:
    outcome = update(attention(integers={"num_heads": 8, name: 4}))
    assert skipped(outcome) == [f"{name} = 4 stays: the size of one head is the same on every rank"]


def test_the_number_of_groups_is_never_divided_and_said_so() -> None:
    outcome = update(attention(8, 4, integers={"num_heads": 8, "num_key_value_groups": 2}))
    assert skipped(outcome) == [
        "num_key_value_groups = 2 stays: query heads per kv head are the same on every rank"
    ]


@pytest.mark.parametrize("name", ["embed_dim", "hidden_size", "inner_dim", "d_model"])
def test_a_width_that_may_be_the_models_is_left_and_said_so(name: str) -> None:
    outcome = update(attention(integers={"num_heads": 8, name: 32}))
    (why,) = skipped(outcome)
    assert why.startswith(f"{name} = 32 stays: it may be the model's width; declare it under heads")


def test_a_module_that_stores_no_count_is_derived_from_shape_without_a_warning() -> None:
    outcome = update(attention(8, 4, integers={"head_dim": 4}))
    assert outcome.problems == ()
    assert skipped(outcome)[-1] == (
        "derived from shape: 8 query heads, 4 kv heads; no count is stored, views follow"
    )


def test_a_module_with_neither_count_nor_head_dim_is_a_warning() -> None:
    outcome = update(attention())
    assert [problem.text for problem in outcome.problems] == [
        "q is sharded on heads, no head count was rewritten"
    ]


def names_alone(config: dict[str, object] | None = None) -> ModuleGraph:
    from hpx.graph.edit import set_key
    from hpx.graph.from_names import NamedTensor, graph_from_names
    from hpx.layout import Layout

    hints = {"config": config} if config else None
    tensors = [NamedTensor("attn.q_proj.weight", (32, 32), "float32")]
    before = graph_from_names(tensors, source="x", hints=hints)
    set_key(before, [before.find("attn.q_proj.weight") or -1], "layout", Layout.parse("tp:S(0)"))
    return before


def test_a_tree_of_names_alone_says_that_heads_are_not_known() -> None:
    assert [problem.text for problem in update(names_alone()).problems] == [
        "q is sharded on heads, and from names alone it is not known how many there are"
    ]


def test_a_config_beside_names_tells_how_many_heads_there_are() -> None:
    outcome = update(names_alone({"num_attention_heads": 8}))
    assert outcome.problems == ()
    assert "derived from shape: 8 query heads" in skipped(outcome)[0]
    assert "6 % 4 = 2" in refused(attention(6, 6, config={"num_attention_heads": 6}))


# -- what is refused ---------------------------------------------------------------------------


def test_a_count_that_does_not_divide_names_all_counts_and_the_sizes_that_divide_them() -> None:
    text = refused(attention(16, 6, integers={"n_heads": 16, "n_kv_heads": 6}))
    assert "layers.0.attn: heads cannot be cut by tp=4: k_proj, v_proj would split a head" in text
    assert "6 % 4 = 2 (n_kv_heads); beside 16 (n_heads). Fix: use a tp of 1, 2" in text


def test_a_count_that_has_a_second_name_has_to_divide_too() -> None:
    text = refused(attention(16, 16, integers={"n_head": 16, "n_local_heads": 6}))
    assert "6 % 4 = 2 (n_local_heads); beside 16 (n_head)" in text


def test_fewer_kv_heads_than_ranks_is_an_error_with_the_ways_out() -> None:
    text = refused(attention(8, 2, integers={"num_heads": 8, "num_key_value_heads": 2}))
    assert "2 % 4 = 2 (num_key_value_heads)" in text
    assert "keep q, k, v and o of this module whole (replicate)" in text
    assert "repeat its 2 kv head(s) to 4 in the model" in text


def test_equal_refusals_of_all_layers_are_one_error() -> None:
    text = refused(attention(6, 6, integers={"num_heads": 6}, layers=80))
    assert len(text.splitlines()) == 2
    assert "layers.{0-79}.attn" in text


def test_counts_are_read_off_rows_and_head_dim_where_no_attribute_has_them() -> None:
    text = refused(attention(6, 6, 8, integers={"head_dim": 8}))
    assert "6 % 4 = 2 (q heads: q_proj rows / head_dim 8)" in text
    assert "6 % 4 = 2 (kv heads: k_proj rows / head_dim 8)" in text


def test_counts_are_read_off_the_config_where_nothing_else_has_them() -> None:
    config = {"num_attention_heads": 16, "num_key_value_heads": 6, "head_dim": 4}
    text = refused(attention(16, 6, 4, config=config))
    assert "6 % 4 = 2 (kv heads: k_proj rows / head_dim of the config 4)" in text


def test_a_query_with_a_gate_beside_each_head_is_not_counted_twice() -> None:
    before = graph_of(
        {"attn.q_proj.weight": (96, 32), "attn.k_proj.weight": (48, 32)},
        attributes={"attn": {"head_dim": 8}},
        layouts={"attn.q_proj.weight": "tp:S(0)", "attn.k_proj.weight": "tp:S(0)"},
        hints={"config": {"num_attention_heads": 6, "num_key_value_heads": 6}},
    )
    assert "6 % 4 = 2" in refused(before)


def test_a_count_of_zero_is_refused() -> None:
    assert "0 % 4 = 0 (num_heads)" in refused(attention(integers={"num_heads": 0}))


@pytest.mark.parametrize("whole", ["k", "v", "q"])
def test_projections_that_are_not_cut_alike_are_refused(whole: str) -> None:
    layouts = {**CUT, whole: "R"}
    before = attention(integers={"num_heads": 8, "num_key_value_heads": 8}, layouts=layouts)
    text = refused(before)
    assert f"cut on heads, {whole}_proj whole" in text
    assert "would meet the wrong key and value heads" in text


def test_one_kv_head_that_every_rank_holds_keeps_its_count_and_is_pointed_out() -> None:
    layouts = {**CUT, "k": "R", "v": "R"}
    integers = {"num_heads": 8, "num_key_value_heads": 1}
    outcome = assert_pass(
        UpdateHeads(),
        attention(8, 1, integers=integers, layouts=layouts),
        {"layers.0.attn": {"num_heads": 2}},
        mesh="tp=4",
    )
    assert (
        "num_key_value_heads = 1 stays: the projections that it counts are whole on every rank"
        in skipped(outcome)
    )
    assert "while the one kv head stays whole" in outcome.problems[0].text


@pytest.mark.parametrize("name", ["q_norm", "k_norm", "q_layernorm"])
def test_a_norm_over_all_heads_beside_a_cut_projection_is_refused(name: str) -> None:
    before = attention(
        extra={f"{name}.weight": (32,)}, classes={name: "olmo.RMSNorm"}, integers={"head_dim": 4}
    )
    text = refused(before)
    assert f"{name}.weight: it normalises over all heads" in text


def test_a_norm_over_the_dims_of_one_head_is_fine() -> None:
    before = attention(
        extra={"q_norm.weight": (4,)}, classes={"q_norm": "q.RMSNorm"}, integers={"head_dim": 4}
    )
    assert update(before).problems == ()


def test_a_norm_before_the_projections_may_be_as_wide_as_they_are() -> None:
    before = attention(
        extra={"norm.weight": (32,)}, classes={"norm": "x.LayerNorm"}, integers={"head_dim": 4}
    )
    assert update(before).problems == ()


def test_a_list_with_one_module_a_head_is_refused() -> None:
    before = attention(
        extra={f"q_layernorm.norms.{i}.weight": (4,) for i in range(8)}, integers={"num_heads": 8}
    )
    text = refused(before)
    assert "q_layernorm.norms: it holds one module for each of 8 heads, and heads are cut" in text


# -- declared attributes -----------------------------------------------------------------------


def test_a_declared_attribute_is_divided_and_ends_the_warning() -> None:
    outcome = assert_pass(
        UpdateHeads(),
        attention(integers={"n": 8}),
        {"layers.0.attn": {"n": 2}},
        plan=heads_of("n"),
        mesh="tp=4",
        events=["set n 2: layers.0.attn"],
    )
    assert outcome.events[0].why == "declared under heads: / tp 4: 8 -> 2"
    assert outcome.problems == ()


def test_a_declared_attribute_that_is_not_there_is_an_error_with_those_that_are() -> None:
    text = refused(attention(integers={"n": 8}), heads_of("m"))
    assert "there is no integer attribute 'm': its integers: n=8" in text


@pytest.mark.parametrize("name", ["head_dim", "num_key_value_groups"])
def test_a_declared_attribute_that_is_protected_is_an_error(name: str) -> None:
    text = refused(attention(integers={name: 4}), heads_of(name))
    assert f"'{name}' is never divided" in text


def test_a_declared_attribute_that_is_divided_anyway_is_an_error() -> None:
    text = refused(attention(integers={"num_heads": 8}), heads_of("num_heads"))
    assert "'num_heads' is divided already without being declared" in text


@pytest.mark.parametrize(("value", "fix"), [(6, "use a tp of 1, 2, 3, 6"), (0, "take it out")])
def test_a_declared_attribute_that_does_not_divide_is_an_error(value: int, fix: str) -> None:
    text = refused(attention(integers={"n": value}), heads_of("n"))
    assert f"n = {value} cannot be divided by tp=4" in text
    assert fix in text


def test_a_declared_attribute_where_nothing_is_cut_is_an_error() -> None:
    before = graph_of(
        {"attn.q_proj.weight": (32, 32), "head.w": (4, 4)},
        attributes={"head": {"n": 8}, "attn": {"num_heads": 8}},
        layouts={"attn.q_proj.weight": "R"},
    )
    plan = ShardingPlan({}, heads={"head": ["n"]}, default="replicate")
    assert "n = 8 would be divided where nothing is cut on tp" in refused(before, plan)


def test_a_declared_pattern_that_matches_no_module_is_an_error_with_the_nearest() -> None:
    plan = ShardingPlan({}, heads={"layers.*.atn": ["n"]}, default="replicate")
    text = refused(attention(integers={"n": 8}), plan)
    assert "heads 'layers.*.atn' matches no module" in text
    assert "did you mean layers.0.attn?" in text


def test_a_declared_attribute_inside_a_wrapper_is_that_of_the_module_inside() -> None:
    import torch
    from torch import nn

    from hpx.graph.edit import set_key
    from hpx.layout import Layout

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj = nn.Linear(32, 32)
            self.n = 8

    model = nn.Module()
    compiled = torch.compile(Attention(), backend="eager")
    assert isinstance(compiled, nn.Module)
    model.attn = compiled
    before = ModuleGraph.from_module(model)
    set_key(before, [before.find("attn.q_proj.weight") or -1], "layout", Layout.parse("tp:S(0)"))
    plan = ShardingPlan({}, heads={"attn": ["n"]}, default="replicate")
    after = update(before, plan).graph
    assert after.module(after.find("attn") or -1).attributes["n"] == 2


# -- applied again -----------------------------------------------------------------------------


def test_a_second_run_with_the_same_tp_changes_nothing() -> None:
    before = attention(integers={"num_heads": 8, "n": 8})
    assert_idempotent(UpdateHeads(), before, heads_of("n"), "tp=4")


def test_a_second_run_with_another_tp_is_an_error() -> None:
    after = update(attention(integers={"num_heads": 8})).graph
    text = refused(after, mesh="tp=2")
    assert "num_heads was divided before, for another tp: 8 became 2, not 4" in text


def test_it_keeps_its_contract() -> None:
    check_contract(UpdateHeads(), attention(integers={"num_heads": 8, "n": 8}), heads_of("n"))
