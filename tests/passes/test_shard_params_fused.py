"""Fused projections and quantised blocks: what `shard-params` refuses to cut, and what it may."""

from __future__ import annotations

import pytest

from hpx.graph import ModuleGraph
from hpx.plan import ShardingPlan
from hpx.testing import graph_of
from tests.passes.sharding import CONV1D, layouts, refused, shard


def sharded(before: ModuleGraph, plan: ShardingPlan, mesh: str = "tp=2") -> dict[str, str]:
    return layouts(shard(before, plan, mesh))


def cutting(layout: dict[str, str], *names: str, **declared: object) -> ShardingPlan:
    return ShardingPlan(
        dict.fromkeys(names, layout),
        default="replicate",
        **declared,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "name",
    [
        "qkv.weight",
        "qkv_proj.weight",
        "query_key_value.weight",
        "Wqkv.weight",
        "in_proj_weight",
        "in_proj_qkvz.weight",
        "c_attn.weight",
        "att_proj.weight",
        "kv_proj.weight",
        "kv_a_proj_with_mqa.weight",
        "gate_up_proj.weight",
        "w13.weight",
        "W_pack.weight",
        "qkv.bias",
        "in_proj_bias",
    ],
)
def test_a_parameter_that_looks_fused_and_is_cut_without_a_declaration_is_refused(
    name: str,
) -> None:
    shape = (24,) if name.endswith("bias") else (24, 8)
    text = refused(graph_of({f"attn.{name}": shape}), cutting({"tp": "S(0)"}, f"attn.{name}"))
    assert f"attn.{name}, rule 1: it looks like a fused projection and is cut on dim 0" in text
    assert "would be silently wrong" in text


def test_a_fused_projection_may_stay_whole() -> None:
    before = graph_of({"qkv.weight": (24, 8), "up.weight": (8, 8)})
    assert sharded(before, cutting({"tp": "S(0)"}, "up.weight"))["qkv.weight"] == "R"


def test_a_fused_projection_may_be_cut_on_its_other_dim() -> None:
    before = graph_of({"qkv.weight": (24, 8)})
    assert sharded(before, cutting({"tp": "S(1)"}, "qkv.weight")) == {"qkv.weight": "tp:S(1)"}


def test_the_packed_dim_of_a_transposed_fused_projection_is_its_second() -> None:
    before = graph_of({"c_attn.weight": (8, 24)}, classes={"c_attn": CONV1D})
    assert "is cut on dim 1" in refused(before, cutting({"tp": "S(1)"}, "c_attn.weight"))


def test_projections_in_latent_attention_that_go_head_by_head_may_be_cut() -> None:
    before = graph_of({"attn.kv_b_proj.weight": (32, 4), "attn.q_b_proj.weight": (24, 4)})
    plan = cutting({"tp": "S(0)"}, "attn.*.weight")
    assert set(sharded(before, plan).values()) == {"tp:S(0)"}


def test_a_matrix_three_times_as_wide_in_a_module_with_heads_looks_fused() -> None:
    before = graph_of({"attn.mix.weight": (24, 8)}, attributes={"attn": {"num_heads": 4}})
    assert "looks like a fused" in refused(before, cutting({"tp": "S(0)"}, "attn.mix.weight"))


def test_a_gated_mlp_in_one_matrix_is_seen_from_what_the_next_one_takes() -> None:
    before = graph_of({"mlp.Wi.weight": (32, 8), "mlp.Wo.weight": (8, 16)})
    plan = ShardingPlan({"mlp.Wi.weight": {"tp": "S(0)"}, "mlp.Wo.weight": {"tp": "S(1)"}})
    assert "mlp.Wi.weight, rule 1" in (text := refused(before, plan))
    assert "it gives 32, and mlp.Wo.weight takes 16" in text


def test_a_plain_mlp_is_not_taken_for_a_gated_one() -> None:
    before = graph_of({"mlp.fc1.weight": (32, 8), "mlp.fc2.weight": (8, 32)})
    plan = ShardingPlan({"mlp.fc1.weight": {"tp": "S(0)"}, "mlp.fc2.weight": {"tp": "S(1)"}})
    assert sharded(before, plan) == {"mlp.fc1.weight": "tp:S(0)", "mlp.fc2.weight": "tp:S(1)"}


@pytest.mark.parametrize(
    ("up", "down", "dims"),
    [
        ((4, 32, 8), (4, 8, 16), (1, 2)),
        ((4, 8, 32), (4, 16, 8), (2, 1)),
    ],
)
def test_a_gated_stack_of_experts_is_seen_however_it_is_stored(
    up: tuple[int, ...], down: tuple[int, ...], dims: tuple[int, int]
) -> None:
    before = graph_of({"experts.w1": up, "experts.w2": down})
    rules = {"experts.w1": {"tp": f"S({dims[0]})"}, "experts.w2": {"tp": f"S({dims[1]})"}}
    text = refused(before, ShardingPlan(rules))
    assert (
        f"experts.w1, rule 1: it looks like a fused projection and is cut on dim {dims[0]}" in text
    )


def test_a_fused_expert_weight_may_be_cut_on_its_expert_dim() -> None:
    before = graph_of({"experts.gate_up_proj": (4, 32, 8)})
    plan = cutting({"ep": "S(0)"}, "experts.gate_up_proj")
    assert sharded(before, plan, "dp=2,ep=2") == {"experts.gate_up_proj": "ep:S(0)"}


@pytest.mark.parametrize("dim", [1, 2])
def test_a_fused_expert_weight_is_not_cut_on_another_dim(dim: int) -> None:
    before = graph_of({"experts.gate_up_proj": (4, 32, 8)})
    plan = cutting({"tp": f"S({dim})"}, "experts.gate_up_proj")
    assert f"is cut on dim {dim}" in refused(before, plan)


def test_the_blocks_of_a_fused_expert_weight_are_fused_too() -> None:
    before = graph_of({"experts.gate_up_proj_blocks": (4, 32, 8, 16)})
    plan = cutting({"tp": "S(1)"}, "experts.gate_up_proj_blocks")
    assert "looks like a fused projection" in refused(before, plan)


# -- told from head counts ---------------------------------------------------------------------

GROUPED = {"num_heads": 8, "num_key_value_heads": 2, "head_dim": 4}


def attention(counts: dict[str, int], **shapes: tuple[int, int]) -> ModuleGraph:
    return graph_of(
        {f"attn.{name}.weight": shape for name, shape in shapes.items()},
        attributes={"attn": counts},
    )


def columns(*names: str, o: bool = True) -> ShardingPlan:
    rules = {f"attn.{name}.weight": {"tp": "S(0)"} for name in names}
    return ShardingPlan(
        {**rules, **({"attn.o.weight": {"tp": "S(1)"}} if o else {})}, default="replicate"
    )


@pytest.mark.parametrize("o", [True, False])
@pytest.mark.parametrize("name", ["mixer", "proj_in", "c_in", "in_linear"])
def test_the_rows_of_q_k_and_v_in_one_matrix_are_refused_whatever_its_name(
    name: str, o: bool
) -> None:
    before = attention(GROUPED, **{name: (48, 32), "o": (32, 32)})
    text = refused(before, columns(name, o=o))
    assert "rows 48 = (8 + 2*2) * 4: looks like q, k and v in one" in text


@pytest.mark.parametrize("name", ["kqv", "q_k_v", "Wkqv", "to_q_kv", "k_v", "vk", "context_kv"])
def test_more_names_of_fused_projections_are_known(name: str) -> None:
    before = graph_of({f"attn.{name}.weight": (40, 32)})
    assert "looks like a fused projection" in refused(before, columns(name, o=False))


def test_groups_that_no_count_tells_are_tried() -> None:
    before = attention({"num_heads": 8, "head_dim": 4}, mixer=(48, 32), o=(32, 32))
    assert "rows 48 = (8 + 2*2) * 4" in refused(before, columns("mixer"))


def test_k_and_v_in_one_beside_q_are_refused() -> None:
    counts = {"num_heads": 8, "num_key_value_heads": 4, "head_dim": 4}
    before = attention(counts, q=(32, 32), context=(32, 32), o=(32, 32))
    text = refused(before, columns("q", "context"))
    assert "attn.context.weight" in text
    assert "rows 32 = 2 * 4 * 4: looks like k and v in one" in text


def test_more_rows_than_the_next_matrix_takes_are_refused_beside_head_counts() -> None:
    before = attention({"num_heads": 16}, mixer=(136, 64), o=(64, 64))
    assert "it gives 136, and o beside it takes 64" in refused(before, columns("mixer"))


@pytest.mark.parametrize("names", [("q_proj", "k_proj", "v_proj"), ("a", "b", "c")])
def test_separate_projections_three_times_as_wide_as_the_model_are_cut(
    names: tuple[str, str, str],
) -> None:
    counts = {"num_heads": 12, "head_dim": 8}
    before = attention(counts, **dict.fromkeys(names, (96, 32)), o=(32, 96))
    assert sharded(before, columns(*names))[f"attn.{names[0]}.weight"] == "tp:S(0)"


def test_separate_projections_of_other_names_with_fewer_keys_are_cut() -> None:
    shapes = {"proj_q": (32, 32), "proj_k": (16, 32), "proj_v": (16, 32), "o": (32, 32)}
    counts = {"num_heads": 8, "num_key_value_heads": 4, "head_dim": 4}
    before = attention(counts, **shapes)
    assert sharded(before, columns("proj_q", "proj_k", "proj_v"))["attn.o.weight"] == "tp:S(1)"


def test_an_mlp_in_a_module_that_counts_heads_is_no_fused_projection() -> None:
    shapes = {"fc1.weight": (48, 32), "fc2.weight": (32, 48), "attn.q.weight": (32, 32)}
    before = graph_of(
        {f"attn.{name}": shape for name, shape in shapes.items()}, attributes={"attn": GROUPED}
    )
    plan = ShardingPlan(
        {"attn.fc1.weight": {"tp": "S(0)"}, "attn.fc2.weight": {"tp": "S(1)"}}, default="replicate"
    )
    assert sharded(before, plan)["attn.fc1.weight"] == "tp:S(0)"


@pytest.mark.parametrize("inner", ["base_layer", "linear"])
def test_a_gated_mlp_is_seen_through_what_wraps_its_layers(inner: str) -> None:
    before = graph_of({f"mlp.fc1.{inner}.weight": (128, 32), f"mlp.fc2.{inner}.weight": (32, 64)})
    rules = {f"mlp.fc1.{inner}.weight": {"tp": "S(0)"}, f"mlp.fc2.{inner}.weight": {"tp": "S(1)"}}
    assert f"it gives 128, and mlp.fc2.{inner}.weight takes 64" in refused(
        before, ShardingPlan(rules)
    )


# -- declared parts ----------------------------------------------------------------------------

ONE_AFTER_THE_OTHER = {"qkv.weight": {"dim": 0, "parts": {"q": 16, "k": 4, "v": 4}}}
BY_HEAD = {"qkv.weight": {"dim": 0, "repeat": 4, "parts": {"q": 8, "k": 8, "v": 8}}}


def test_parts_one_after_the_other_are_refused_without_pack_fused() -> None:
    plan = cutting({"tp": "S(0)"}, "qkv.weight", packed=ONE_AFTER_THE_OTHER)
    text = refused(graph_of({"qkv.weight": (24, 8)}), plan)
    assert "qkv.weight, rule 1: it is cut across its packed parts (packed 'qkv.weight')" in text
    assert "a plain cut in 2 goes across them" in text
    assert "add pack-fused" in text


def test_a_part_that_does_not_divide_is_named_with_its_rows() -> None:
    declared = {"qkv.weight": {"dim": 0, "parts": {"q": 8, "k": 1, "v": 3}}}
    plan = cutting({"tp": "S(0)"}, "qkv.weight", packed=declared)
    assert "part k has 1 rows, 1 % 2 = 1" in refused(graph_of({"qkv.weight": (12, 8)}), plan)


def test_parts_that_repeat_head_by_head_may_be_cut_between_heads() -> None:
    plan = cutting({"tp": "S(0)"}, "qkv.weight", packed=BY_HEAD)
    assert sharded(graph_of({"qkv.weight": (24, 8)}), plan, "tp=4") == {"qkv.weight": "tp:S(0)"}


def test_the_bias_of_a_declared_projection_has_the_declaration_of_its_weight() -> None:
    plan = cutting({"tp": "S(0)"}, "qkv.weight", packed=BY_HEAD)
    before = graph_of({"qkv.weight": (24, 8), "qkv.bias": (24,)})
    assert sharded(before, plan)["qkv.bias"] == "tp:S(0)"


def test_parts_that_repeat_less_often_than_there_are_ranks_are_refused() -> None:
    plan = cutting({"tp": "S(0)"}, "qkv.weight", packed=BY_HEAD)
    text = refused(graph_of({"qkv.weight": (24, 8)}), plan, "tp=8")
    assert "its parts repeat 4 times along dim 0, which 8 ranks cannot share evenly" in text
    assert "use a tp of 1, 2, 4" in text


def test_parts_that_do_not_add_up_are_refused_with_the_sum() -> None:
    plan = cutting({"tp": "S(0)"}, "qkv.weight", packed=ONE_AFTER_THE_OTHER)
    text = refused(graph_of({"qkv.weight": (26, 8)}), plan)
    assert "q 16 + k 4 + v 4 = 24 rows, and dim 0 has 26" in text


def test_a_declared_dim_that_is_not_there_is_refused() -> None:
    declared = {"qkv.weight": {"dim": 2, "parts": {"q": 24}}}
    plan = cutting({"tp": "S(0)"}, "qkv.weight", packed=declared)
    assert "packs dim 2 of 2 dims" in refused(graph_of({"qkv.weight": (24, 8)}), plan)


def test_a_declaration_that_matches_nothing_is_an_error() -> None:
    plan = cutting({"tp": "S(0)"}, "up.weight", packed=BY_HEAD)
    text = refused(graph_of({"up.weight": (24, 8)}), plan)
    assert "packed 'qkv.weight' matches no parameter" in text


# -- quantised blocks --------------------------------------------------------------------------


def quantised(scale: str, rows: int = 512) -> ModuleGraph:
    return graph_of(
        {"up.weight": (rows, 256), f"up.{scale}": (rows // 128, 2)},
        dtypes={"up.weight": "float8_e4m3fn"},
    )


@pytest.mark.parametrize("scale", ["weight_scale_inv", "weight_scale", "weight_scales"])
def test_a_cut_through_a_block_that_shares_a_scale_is_refused(scale: str) -> None:
    text = refused(quantised(scale), cutting({"tp": "S(0)"}, "up.weight"), "tp=8")
    assert "dim 0 of size 512 is quantised in 4 blocks of 128" in text
    assert "allowed tp 1, 2, 4" in text


def test_a_cut_between_blocks_is_fine() -> None:
    plan = cutting({"tp": "S(0)"}, "up.weight", "up.weight_scale_inv")
    assert set(sharded(quantised("weight_scale_inv"), plan, "tp=4").values()) == {"tp:S(0)"}


def test_the_blocks_of_stacked_experts_are_found_under_their_stacked_name() -> None:
    before = graph_of({"experts.up": (4, 512, 256), "experts.up_weight_scale_inv": (4, 4, 2)})
    text = refused(before, cutting({"tp": "S(1)"}, "experts.up"), "tp=8")
    assert "dim 1 of size 512 is quantised in 4 blocks of 128" in text


@pytest.mark.parametrize("scale", ["scale", "scales", "scale_inv", "absmax", "weight_block_scale"])
def test_scales_of_other_names_are_found(scale: str) -> None:
    text = refused(quantised(scale), cutting({"tp": "S(0)"}, "up.weight"), "tp=8")
    assert f"4 blocks of 128 ({scale})" in text


def test_a_cut_through_a_block_beside_a_smaller_last_one_is_refused() -> None:
    before = graph_of({"up.weight": (192, 256), "up.weight_scale_inv": (2, 2)})
    plan = cutting({"tp": "S(0)"}, "up.weight", "up.weight_scale_inv")
    text = refused(before, plan, "tp=2")
    assert "192 is quantised in 2 blocks of 128, the last of 64 (weight_scale_inv)" in text
    assert "a rank would hold 96; allowed tp 1" in text


def test_a_size_of_blocks_that_the_module_stores_is_believed() -> None:
    before = graph_of(
        {"up.weight": (192, 256), "up.weight_scale_inv": (2, 2)},
        attributes={"up": {"block_size": 96}},
    )
    plan = cutting({"tp": "S(0)"}, "up.weight", "up.weight_scale_inv")
    assert set(sharded(before, plan, "tp=2").values()) == {"tp:S(0)"}


def test_a_scale_for_each_row_may_be_cut_anywhere_between_rows() -> None:
    before = graph_of({"up.weight": (12, 8), "up.weight_scale": (12, 1)})
    plan = cutting({"tp": "S(0)"}, "up.weight", "up.weight_scale")
    assert set(sharded(before, plan, "tp=4").values()) == {"tp:S(0)"}
