from __future__ import annotations

import pytest
from hpx_decay.decay_groups import DecayGroups

from hpx.errors import PassError
from hpx.passes.stack_experts import StackExperts
from hpx.testing import assert_idempotent, assert_pass, check_contract, graph_of, run_pass

MODEL = graph_of(
    {"embed.weight": (256, 64), "up.weight": (128, 64), "norm.weight": (64,)},
    classes={"embed": "torch.nn.modules.sparse.Embedding"},
)
EXPERT = {"weight": (8, 4), "bias": (8,)}


def test_matrices_decay_and_vectors_and_embeddings_do_not() -> None:
    assert_pass(
        DecayGroups(),
        MODEL,
        {
            "embed.weight": {"decay": False},
            "up.weight": {"decay": True},
            "norm.weight": {"decay": False},
        },
        events=[
            "set decay False: embed.weight",
            "set decay True: up.weight",
            "set decay False: norm.weight",
        ],
    )


def test_an_embedding_decays_if_asked_for() -> None:
    outcome = assert_pass(
        DecayGroups(embeddings=True),
        MODEL,
        {
            "embed.weight": {"decay": True},
            "up.weight": {"decay": True},
            "norm.weight": {"decay": False},
        },
    )
    assert [event.why for event in outcome.events] == ["a matrix", "a vector"]


def test_a_head_that_is_tied_to_an_embedding_does_not_decay() -> None:
    tied = graph_of(
        {"embed.weight": (256, 64)},
        classes={"embed": "torch.nn.modules.sparse.Embedding"},
        tied={"head.weight": "embed.weight"},
    )
    assert_pass(DecayGroups(), tied, {"embed.weight": {"decay": False}})


def test_stacked_biases_of_experts_are_vectors() -> None:
    experts = graph_of({f"experts.{i}.up.{n}": s for i in range(4) for n, s in EXPERT.items()})
    stacked = run_pass(StackExperts(), experts).graph
    decided = run_pass(DecayGroups(), stacked).graph
    decay = {decided.path(node.id): node.props["decay"] for node in decided.parameters()}
    assert decay == {"experts.up": True, "experts.up_bias": False}


def test_a_frozen_parameter_is_left_alone() -> None:
    frozen = graph_of({"up.weight": (128, 64)}, frozen=["up.weight"])
    assert_pass(DecayGroups(), frozen, {}, events=["skip decay: up.weight"])


def test_a_pattern_that_matches_nothing_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(PassError, match=r"'up\.wieght' matches no parameter.*up\.weight"):
        assert_pass(DecayGroups(keep=("up.wieght",)), MODEL, {})


def test_the_pass_keeps_its_contract_and_is_idempotent() -> None:
    check_contract(DecayGroups(), MODEL)
    assert_idempotent(DecayGroups(), MODEL)
