from __future__ import annotations

from typing import TYPE_CHECKING

from hpx.graph import ModuleGraph
from hpx.plan import MatchResult, ShardingPlan, match_parameters

if TYPE_CHECKING:
    from tests.hpx.plan.conftest import GraphOf

LAYERS = [f"layers.{i}.{name}" for i in range(2) for name in ("w1.weight", "w2.weight")]


def match(graph: ModuleGraph, *patterns: str) -> MatchResult:
    return match_parameters(graph, ShardingPlan(dict.fromkeys(patterns, "R")).params)


def winners(result: MatchResult) -> dict[str, int | None]:
    return dict(entry for names in result.winner.values() for entry in names)


def test_the_first_rule_that_matches_wins(graph_of: GraphOf) -> None:
    result = match(graph_of(LAYERS), "layers.*.w1.weight", "**")
    assert winners(result) == dict(zip(LAYERS, [0, 1, 0, 1], strict=True))


def test_rules_that_match_and_lose_are_kept(graph_of: GraphOf) -> None:
    graph = graph_of(["a", "b"])
    result = match(graph, "a", "*", "**")
    assert result.losers == {graph.find("a"): (1, 2), graph.find("b"): (2,)}


def test_a_layer_wildcard_does_not_hide_the_1_of_w1(graph_of: GraphOf) -> None:
    result = match(graph_of(LAYERS), "layers.*.w1.weight")
    assert [name for name, index in winners(result).items() if index == 0] == [
        "layers.0.w1.weight",
        "layers.1.w1.weight",
    ]


def test_a_top_level_name_without_a_dot_is_matched(graph_of: GraphOf) -> None:
    assert winners(match(graph_of(["scale"]), "scale")) == {"scale": 0}


def test_a_part_of_digits_is_a_name(graph_of: GraphOf) -> None:
    assert winners(match(graph_of(["experts.10.w", "experts.1.w"]), "experts.1.w")) == {
        "experts.10.w": None,
        "experts.1.w": 0,
    }


def test_keys_of_a_dict_that_are_method_names_are_names(graph_of: GraphOf) -> None:
    result = match(graph_of(["type.weight", "forward.weight"]), "{type,forward}.weight")
    assert winners(result) == {"type.weight": 0, "forward.weight": 0}


def test_buffers_are_not_matched(graph_of: GraphOf) -> None:
    result = match(graph_of(["a.weight"], buffers=["a.mean"]), "a.*")
    assert winners(result) == {"a.weight": 0}


def test_a_tied_parameter_is_matched_under_every_name(graph_of: GraphOf) -> None:
    graph = graph_of(["embed.weight", "head.bias"], ties={"head.weight": "embed.weight"})
    result = match(graph, "head.*")
    node_id = graph.find("embed.weight")
    assert node_id is not None
    assert result.winner[node_id] == (("embed.weight", None), ("head.weight", 0))
    assert result.rule(node_id) is result.rules[0]
    assert result.uncovered == ()


def test_names_won_by_different_rules_are_a_conflict(graph_of: GraphOf) -> None:
    graph = graph_of(["embed.weight", "head.bias"], ties={"head.weight": "embed.weight"})
    result = match(graph, "embed.weight", "head.*")
    assert result.conflicts == (graph.find("embed.weight"),)
    assert result.losers == {}


def test_a_shared_module_is_walked_under_each_of_its_names(graph_of: GraphOf) -> None:
    graph = graph_of(["a.block.weight", "b.scale"], shared={"b.block": "a.block"})
    assert winners(match(graph, "b.*.weight")) == {
        "a.block.weight": None,
        "b.scale": None,
        "b.block.weight": 0,
    }


def test_a_module_that_contains_itself_ends(graph_of: GraphOf) -> None:
    graph = graph_of(["a.weight", "a.b.weight"], shared={"a.b.back": "a"})
    assert winners(match(graph, "**")) == {"a.weight": 0, "a.b.weight": 0}


def wrapped(graph_of: GraphOf) -> ModuleGraph:
    names = ["_orig_mod.layers.0._checkpoint_wrapped_module.w.weight"]
    wrappers = {"": "_orig_mod", "_orig_mod.layers.0": "_checkpoint_wrapped_module"}
    return graph_of(names, wrappers=wrappers)


def test_canonical_names_are_matched_without_the_parts_of_wrappers(graph_of: GraphOf) -> None:
    assert winners(match(wrapped(graph_of), "layers.*.w.weight")) == {"layers.0.w.weight": 0}


def test_the_parts_of_wrappers_may_be_written_in_a_rule(graph_of: GraphOf) -> None:
    pattern = "_orig_mod.layers.*._checkpoint_wrapped_module.w.weight"
    assert winners(match(wrapped(graph_of), pattern)) == {"layers.0.w.weight": 0}


def test_a_wildcard_does_not_stand_for_the_part_of_a_wrapper(graph_of: GraphOf) -> None:
    assert winners(match(wrapped(graph_of), "*.layers.*.w.weight")) == {"layers.0.w.weight": None}


def test_a_rule_that_matches_nothing_is_unmatched(graph_of: GraphOf) -> None:
    assert match(graph_of(["a"]), "a", "b").unmatched == ((1, None),)


def test_an_alternative_that_matches_nothing_is_unmatched(graph_of: GraphOf) -> None:
    result = match(graph_of(["q.weight", "k.weight", "k.bias"]), "{q,k,v}.{weight,bias}")
    pattern = result.rules[0].parsed
    assert [pattern.only(m) for _, m in result.unmatched if m] == ["v.{weight,bias}"]


def test_an_alternative_needs_one_match_with_any_other_alternative(graph_of: GraphOf) -> None:
    result = match(graph_of(["q.weight", "k.bias"]), "{q,k}.{weight,bias}")
    assert result.unmatched == ()


def test_only_the_outer_one_of_nested_unmatched_alternatives_is_named(graph_of: GraphOf) -> None:
    result = match(graph_of(["a"]), "{a,b{c,d}}")
    assert [m.span for _, m in result.unmatched if m] == [(3, 9)]


def test_a_range_needs_one_match_over_all(graph_of: GraphOf) -> None:
    assert match(graph_of(["layers.2.w"]), "layers.[0-7].w").unmatched == ()


def test_a_rule_that_never_wins_knows_the_rules_before_it(graph_of: GraphOf) -> None:
    result = match(graph_of(["a.w", "b.w", "c.x"]), "a.w", "b.w", "**.w", "**")
    assert result.beaten == {2: (0, 1)}


def test_uncovered_parameters_are_those_without_a_rule_for_any_name(graph_of: GraphOf) -> None:
    graph = graph_of(["a", "b"])
    assert match(graph, "a").uncovered == (graph.find("b"),)


def test_a_deep_tree_is_walked_without_recursion(graph_of: GraphOf) -> None:
    name = ".".join(["block"] * 900 + ["weight"])
    assert winners(match(graph_of([name]), "**.weight")) == {name: 0}


def test_parameters_come_in_the_order_of_the_model(graph_of: GraphOf) -> None:
    names = ["b", "a.w", "a.c.w", "d.w"]
    assert list(winners(match(graph_of(names), "**"))) == names
