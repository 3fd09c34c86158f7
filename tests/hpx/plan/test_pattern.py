from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpx.errors import PlanError
from hpx.plan import Pattern, RuleSet
from hpx.plan.pattern_text import one_pattern

MATCHING = [
    ("lm_head", "lm_head"),
    ("layers.*.w1", "layers.11.w1"),
    ("layers.0.w*", "layers.0.w12"),
    ("layers.0.w*", "layers.0.w"),
    ("*", "scale"),
    ("**", "a.b.c"),
    ("**.norm.weight", "norm.weight"),
    ("**.norm.weight", "model.layers.0.norm.weight"),
    ("a.**.b", "a.b"),
    ("a.**.b", "a.x.y.b"),
    ("a.**", "a"),
    ("**.**", "a"),
    ("{q,k,v}_proj", "k_proj"),
    ("{q,k}_{a,b}", "q_b"),
    ("{gate,{up,down}}.weight", "down.weight"),
    ("bias{,_ih}", "bias"),
    ("{w[1-3],gate}", "w2"),
    ("layers.[0-7]", "layers.7"),
    ("layers.[0-255]", "layers.199"),
    ("layers.[8-12]", "layers.10"),
    ("layer[0-7]", "layer3"),
    ("w1[0-3]", "w12"),
    ("a+b.(c)", "a+b.(c)"),
    ("größe", "größe"),
]
NOT_MATCHING = [
    ("layers.*.w1", "layers.0.w2"),
    ("layers.*.w1", "layers.0.mlp.w1"),
    ("*", "a.b"),
    ("layers.*", "layers"),
    ("a.**.b", "a.b.c"),
    ("{q,k}_proj", "v_proj"),
    ("layers.[0-7]", "layers.8"),
    ("layers.[0-7]", "layers.07"),
    ("layers.[8-12]", "layers.1"),
    ("layers.[0-7]", "layers.17"),
    ("layers.[0-7]", "layers.x"),
    ("layers.[0-7]", "layers.\N{ARABIC-INDIC DIGIT THREE}"),
    ("a.b", "axb"),
    ("(a|b)", "a"),
    ("w+", "ww"),
]


@pytest.mark.parametrize(("pattern", "name"), MATCHING)
def test_a_pattern_matches_a_name(pattern: str, name: str) -> None:
    assert Pattern.parse(pattern).matches(name)
    assert RuleSet([pattern]).match(name) == (0,)


@pytest.mark.parametrize(("pattern", "name"), NOT_MATCHING)
def test_a_pattern_does_not_match_a_name(pattern: str, name: str) -> None:
    assert not Pattern.parse(pattern).matches(name)
    assert RuleSet([pattern]).match(name) == ()


@pytest.mark.parametrize(
    ("text", "character", "reason"),
    [
        ("a..b", 3, "a segment is empty"),
        (".a", 1, "a segment is empty"),
        ("a.", 3, "a segment is empty"),
        ("a.b**", 4, "not a whole segment"),
        ("***", 1, "not a whole segment"),
        ("a.{b,c", 3, "never closed"),
        ("a.b}", 4, "outside {...}"),
        ("a,b", 2, "outside {...}"),
        ("a]", 2, "outside [...]"),
        ("{a.b,c}", 3, "a dot stands inside"),
        ("{}", 1, "no alternatives"),
        ("a.{,b}", 3, "can be empty"),
        ("[abc]", 1, "number range"),
        ("[0-", 1, "number range"),
        ("[07-9]", 1, "number range"),
        ("[7-0]", 1, "backwards"),
        ("{a,b}" * 11, 1, "2048 patterns"),
        ("{" * 9 + "a" + "}" * 9, 9, "nested"),
    ],
)
def test_a_malformed_pattern_is_an_error_with_the_character(
    text: str, character: int, reason: str
) -> None:
    with pytest.raises(PlanError) as caught:
        Pattern.parse(text)
    assert f"at character {character}" in str(caught.value)
    assert reason in str(caught.value)


def test_an_empty_pattern_is_an_error() -> None:
    with pytest.raises(PlanError, match="empty"):
        Pattern.parse("")


@given(st.integers(0, 1500), st.integers(0, 1500), st.integers(0, 1500))
def test_a_range_matches_exactly_the_numbers_in_it(a: int, b: int, number: int) -> None:
    low, high = sorted((a, b))
    assert Pattern.parse(f"[{low}-{high}]").matches(str(number)) == (low <= number <= high)


SEGMENTS = st.sampled_from(
    ["a", "b", "*", "**", "a*", "*b", "{a,b}", "{a,b}*", "{a,{b,*a}}", "[0-12]", "a[1-3]", "a{,b}"]
)
PARTS = st.sampled_from(["a", "b", "ab", "ba", "0", "12", "13", "a2", "aa"])


@given(
    st.lists(st.lists(SEGMENTS, min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(PARTS, min_size=1, max_size=6),
)
def test_the_automaton_accepts_what_the_single_patterns_match(
    patterns: list[list[str]], parts: list[str]
) -> None:
    texts = [".".join(segments) for segments in patterns]
    name = ".".join(parts)
    expected = tuple(i for i, text in enumerate(texts) if Pattern.parse(text).matches(name))
    assert RuleSet(texts).match(name) == expected


def test_progress_names_the_segment_that_did_not_match() -> None:
    progress = Pattern.parse("layers.*.attn.{q,k}.weight").progress("layers.0.attn.v.weight")
    assert progress == (3, "{q,k}", "v")


def test_progress_behind_any_depth_counts_from_the_furthest_place() -> None:
    assert Pattern.parse("**.mlp.gate").progress("layers.0.mlp.up") == (1, "gate", "up")


def test_progress_on_a_name_that_is_too_short_finds_nothing() -> None:
    assert Pattern.parse("layers.*.w1").progress("layers.0") == (2, "w1", None)


def test_progress_on_a_name_that_is_too_long_expects_its_end() -> None:
    progress = Pattern.parse("layers.*").progress("layers.0.w1")
    assert progress == (2, "the end of the name", "w1")


def test_progress_on_a_name_that_matches_is_none() -> None:
    assert Pattern.parse("layers.*").progress("layers.0") is None


def test_states_are_kept_so_that_equal_places_share_one() -> None:
    rules = RuleSet(["layers.*.w1"])
    layers = rules.step(rules.start(), "layers")
    assert rules.step(layers, "0") is rules.step(layers, "1")


def test_patterns_are_accepted_in_order() -> None:
    rules = RuleSet(["**", "a.*", "a.b"])
    assert rules.accepts(rules.start()["a"]["b"]) == (0, 1, 2)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["experts.w1"], "experts.w1"),
        (["experts.w1", "experts.w2"], "experts.w{1,2}"),
        (["l.*.gate_up_proj", "l.*.down_proj"], "l.*.{gate_up,down}_proj"),
        (["w1", "w1_bias"], "w1{,_bias}"),
        (["l.*.w1", "m.x.w1"], None),
        ([], None),
    ],
)
def test_names_that_differ_within_a_segment_are_one_pattern(
    names: list[str], expected: str | None
) -> None:
    found = one_pattern(names)
    assert found == expected
    assert found is None or all(Pattern.parse(found).matches(name) for name in names)
