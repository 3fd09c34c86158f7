from __future__ import annotations

import pytest

from hpx.errors import PassError
from hpx.passes.localize import Localize
from hpx.passes.update_heads import UpdateHeads
from hpx.testing import assert_idempotent, assert_pass, check_contract, graph_of, run_pass

BEFORE = graph_of(
    {"mlp.up.weight": (8, 4), "mlp.down.weight": (4, 8), "norm.weight": (4,)},
    layouts={"mlp.up.weight": "tp:S(0)", "mlp.down.weight": "tp:S(1)", "norm.weight": "R"},
)


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("forward", "a plain local tensor inside its module's forward"),
        ("permanent", "a plain local tensor for good"),
    ],
)
def test_every_parameter_with_a_layout_is_localized_in_the_mode_asked_for(
    mode: str, why: str
) -> None:
    outcome = assert_pass(
        Localize(mode=mode),  # type: ignore[arg-type]
        BEFORE,
        {path: {"localized": mode} for path in ("mlp.up.weight", "mlp.down.weight", "norm.weight")},
        events=[f"set localized {mode}: mlp.up.weight, mlp.down.weight, norm.weight"],
    )
    assert outcome.events[0].why == why


def test_the_default_is_local_inside_the_forward_only() -> None:
    assert Localize().mode == "forward"


@pytest.mark.parametrize("pattern", ["mlp", "mlp.*.weight", "mlp.{up,down}", "**.up.weight"])
def test_parameters_under_an_excluded_pattern_stay_dtensors(pattern: str) -> None:
    outcome = run_pass(Localize(exclude=(pattern,)), BEFORE)
    kept = {
        outcome.graph.path(node.id)
        for node in outcome.graph.parameters()
        if node.props["localized"] == "excluded"
    }
    assert kept == ({"mlp.up.weight"} if "**" in pattern else {"mlp.up.weight", "mlp.down.weight"})
    assert outcome.events[-1].why == f"stays a DTensor: exclude={pattern}"


def test_a_tied_parameter_is_excluded_by_any_of_its_names() -> None:
    before = graph_of(
        {"embed.weight": (8, 4)},
        tied={"head.weight": "embed.weight"},
        layouts={"embed.weight": "tp:S(0)"},
    )
    assert_pass(Localize(exclude=("head",)), before, {"embed.weight": {"localized": "excluded"}})


def test_a_pattern_that_matches_nothing_is_an_error_with_the_nearest_names() -> None:
    with pytest.raises(PassError, match=r"exclude 'mpl' matches no parameter. Fix: did you mean m"):
        run_pass(Localize(exclude=("mpl",)), BEFORE)


def test_a_projection_whose_counts_were_divided_cannot_stay_a_dtensor() -> None:
    before = graph_of(
        {"attn.q_proj.weight": (8, 8)},
        attributes={"attn": {"num_heads": 4}},
        layouts={"attn.q_proj.weight": "tp:S(0)"},
    )
    divided = run_pass(UpdateHeads(), before).graph
    with pytest.raises(PassError, match="num_heads of its module was divided for local tensors"):
        run_pass(Localize(exclude=("attn",)), divided)


def test_parameters_without_a_layout_are_left_alone() -> None:
    assert_pass(Localize(), graph_of({"w": (4,)}), {}, mesh="dp=2", events=[])


def test_it_keeps_its_contract_and_localizes_once() -> None:
    check_contract(Localize(), BEFORE)
    assert_idempotent(Localize(), BEFORE)
