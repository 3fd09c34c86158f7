from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpx.graph import ModuleGraph
from hpx.plan import ShardingPlan, fold_names, match_parameters, plan_findings, tried

if TYPE_CHECKING:
    from tests.hpx.plan.conftest import GraphOf

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
NAMES = [
    "model.embed_tokens.weight",
    *(f"model.layers.{i}.self_attn.{name}.weight" for i in range(3) for name in PROJECTIONS),
    *(f"model.layers.{i}.mlp.gate.weight" for i in range(3)),
    "model.norm.weight",
    "lm_head.weight",
]


@pytest.fixture
def model(graph_of: GraphOf) -> ModuleGraph:
    return graph_of(NAMES, buffers=["model.rope"])


def findings(graph: ModuleGraph, *lines: str, **options: object) -> list[str]:
    text = "\n".join(["params:", *(f"  {line}" for line in lines), "default: replicate"])
    plan = ShardingPlan.from_text(text, file="plan.yaml")
    result = match_parameters(graph, plan.params)
    return [str(error) for error in plan_findings(plan, result, **options)]  # type: ignore[arg-type]


def test_a_plan_that_fits_has_no_findings(model: ModuleGraph) -> None:
    assert findings(model, '"model.layers.*.self_attn.{q,k}_proj.weight": {tp: S(0)}') == []


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("lm_haed.weight", "did you mean lm_head.weight"),
        ("norm.weight", "did you mean model.norm.weight"),
        ("model.embed_token.weight", "did you mean model.embed_tokens.weight"),
        ("model.layers.*.self_attn.q_prj.weight", "model.layers.0.self_attn.q_proj.weight"),
        ("modle.layers.*.mlp.gate.weight", "did you mean model.layers.0.mlp.gate.weight"),
        ("model.layers.*.mlp.gaet.weight", "did you mean model.layers.0.mlp.gate.weight"),
        ("**.mlp.gaet.weight", "model.layers.0.mlp.gate.weight"),
    ],
)
def test_a_rule_that_matches_nothing_is_an_error_with_the_nearest_names(
    model: ModuleGraph, pattern: str, near: str
) -> None:
    (message,) = findings(model, f'"{pattern}": R')
    assert message.startswith(f"plan.yaml:2: rule '{pattern}' matches no parameter")
    assert near in message
    assert message.count("weight") <= 5


def test_an_alternative_that_matches_nothing_is_an_error_that_names_it(model: ModuleGraph) -> None:
    (message,) = findings(model, '"model.layers.*.self_attn.{q,k,u}_proj.weight": R')
    assert message.startswith("plan.yaml:2: alternative 'u' of rule")


def test_a_rule_that_names_a_module_is_told_how_to_name_its_parameters(model: ModuleGraph) -> None:
    (message,) = findings(model, '"model.layers.*.mlp": R')
    assert "model.layers.0.mlp is a module" in message
    assert "Fix: write 'model.layers.*.mlp.**'" in message


def test_a_rule_that_names_a_buffer_is_told_so(model: ModuleGraph) -> None:
    (message,) = findings(model, '"model.rope": R')
    assert "model.rope is no parameter" in message


def test_a_model_without_parameters_is_the_reason(graph_of: GraphOf) -> None:
    (message,) = findings(graph_of([]), '"a": R')
    assert "the model has no parameters" in message


def test_a_rule_for_names_that_stacking_replaced_is_pointed_to_the_new_ones(
    model: ModuleGraph,
) -> None:
    pattern = "model.layers.*.mlp.experts.*.{up,gate}_proj.weight"
    new = "model.layers.*.mlp.experts.{up,gate}_proj"
    (message,) = findings(model, f'"{pattern}": R', pointer={pattern: new}.get)
    assert message.endswith(
        f"stacking replaced these names. Fix: write '{new}', or leave the experts apart with"
        " experts: []"
    )


def test_a_rule_that_never_wins_is_an_error_with_the_rules_before_it(model: ModuleGraph) -> None:
    (message,) = findings(model, '"**.norm.weight": R', '"model.norm.*": {tp: S(0)}')
    assert message.startswith("plan.yaml:3: rule 'model.norm.*' never wins")
    assert "rule '**.norm.weight' (plan.yaml:2)" in message


def test_a_rule_that_wins_somewhere_may_lose_elsewhere(model: ModuleGraph) -> None:
    assert findings(model, '"**.norm.weight": R', '"model.**": {tp: S(0)}') == []


def test_tied_names_won_by_different_rules_are_an_error_with_both(graph_of: GraphOf) -> None:
    graph = graph_of(["embed.weight", "head.bias"], ties={"head.weight": "embed.weight"})
    (message,) = findings(graph, '"embed.weight": {tp: S(0)}', '"head.*": R')
    assert message.startswith("plan.yaml:3: tied names embed.weight, head.weight are won by diff")
    assert "embed.weight by rule 'embed.weight' (plan.yaml:2) with tp:S(0)" in message
    assert "head.weight by rule 'head.*' (plan.yaml:3) with R" in message


def test_parameters_without_a_rule_are_one_error_with_count_and_groups(model: ModuleGraph) -> None:
    plan = ShardingPlan({"model.{norm,embed_tokens}.weight": "R"})
    (error,) = plan_findings(plan, match_parameters(model, plan.params))
    assert error.what == "16 parameters have no rule"
    assert error.why is not None
    assert error.why.startswith("model.layers.[0-2].self_attn.q_proj.weight x3, ")
    assert error.why.endswith("and 1 more")


def test_expert_weights_of_another_naming_are_counted_and_listed(graph_of: GraphOf) -> None:
    graph = graph_of(["experts.w1", "experts.w3", "experts.w2"])
    plan = ShardingPlan({"experts.{gate,up,down}_proj": {"ep": "S(0)"}})
    unmatched, uncovered = plan_findings(plan, match_parameters(graph, plan.params))
    assert "matches no parameter" in str(unmatched)
    assert str(uncovered).startswith(
        "3 parameters have no rule: experts.w1, experts.w3, experts.w2"
    )


def test_the_default_replicate_covers_what_no_rule_matches(model: ModuleGraph) -> None:
    plan = ShardingPlan({"lm_head.weight": "R"}, default="replicate")
    assert plan_findings(plan, match_parameters(model, plan.params)) == []


def test_names_fold_over_every_number_in_them() -> None:
    names = [f"layers.{i}.experts.{j}.w1" for i in range(2) for j in range(3)]
    assert fold_names([*names, "norm"]) == ["layers.[0-1].experts.[0-2].w1 x6", "norm"]


def test_digits_inside_a_part_do_not_fold() -> None:
    assert fold_names(["w1", "w2"]) == ["w1", "w2"]


PLAN = ShardingPlan.from_text(
    """
params:
  "model.layers.*.mlp.gate.weight": R
  "**.gate.*": {tp: S(0)}
  "model.layers.*.mlp.up.weight": {tp: S(0)}
  "model.layers.*": R
  "lm_head.weight": R
  "model.layers.*.mlp.gate.weight.scale": R
""",
    file="plan.yaml",
)


def test_a_rule_that_matches_and_loses_knows_the_rule_that_comes_first() -> None:
    first, *_ = tried(PLAN, ["model.layers.0.mlp.gate.weight"])
    assert first.matched
    assert first.rule.pattern == "**.gate.*"
    winner = "rule 'model.layers.*.mlp.gate.weight' (plan.yaml:3)"
    assert first.stopped_at == f"{winner} comes first"


def test_rules_that_came_close_say_where_they_stopped_furthest_first() -> None:
    _, *others = tried(PLAN, ["model.layers.0.mlp.gate.weight"])
    assert [(entry.rule.line, entry.matched, entry.stopped_at) for entry in others] == [
        (8, False, "the name ends where 'scale' is expected"),
        (5, False, "'gate' stands where 'up' is expected"),
        (6, False, "the pattern ends before 'mlp'"),
    ]


def test_a_rule_with_nothing_in_common_was_not_close() -> None:
    patterns = [entry.rule.pattern for entry in tried(PLAN, ["model.layers.0.mlp.gate.weight"])]
    assert "lm_head.weight" not in patterns


def test_a_tied_parameter_is_tried_under_all_of_its_names() -> None:
    plan = ShardingPlan({"head.weight": "R", "embed.bias": "R"})
    (entry,) = tried(plan, ["embed.weight", "head.weight"])
    assert entry.to_json() == {
        "rule": plan.params[1].to_json(),
        "matched": False,
        "stopped_at": "'weight' stands where 'bias' is expected",
    }
