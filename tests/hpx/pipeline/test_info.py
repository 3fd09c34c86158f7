"""Passes, what they declare, and what is refused in a declaration."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from typing import Any, ClassVar, Literal

import pytest

from hpx.errors import ContractError
from hpx.pipeline import Fact, Pass, PassInfo
from hpx.pipeline.info import check_pass_class


def anything(graph: object, request: object) -> list[str]:
    return []


SORTED = Fact("sorted", anything)
UPPER = Fact("upper-case", anything)


@dataclass(frozen=True, kw_only=True)
class SortWords(Pass):
    """Sort the words of a text.

    1. Words are sorted by their letters.
    """

    info = PassInfo(name="sort-words", provides={SORTED}, writes={"words"})
    case: Literal["keep", "ignore"] = "keep"
    limit: int | None = None

    def run(self, graph: object, ctx: object) -> None: ...


def class_with(info: Any, **members: Any) -> type[Pass]:
    def run(self: Pass, graph: object, ctx: object) -> None: ...

    return type("BadPass", (Pass,), {"info": info, "run": run, **members})


def test_facts_of_one_name_are_equal_whatever_checks_them() -> None:
    assert Fact("sorted", lambda graph, request: ["no"]) == SORTED
    assert len({SORTED, Fact("sorted", lambda graph, request: [])}) == 1


def test_a_fact_prints_as_its_name_and_without_an_address() -> None:
    assert str(SORTED) == "sorted"
    assert repr(SORTED) == "Fact(name='sorted')"


def test_a_fact_name_that_is_not_kebab_case_is_refused() -> None:
    with pytest.raises(ContractError, match="fact name 'Not_Kebab' is not kebab-case"):
        Fact("Not_Kebab", anything)


def test_info_takes_any_iterable_and_keeps_frozen_sets() -> None:
    info = PassInfo(
        name="a", requires=[SORTED], provides=(UPPER for _ in range(2)), before=("b", "c")
    )
    assert info.requires == frozenset({SORTED})
    assert info.provides == frozenset({UPPER})
    assert info.before == frozenset({"b", "c"})


def test_info_takes_one_value_alone_for_a_set() -> None:
    info = PassInfo(name="a", requires=SORTED, after="other-pass", writes="words")
    assert info.requires == frozenset({SORTED})
    assert info.after == frozenset({"other-pass"})
    assert info.writes == frozenset({"words"})


def test_info_is_frozen_and_compares_by_value() -> None:
    info = PassInfo(name="a", requires=[SORTED])
    assert info == PassInfo(name="a", requires={SORTED})
    with pytest.raises(FrozenInstanceError):
        info.name = "b"  # type: ignore[misc]


def test_info_as_json_has_sorted_lists_of_names() -> None:
    info = PassInfo(name="a", requires=[UPPER, SORTED], writes="words", required=False)
    assert info.to_json() == {
        "name": "a",
        "requires": ["sorted", "upper-case"],
        "provides": [],
        "invalidates": [],
        "before": [],
        "after": [],
        "conflicts": [],
        "writes": ["words"],
        "required": False,
    }


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (PassInfo(name="SortWords"), "its name 'SortWords' is not kebab-case"),
        (PassInfo(name="a-"), "its name 'a-' is not kebab-case"),
        (PassInfo(name="a", before="a"), "before names the pass itself"),
        (PassInfo(name="a", before="b", after="b"), "both before and after b"),
        (
            PassInfo(name="a", provides=SORTED, invalidates=SORTED),
            "both provides and invalidates sorted",
        ),
        (PassInfo(name="a", conflicts="B_c"), "conflicts holds 'B_c', which is not the name"),
        (PassInfo(name="a", requires="sorted"), "requires holds 's', which is not a Fact"),  # type: ignore[arg-type]
        ({"name": "a"}, "its info is not a PassInfo"),
    ],
)
def test_a_bad_declaration_is_refused_where_the_class_is_defined_and_names_it(
    info: Any, message: str
) -> None:
    with pytest.raises(ContractError) as error:
        class_with(info)
    assert "BadPass: " in str(error.value)
    assert message in str(error.value)


def test_a_pass_has_no_options_to_tell_while_they_are_at_their_defaults() -> None:
    assert SortWords().options() == {}
    assert SortWords().text() == "sort-words"


def test_options_that_differ_are_told_in_the_order_of_the_fields() -> None:
    pass_ = SortWords(limit=3, case="ignore")
    assert list(pass_.options().items()) == [("case", "ignore"), ("limit", 3)]
    assert pass_.text() == "sort-words{case=ignore, limit=3}"


def test_the_summary_is_the_first_line_of_the_docstring() -> None:
    assert SortWords.summary == "Sort the words of a text."


def test_a_pass_without_docstring_has_an_empty_summary() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Silent(Pass):
        info = PassInfo(name="silent")
        width: int = 1

        def run(self, graph: object, ctx: object) -> None: ...

    assert Silent.summary == ""


def test_a_sound_class_is_returned() -> None:
    assert check_pass_class(SortWords) is SortWords


@pytest.mark.parametrize("thing", [str, SortWords(), "sort-words"])
def test_what_is_no_pass_class_is_refused(thing: object) -> None:
    with pytest.raises(ContractError, match=r"not a subclass of hpx\.Pass"):
        check_pass_class(thing)


def test_a_class_without_info_is_refused() -> None:
    class Nameless(Pass):
        def run(self, graph: object, ctx: object) -> None: ...

    with pytest.raises(ContractError, match="Nameless: its info is not a PassInfo"):
        check_pass_class(Nameless)


def test_a_class_without_run_is_refused() -> None:
    class Lazy(Pass):
        info = PassInfo(name="lazy")

    with pytest.raises(ContractError, match="Lazy: it does not define run"):
        check_pass_class(Lazy)


def test_options_of_a_class_that_is_no_dataclass_are_refused() -> None:
    class Plain(Pass):
        info = PassInfo(name="plain")
        width: int = 1
        shared: ClassVar[int] = 2

        def run(self, graph: object, ctx: object) -> None: ...

    with pytest.raises(
        ContractError, match=r"Plain: width is declared but is no option.*@dataclass"
    ):
        check_pass_class(Plain)


def test_an_option_type_that_text_cannot_write_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mapped(Pass):
        info = PassInfo(name="mapped")
        table: dict[str, int] | None = None

        def run(self, graph: object, ctx: object) -> None: ...

    with pytest.raises(ContractError, match="Mapped: option table has type"):
        check_pass_class(Mapped)


def test_an_option_type_that_cannot_be_resolved_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Unresolved(Pass):
        info = PassInfo(name="unresolved")
        mode: Nowhere = None  # type: ignore[name-defined]  # noqa: F821

        def run(self, graph: object, ctx: object) -> None: ...

    with pytest.raises(ContractError, match=r"Unresolved: the type of an option.*Nowhere"):
        check_pass_class(Unresolved)
