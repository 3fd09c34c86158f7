"""Pipelines as text and as Python, and the errors of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpx.errors import PipelineError
from hpx.pipeline import Pass, PassInfo, PassRegistry, as_passes, format_pipeline, parse_pipeline


class Toy(Pass):
    """A pass over a text, which these tests never run."""

    def run(self, graph: object, ctx: object) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Trim(Toy):
    info = PassInfo(name="trim")


@dataclass(frozen=True, kw_only=True)
class SplitText(Toy):
    info = PassInfo(name="split-text")
    uneven: Literal["error", "allow"] = "error"
    keep: bool = False
    at: int | None = None
    weight: float = 1.0
    label: str = "a"
    names: tuple[str, ...] = ()
    mixed: Literal["auto"] | int | tuple[float, ...] = "auto"
    grid: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Replace(Toy):
    info = PassInfo(name="replace")
    old: str
    new: str = ""

    def __post_init__(self) -> None:
        if self.old == self.new:
            raise ValueError("old and new are the same")


REGISTRY = PassRegistry(list)
for cls in (Trim, SplitText, Replace):
    REGISTRY.register(cls)
PRESETS = {"default": ("trim", "split-text"), "empty": ()}


def parse(text: str) -> list[Pass]:
    return parse_pipeline(text, registry=REGISTRY, presets=PRESETS)


def passes(pipeline: Any) -> list[Pass]:
    return as_passes(pipeline, registry=REGISTRY, presets=PRESETS)


def error_of(text: str) -> str:
    with pytest.raises(PipelineError) as error:
        parse(text)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_passes_are_kept_in_the_listed_order() -> None:
    assert parse("split-text, trim") == [SplitText(), Trim()]


def test_an_empty_text_is_a_pipeline_of_no_pass() -> None:
    assert parse("  ") == []


def test_a_pass_listed_twice_is_two_instances() -> None:
    assert parse("trim, split-text{keep=true}, trim") == [Trim(), SplitText(keep=True), Trim()]


def test_a_text_may_run_over_several_lines() -> None:
    assert parse("trim,\n  split-text{\n    keep = true\n  }\n") == [Trim(), SplitText(keep=True)]


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("keep=true", SplitText(keep=True)),
        ("at=-12", SplitText(at=-12)),
        ("at=null", SplitText(at=None)),
        ("weight=2", SplitText(weight=2.0)),
        ("weight=-1.5e-3", SplitText(weight=-0.0015)),
        ("weight=inf", SplitText(weight=float("inf"))),
        ("label=bare-word.x", SplitText(label="bare-word.x")),
        (r'label="a \"b\" \u00e9, {c}"', SplitText(label='a "b" é, {c}')),
        ('label="true"', SplitText(label="true")),
        ("names=[a, b]", SplitText(names=("a", "b"))),
        ("names=[]", SplitText(names=())),
        ("mixed=3", SplitText(mixed=3)),
        ("mixed=[1, 2.5]", SplitText(mixed=(1.0, 2.5))),
        ("grid=[[1, 2], []]", SplitText(grid=((1, 2), ()))),
        ("", SplitText()),
    ],
)
def test_option_values_are_read_by_their_type(option: str, expected: Pass) -> None:
    assert parse(f"split-text{{{option}}}") == [expected]


def test_a_preset_stands_for_its_passes() -> None:
    assert parse("@default") == [Trim(), SplitText()]


def test_a_named_pass_takes_the_place_of_the_one_that_a_preset_brought() -> None:
    assert parse("@default, trim, split-text{keep=true}") == [Trim(), SplitText(keep=True)]


def test_a_pass_named_twice_after_a_preset_is_two_instances() -> None:
    assert parse("@default, trim, trim") == [Trim(), SplitText(), Trim()]


def test_a_preset_adds_only_what_is_not_listed_yet() -> None:
    assert parse("split-text{keep=true}, @default, @default") == [SplitText(keep=True), Trim()]


def test_an_exclamation_mark_removes_a_pass() -> None:
    assert parse("@default, !trim") == [SplitText()]
    assert parse("trim, split-text, trim, !trim") == [SplitText()]


def test_a_removed_pass_can_be_listed_again() -> None:
    assert parse("@default, !trim, trim") == [SplitText(), Trim()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trim,, trim", "pipeline column 6: an empty item. Fix: name a pass, or drop the comma"),
        (", trim", "pipeline column 1: an empty item"),
        ("trim, ", "pipeline column 7: an empty item"),
        ("trim trim", "pipeline column 6: expected a comma between two passes, found 't'"),
        ("trim, split-text{keep=true", "pipeline column 17: a { that is never closed"),
        ("split-text{", "pipeline column 12: expected the name of an option"),
        ("trim}", "pipeline column 5: a } without {"),
        ("split-text{names=[a, b", "pipeline column 18: a [ that is never closed"),
        ("split-text{names=[a}", "pipeline column 20: a } without {"),
        ("split-text{names=[a,]}", "pipeline column 21: a ] without ["),
        ('split-text{label="a}', 'pipeline column 18: a " that is never closed'),
        (r'split-text{label="\x"}', "pipeline column 19: text in quotes that cannot be read"),
        ("split-text{keep=true,}", "pipeline column 22: an empty option of split-text"),
        ("split-text{keep}", "column 12: option keep of split-text has no value"),
        ("split-text{keep=}", "pipeline column 17: a } without {: expected a value for keep"),
        ("split-text{keep=true, keep=false}", "option keep of split-text is given twice"),
        ("split-text{at=4x}", "pipeline column 15: not a number"),
        ("split-text{weight=1.2.3}", "pipeline column 19: not a number"),
        ("split-text{grid=" + "[" * 5000, "lists nested more than 20 deep"),
        ("trim; trim", "pipeline column 5: expected a comma between two passes, found ';'"),
        ("@default{keep=true}", "pipeline column 9: @default takes no options"),
        ("!", "pipeline column 2: expected a name right after !, found the end of the text"),
        ("trim,\ntrim,\n  ?", "pipeline line 3 column 3: expected the name of a pass"),
    ],
)
def test_a_text_that_does_not_parse_says_the_column(text: str, message: str) -> None:
    assert message in error_of(text)


@pytest.mark.parametrize("text", ["keep=[**.bias]", "keep=*"])
def test_a_pattern_without_quotes_is_told_to_take_some(text: str) -> None:
    message = error_of(f"split-text{{{text}}}")
    assert message.endswith("found '*'. Fix: put text in quotes: \"...\"")


def test_an_unknown_pass_says_where_and_what_is_near() -> None:
    message = error_of("trim, split-tex")
    assert message.startswith("pipeline column 7: there is no pass 'split-tex'")
    assert "did you mean split-text?" in message


def test_an_unknown_preset_says_which_there_are() -> None:
    assert "column 1: there is no preset @defualt. Fix: did you mean @default?" in error_of(
        "@defualt"
    )
    assert "there is @default, @empty" in error_of("@xyz")


def test_removing_what_is_not_listed_is_an_error() -> None:
    assert "column 7: !trin removes nothing: before it stand trim" in error_of("trim, !trin")
    assert "nothing is before it" in error_of("!trim, @default")


def test_an_unknown_option_gets_the_nearest_names() -> None:
    message = error_of("trim, split-text{uneve=allow}")
    assert message.startswith("pipeline column 18: split-text has no option uneve: its options are")
    assert "did you mean uneven" in message
    assert "trim has no option keep: it takes none" in error_of("trim{keep=true}")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("uneven=alow", "uneven must be error or allow; did you mean allow?"),
        ("uneven=true", "uneven must be error or allow"),
        ("keep=1", "keep must be true or false"),
        ("at=true", "at must be a whole number or null"),
        ("at=1.0", "at must be a whole number or null"),
        ("weight=heavy", "weight must be a number"),
        ("weight=1" + "0" * 400, "weight must be a number"),
        ("label=12", "label must be text"),
        ("names=a", "names must be a list [a, b], each text"),
        ("names=[a, 1]", "names must be a list [a, b], each text"),
        ("mixed=x", "mixed must be auto, a whole number or a list [a, b], each a number"),
    ],
)
def test_a_value_of_the_wrong_type_says_what_the_option_takes(option: str, message: str) -> None:
    text = error_of(f"split-text{{{option}}}")
    assert text.startswith(f"pipeline column 12, split-text{{{option}}}: {message}")


def test_an_option_without_default_must_be_given() -> None:
    assert "column 1: replace needs a value for old. Fix: write replace{old=...}" in error_of(
        "replace"
    )
    assert parse("replace{old=a}") == [Replace(old="a")]


def test_options_that_the_pass_itself_refuses_are_told_with_their_place() -> None:
    assert "column 7: replace refuses its options: old and new are the same" in error_of(
        "trim, replace{old=a, new=a}"
    )


def test_python_and_text_mix_in_one_list() -> None:
    assert passes(["trim, trim", Trim, SplitText(keep=True)]) == [
        *[Trim()] * 3,
        SplitText(keep=True),
    ]


def test_one_text_or_pass_or_class_is_a_pipeline() -> None:
    assert passes("@default") == [Trim(), SplitText()]
    assert passes(Trim()) == [Trim()]
    assert passes(Trim) == [Trim()]


def test_a_pass_from_python_takes_the_place_of_the_one_that_a_preset_brought() -> None:
    assert passes(["@default", SplitText(keep=True)]) == [Trim(), SplitText(keep=True)]


def test_option_values_from_python_are_checked_too() -> None:
    with pytest.raises(PipelineError, match=r"uneven must be error or allow; did you mean allow\?"):
        passes([SplitText(uneven="alow")])  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match=r"split-text\{label=a dict\}: label must be text"):
        passes([SplitText(label={})])  # type: ignore[arg-type]


def test_option_values_from_python_are_kept_as_their_type_keeps_them() -> None:
    (kept,) = passes([SplitText(weight=2, names=["a"])])  # type: ignore[arg-type]
    assert kept.text() == "split-text{weight=2.0, names=[a]}"


def test_what_is_no_pass_is_refused_in_a_list() -> None:
    with pytest.raises(PipelineError, match="a pipeline cannot hold a int"):
        passes([3])


numbers = st.floats(allow_nan=False)
labels = st.text() | st.sampled_from(["a", "true", "null", "inf", "1e5", "-", "a b"])
split_texts = st.builds(
    SplitText,
    uneven=st.sampled_from(["error", "allow"]),
    keep=st.booleans(),
    at=st.none() | st.integers(),
    weight=numbers,
    label=labels,
    names=st.lists(labels).map(tuple),
    mixed=st.just("auto") | st.integers() | st.lists(numbers).map(tuple),
    grid=st.lists(st.lists(st.integers()).map(tuple)).map(tuple),
)
any_pass = st.one_of(
    st.just(Trim()),
    split_texts,
    st.text(min_size=1).map(lambda old: Replace(old=old)),
)


@given(st.lists(any_pass))
def test_format_and_parse_are_inverse(pipeline: list[Pass]) -> None:
    text = format_pipeline(pipeline)
    assert parse(text) == pipeline
    assert format_pipeline(parse(text)) == text


def first_error(text: str) -> str:
    try:
        parse(text)
    except PipelineError as error:
        return str(error)
    return ""


@given(st.text(alphabet='trim,@!{}[]="\\ 1.-e'))
def test_any_text_parses_or_gets_one_line(text: str) -> None:
    assert "\n" not in first_error(text)
