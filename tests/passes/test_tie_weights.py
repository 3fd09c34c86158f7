from __future__ import annotations

import pytest
from torch import nn

from hpx.errors import PassError
from hpx.graph import ModuleGraph
from hpx.passes.tie_weights import TieWeights
from hpx.plan import ShardingPlan
from hpx.testing import assert_idempotent, assert_pass, check_contract, graph_of, run_pass

SHAPES = {"embed_tokens.weight": (8, 4), "mid.weight": (4, 4), "lm_head.weight": (8, 4)}
PAIR = ["embed_tokens.weight", "lm_head.weight"]


def tying(*pairs: list[str]) -> ShardingPlan:
    return ShardingPlan({}, tied=pairs, default="replicate")


def test_a_declared_pair_becomes_one_parameter_with_two_names() -> None:
    outcome = assert_pass(
        TieWeights(),
        graph_of(SHAPES),
        graph_of(
            {"embed_tokens.weight": (8, 4), "mid.weight": (4, 4)},
            tied={"lm_head.weight": "embed_tokens.weight"},
        ),
        plan=tying(PAIR),
        events=["alias lm_head.weight: embed_tokens.weight"],
    )
    assert outcome.events[0].why == (
        "declared tied by tied of the plan: embed_tokens.weight = lm_head.weight"
    )


def test_the_earlier_parameter_keeps_its_place_whichever_the_pair_names_first() -> None:
    before = graph_of(SHAPES)
    one = run_pass(TieWeights(), before, plan=tying(PAIR)).graph
    other = run_pass(TieWeights(), before, plan=tying(PAIR[::-1])).graph
    assert one == other


def test_three_names_declared_pair_by_pair_are_one_parameter() -> None:
    before = graph_of({"a.weight": (2, 2), "b.weight": (2, 2), "c.weight": (2, 2)})
    after = graph_of({"a.weight": (2, 2)}, tied={"b.weight": "a.weight", "c.weight": "a.weight"})
    plan = tying(["a.weight", "b.weight"], ["b.weight", "c.weight"])
    assert_pass(TieWeights(), before, after, plan=plan)


def test_the_models_own_map_ties_without_a_plan() -> None:
    outcome = run_pass(TieWeights(), graph_of(SHAPES, hints={"tied": [PAIR]}))
    assert [event.kind for event in outcome.events] == ["alias"]
    assert "the model's tied-keys map" in outcome.events[0].why


def test_a_pair_of_the_models_map_that_the_model_lacks_is_left_out() -> None:
    before = graph_of(SHAPES, hints={"tied": [["embed_tokens.weight", "encoder.weight"]]})
    assert_pass(TieWeights(), before, {}, events=[])


def test_the_config_ties_the_embedding_and_the_head_found_by_structure() -> None:
    outcome = run_pass(
        TieWeights(), graph_of(SHAPES, hints={"config": {"tie_word_embeddings": True}})
    )
    assert [event.kind for event in outcome.events] == ["alias"]
    assert "tie_word_embeddings of the config" in outcome.events[0].why


def test_the_config_ties_beside_pairs_of_the_plan_that_are_about_others() -> None:
    before = graph_of(
        {**SHAPES, "twin.weight": (4, 4)}, hints={"config": {"tie_word_embeddings": True}}
    )
    outcome = run_pass(TieWeights(), before, plan=tying(["mid.weight", "twin.weight"]))
    assert [event.kind for event in outcome.events] == ["alias", "alias"]


def test_a_config_that_ties_where_no_head_is_found_is_said_in_the_log() -> None:
    before = graph_of(
        {"embed_tokens.weight": (8, 4), "classifier.weight": (8, 4)},
        hints={"config": {"tie_word_embeddings": True}},
    )
    outcome = assert_pass(TieWeights(), before, {}, events=["note"])
    assert "tie_word_embeddings of the config ties nothing" in outcome.events[0].why


def test_a_config_that_does_not_tie_ties_nothing() -> None:
    before = graph_of(SHAPES, hints={"config": {"tie_word_embeddings": False}})
    assert_pass(TieWeights(), before, {}, events=[])


def test_what_the_model_shares_already_is_one_node_and_said_in_the_log() -> None:
    model = nn.Module()
    model.embed = nn.Embedding(8, 4)
    model.head = nn.Linear(4, 8, bias=False)
    model.head.weight = model.embed.weight
    before = ModuleGraph.from_module(model)
    outcome = assert_pass(TieWeights(), before, {}, events=["skip: embed.weight"])
    assert outcome.events[0].why == (
        "one parameter in the model already: embed.weight = head.weight"
    )


@pytest.mark.parametrize("missing", ["lm_haed.weight", "mid"])
def test_a_declared_pair_of_which_one_end_is_no_parameter_is_an_error(missing: str) -> None:
    with pytest.raises(PassError, match=f"names '{missing}', and there is no such parameter"):
        run_pass(TieWeights(), graph_of(SHAPES), plan=tying(["embed_tokens.weight", missing]))


def test_the_error_of_a_missing_end_has_the_nearest_names() -> None:
    with pytest.raises(PassError, match="nearest names are lm_head"):
        run_pass(TieWeights(), graph_of(SHAPES), plan=tying([PAIR[0], "lm_haed.weight"]))


def test_a_buffer_is_no_end_of_a_pair() -> None:
    before = graph_of({"a": (4,), "b": (4,)}, buffers=["b"])
    with pytest.raises(PassError, match="names 'b', and there is no such parameter"):
        run_pass(TieWeights(), before, plan=tying(["a", "b"]))


def test_ends_of_different_shapes_are_an_error() -> None:
    before = graph_of({"a": (8, 4), "b": (4, 8)})
    with pytest.raises(PassError, match=r"their shape differ: \(8, 4\) and \(4, 8\)"):
        run_pass(TieWeights(), before, plan=tying(["a", "b"]))


def test_ends_of_different_dtypes_are_an_error() -> None:
    before = graph_of({"a": (4,), "b": (4,)}, dtypes={"b": "bfloat16"})
    with pytest.raises(PassError, match="their dtype differ: float32 and bfloat16"):
        run_pass(TieWeights(), before, plan=tying(["a", "b"]))


def test_a_frozen_and_a_trained_end_are_an_error() -> None:
    before = graph_of({"a": (4,), "b": (4,)}, frozen=["b"])
    with pytest.raises(PassError, match="their requires_grad differ: True and False"):
        run_pass(TieWeights(), before, plan=tying(["a", "b"]))


def test_a_refused_pair_names_the_line_of_the_plan_file() -> None:
    text = "version: 1\nparams: {}\ntied:\n  - [a, c]\ndefault: replicate\n"
    plan = ShardingPlan.from_text(text, "plan.yaml")
    with pytest.raises(PassError, match=r"declared by plan.yaml:4"):
        run_pass(TieWeights(), graph_of({"a": (4,), "b": (4,)}), plan=plan)


def test_it_keeps_its_contract_and_ties_once() -> None:
    check_contract(TieWeights(), graph_of(SHAPES), tying(PAIR))
    assert_idempotent(TieWeights(), graph_of(SHAPES), tying(PAIR))
