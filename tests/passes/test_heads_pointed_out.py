"""What `update-heads` cannot divide and a person should look at."""

from __future__ import annotations

import pytest

from hpx.graph import ModuleGraph
from hpx.testing import graph_of
from tests.passes.heads import CUT, attention, skipped, update


def test_a_vector_with_one_value_a_head_is_pointed_out_with_its_rule() -> None:
    outcome = update(attention(integers={"num_heads": 8}, extra={"sinks": (8,)}))
    assert "replicated: no rule; size equals num_heads 8" in skipped(outcome)
    assert outcome.problems[0].text.startswith("attn.sinks is replicated, and its size 8 equals")
    assert outcome.problems[0].hint.endswith("give it {tp: S(0)} in the plan: attn.sinks")


def test_a_gate_with_one_output_a_head_is_pointed_out() -> None:
    outcome = update(attention(integers={"num_heads": 8}, extra={"g_proj.weight": (8, 32)}))
    assert "g_proj.weight is replicated, and its size 8" in outcome.problems[0].text


def test_a_table_of_positions_with_a_column_a_head_is_pointed_out() -> None:
    outcome = update(
        attention(
            integers={"num_heads": 8},
            extra={"bias.weight": (16, 8)},
            classes={"bias": "torch.nn.modules.sparse.Embedding"},
        )
    )
    assert outcome.problems[0].hint.endswith("give it {tp: S(1)} in the plan: bias.weight")


def test_a_norm_with_a_row_a_head_is_pointed_out() -> None:
    outcome = update(
        attention(
            8,
            4,
            integers={"head_dim": 4},
            extra={"q_norm.weight": (8, 4), "k_norm.weight": (4, 4)},
            classes={"q_norm": "CohereLayerNorm", "k_norm": "CohereLayerNorm"},
        )
    )
    assert [problem.text.split()[0] for problem in outcome.problems] == [
        "q_norm.weight",
        "k_norm.weight",
    ]


def test_a_vector_that_is_cut_with_the_heads_is_no_problem() -> None:
    before = attention(
        integers={"num_heads": 8}, extra={"sinks": (8,)}, layouts={**CUT, "sinks": "tp:S(0)"}
    )
    assert update(before).problems == ()


def test_an_integer_of_an_unknown_name_that_equals_the_head_count_is_pointed_out() -> None:
    outcome = update(attention(integers={"head_dim": 4, "n": 8}))
    assert [problem.text for problem in outcome.problems] == [
        "n = 8 equals the head count of its module, and is not divided"
    ]


@pytest.mark.parametrize(
    "name", ["layer_idx", "v_head_dim", "kv_lora_rank", "sliding_window", "nf"]
)
def test_an_integer_whose_name_tells_that_it_counts_something_else_is_not(name: str) -> None:
    assert update(attention(integers={"head_dim": 4, name: 8})).problems == ()


def nested(counts: dict[str, dict[str, int]]) -> ModuleGraph:
    shapes = {f"layer.attn.{name}.weight": (32, 32) for name in ("q_proj", "k_proj", "v_proj")}
    return graph_of(
        {**shapes, "layer.attn.core.inner.scale": (3,)},
        attributes={"layer.attn": {"head_dim": 4}, **counts},
        layouts=dict.fromkeys(shapes, "tp:S(0)"),
    )


@pytest.mark.parametrize("where", ["layer", "layer.attn.core.inner"])
def test_a_count_on_a_module_near_the_attention_is_a_warning(where: str) -> None:
    outcome = update(nested({where: {"num_heads": 8}}))
    (problem,) = outcome.problems
    assert problem.level == "warning"
    assert problem.text == (
        "q is sharded on heads, and num_heads = 8 near its module was not rewritten"
    )
    assert [outcome.graph.path(node) for node in problem.nodes] == [where]
    assert not any("no count is stored" in line for line in skipped(outcome))


@pytest.mark.parametrize(
    ("name", "told"), [("q_size", True), ("wide", True), ("sliding_window", False)]
)
def test_an_integer_as_large_as_a_cut_width_is_a_warning(name: str, *, told: bool) -> None:
    before = graph_of(
        {f"attn.{x}_proj.weight": (32, 16) for x in "qkv"} | {"attn.o_proj.weight": (16, 32)},
        attributes={"attn": {"num_heads": 8, name: 32}},
        layouts={f"attn.{x}_proj.weight": "tp:S(0)" for x in "qkv"}
        | {"attn.o_proj.weight": "tp:S(1)"},
    )
    texts = [problem.text for problem in update(before).problems]
    expected = f"{name} = 32 equals the width of v_proj, which is cut, and is not divided"
    assert texts == ([expected] if told else [])


@pytest.mark.parametrize(("name", "told"), [("q_size", True), ("wide", False)])
def test_an_integer_that_may_be_the_width_of_the_stream_has_to_be_named_after_heads(
    name: str, *, told: bool
) -> None:
    before = graph_of(
        {f"attn.{x}_proj.weight": (32, 32) for x in "qkvo"},
        attributes={"attn": {"num_heads": 8, name: 32}},
        layouts={f"attn.{x}_proj.weight": "tp:S(0)" for x in "qkv"}
        | {"attn.o_proj.weight": "tp:S(1)"},
    )
    assert len(update(before).problems) == int(told)


def test_one_value_a_head_between_dims_of_one_is_pointed_out_with_its_dim() -> None:
    before = graph_of(
        {f"attn.{x}_proj.weight": (32, 32) for x in "qkvo"} | {"attn.scale": (1, 8, 1, 1)},
        attributes={"attn": {"num_heads": 8}},
        layouts={f"attn.{x}_proj.weight": "tp:S(0)" for x in "qkv"}
        | {"attn.o_proj.weight": "tp:S(1)", "attn.scale": "R"},
    )
    (problem,) = update(before).problems
    assert problem.hint == (
        "if it holds one value a head, give it {tp: S(1)} in the plan: attn.scale"
    )
