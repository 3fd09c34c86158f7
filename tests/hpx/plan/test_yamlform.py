"""Files that are no plans: every one is a PlanError with file and line."""

from __future__ import annotations

import pytest

from hpx.errors import PlanError
from hpx.plan import ShardingPlan


def message_of(text: str) -> str:
    with pytest.raises(PlanError) as caught:
        ShardingPlan.from_text(text, file="plan.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "*.weight: replicate",
        "**.norm.weight: replicate",
        "*foo: replicate",
        "{q,k}_proj.weight: replicate",
        "{q,k}: replicate",
        "[0-7].w1: replicate",
        "[0-7]: replicate",
        "model.layers.*.w1: replicate",
        "model.{q,k}_proj: {tp: S(0)}",
    ],
)
def test_an_unquoted_pattern_is_an_error_that_says_to_quote_it(line: str) -> None:
    message = message_of(f"version: 1\nparams:\n  {line}\n")
    assert message.startswith("plan.yaml:3: a pattern is not quoted")
    assert "Fix: quote the pattern" in message


@pytest.mark.parametrize("entry", ["**.experts", "*.experts", "layers.*.experts"])
def test_an_unquoted_pattern_in_a_list_is_an_error_that_says_to_quote_it(entry: str) -> None:
    assert "plan.yaml:1: a pattern is not quoted" in message_of(f'experts: ["a", {entry}]\n')


def test_a_plain_name_needs_no_quotes() -> None:
    plan = ShardingPlan.from_text("params:\n  lm_head.weight: {tp: S(0)}\n  0: R\n  null: R\n")
    assert [rule.pattern for rule in plan.params] == ["lm_head.weight", "0", "null"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("params:\n  a: R\n  b: R\n  a: R\n", ":4: key 'a' stands twice, first at plan.yaml:2"),
        ("version: 1\nversion: 1\n", ":2: key 'version' stands twice, first at plan.yaml:1"),
        ("params:\n  a: {tp: S(0), tp: S(1)}\n", ":2: key 'tp' stands twice"),
    ],
)
def test_a_key_that_stands_twice_is_an_error_with_both_lines(text: str, message: str) -> None:
    assert message in message_of(text)


def test_an_unknown_key_is_an_error_with_the_nearest_names() -> None:
    message = message_of("version: 1\nparms: {}\n")
    assert message.startswith("plan.yaml:2: unknown key 'parms'. Fix: did you mean params")


@pytest.mark.parametrize("key", ["pad", "options"])
def test_a_reserved_key_may_be_empty(key: str) -> None:
    assert ShardingPlan.from_text(f"{key}: {{}}\n").params == ()


@pytest.mark.parametrize("key", ["pad", "options"])
def test_a_reserved_key_with_content_is_an_error(key: str) -> None:
    assert "reserved, not supported yet" in message_of(f"{key}: {{a: 1}}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the plan is empty"),
        ("# nothing\n", "the plan is empty"),
        ("- a\n", ":1: the plan is a list"),
        ("hello", ":1: the plan is the text 'hello'"),
        ("version: 1\n---\nversion: 1\n", "but found another document"),
        ("[" * 20000, "nested too deeply"),
        ("version: 1\na: \x07\n", ":2: the plan has a character that YAML does not allow, U+0007"),
        ("params:\n\ta: R\n", ":2: the plan is not valid YAML"),
        ('params:\n  "a": {tp: S(0)\n  "b": R\n', ":2: the plan is not valid YAML"),
        ('params:\n  "a: R\n', ":2: the plan is not valid YAML"),
        ("params: !!python/object:os.system {a: R}\n", ":1: YAML tag 'python/object:os.system'"),
        ("params:\n  <<: {a: R}\n", ":2: YAML tag 'merge' has no meaning"),
    ],
)
def test_what_is_no_mapping_of_yaml_is_an_error(text: str, message: str) -> None:
    assert message in message_of(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version: 2\n", "plan.yaml:1: plan version 2 is unknown"),
        ("version: 1.0\n", "plan.yaml:1: version is '1.0'"),
        ("mesh: tpp=3\n", "plan.yaml:1: mesh 'tpp=3': unknown axis 'tpp'"),
        ("mesh: [a]\n", "plan.yaml:1: mesh is a list"),
        ("default: replicat\n", "plan.yaml:1: default is 'replicat'"),
        ("params: [a]\n", "plan.yaml:1: params is a list"),
        ("experts: a.experts\n", "plan.yaml:1: experts is the text 'a.experts'"),
        ('experts:\n  - a\n  - "a..b"\n', "plan.yaml:3: pattern 'a..b' is malformed"),
    ],
)
def test_a_value_of_the_wrong_kind_is_an_error(text: str, message: str) -> None:
    assert message_of(text).startswith(message)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "a rule has no layout"),
        ("{}", "a rule has no layout"),
        ("{tp: 0}", "axis tp has placement 0"),
        ("{tp: partial}", "axis tp is partial"),
        ("[tp, S(0)]", "is no layout"),
        ("{tp: {x: S(0)}}", "axis tp has placement"),
        ("{layuot: {tp: S(0)}, reason: x}", "did you mean layout?"),
        ("{reason: x}", "a rule has no layout"),
        ("{layout: R, reason: [x]}", "a rule's reason is ['x']"),
        ("&x {tp: *x}", "nested too deeply"),
    ],
)
def test_a_rule_without_a_readable_layout_is_an_error(value: str, message: str) -> None:
    text = message_of(f'version: 1\nparams:\n  "a": {value}\n')
    assert text.startswith("plan.yaml:3: ")
    assert message in text


def test_a_malformed_pattern_is_an_error_with_line_and_character() -> None:
    message = message_of('params:\n  "a": R\n  "b..c": R\n')
    assert message.startswith("plan.yaml:3: pattern 'b..c' is malformed at character 3")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("3", "has to be a mapping"),
        ("{dim: 0}", "needs dim and parts"),
        ("{dim: 0, rep: 1, parts: {a: 3}}", "did you mean repeat"),
        ("{dim: 0, parts: {a: 3, b: x}}", "part b is 'x'"),
        ("{dim: 0, parts: {}}", "parts is empty"),
        ("{dim: 0, parts: {a: 0}}", "part a has size 0"),
        ("{dim: 0, repeat: 0, parts: {a: 2}}", "repeat is 0"),
        ("{dim: 0, repeat: 2, parts: {a: 3}}", "3 is not a multiple of repeat 2"),
    ],
)
def test_a_packed_entry_that_cannot_be_is_an_error(value: str, message: str) -> None:
    text = message_of(f'packed:\n  "a": {value}\n')
    assert text.startswith("plan.yaml:2: ")
    assert message in text


@pytest.mark.parametrize("value", ["n", "[n, n]", "[[n]]"])
def test_heads_that_are_no_list_of_names_are_an_error(value: str) -> None:
    assert message_of(f'heads:\n  "a": {value}\n').startswith("plan.yaml:2: ")


@pytest.mark.parametrize("value", ["[a]", "[a, a]", "[a, b, c]", "a", '["a.*", b]'])
def test_a_tie_that_is_no_pair_of_names_is_an_error(value: str) -> None:
    assert message_of(f"tied:\n  - {value}\n").startswith("plan.yaml:2: ")


def test_an_alias_may_repeat_a_layout() -> None:
    plan = ShardingPlan.from_text('params:\n  "a": &rows {tp: S(0)}\n  "b": *rows\n')
    assert [str(rule.layout) for rule in plan.params] == ["tp:S(0)", "tp:S(0)"]


def test_a_boundary_keeps_its_line_and_reads_back() -> None:
    text = (
        "boundaries:\n"
        '  "layers.*.attn": {input: {hidden: R, residual: none}, output: R}\n'
        '  "head": none\n'
    )
    plan = ShardingPlan.from_text(text, "plan.yaml")
    first, second = plan.boundaries
    assert first.where == "plan.yaml:2"
    assert first.inputs == (("hidden", "R"), ("residual", "none"))
    assert first.output == "R"
    assert second.none
    assert ShardingPlan.from_json(plan.to_json()) == plan
    assert ShardingPlan.from_text(plan.to_yaml()).content_key() == plan.content_key()
    assert plan.content_key() != ShardingPlan().content_key()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{inputs: {x: R}}", "unknown key 'inputs'"),
        ("{input: {x: S(1)}}", "x is 'S(1)': a boundary is R (whole) or none"),
        ("R", "a boundary is 'R'"),
        ("{}", "a boundary is {}"),
    ],
)
def test_a_malformed_boundary_is_an_error_with_its_line(entry: str, message: str) -> None:
    found = message_of(f'version: 1\nboundaries:\n  "a": {entry}\n')
    assert found.startswith("plan.yaml:3")
    assert message in found
