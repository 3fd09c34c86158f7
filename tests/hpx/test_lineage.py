from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from hpx.lineage import (
    Lineage,
    Source,
    Stack,
    describe,
    lineage_from_json,
    lineage_to_json,
    shape_of,
    sources,
)

SOURCES = st.integers(0, 500).map(Source)
LINEAGES: st.SearchStrategy[Lineage] = st.recursive(
    SOURCES,
    lambda inner: st.builds(
        Stack, st.lists(inner, min_size=1, max_size=5).map(tuple), st.integers(0, 2)
    ),
    max_leaves=20,
)


@given(LINEAGES)
def test_a_lineage_survives_json(lineage: Lineage) -> None:
    assert lineage_from_json(json.loads(json.dumps(lineage_to_json(lineage)))) == lineage


def test_a_stack_of_256_regular_sources_is_short_in_json() -> None:
    stack = Stack(tuple(Source(10 + 7 * k) for k in range(256)))
    assert lineage_to_json(stack) == {"op": "stack", "dim": 0, "sources": [[10, 256, 7]]}


def test_the_sources_come_in_the_order_in_which_they_are_read() -> None:
    inner = Stack((Source(5), Source(2)))
    assert list(sources(Stack((inner, Source(9))))) == [5, 2, 9]


def test_a_stack_puts_a_new_dim_in_its_place() -> None:
    parts = (Source(0), Source(1), Source(2))
    assert shape_of(Stack(parts), lambda _: (6, 8)) == (3, 6, 8)
    assert shape_of(Stack(parts, 1), lambda _: (6, 8)) == (6, 3, 8)
    assert shape_of(Stack((Stack(parts), Stack(parts))), lambda _: (4,)) == (2, 3, 4)


def test_a_stack_of_numbered_names_is_told_folded() -> None:
    stack = Stack(tuple(map(Source, range(12))))
    assert describe(stack, lambda k: f"experts.{k}.w1.weight") == "stack(experts.{0-11}.w1.weight)"


def test_a_stack_on_another_dim_says_so() -> None:
    assert describe(Stack((Source(0), Source(2)), 1), "abc".__getitem__) == "stack(a, c, dim=1)"


def test_a_stack_of_stacks_is_told_inside_out() -> None:
    stack = Stack((Stack((Source(0), Source(1))), Source(2)))
    assert describe(stack, "abc".__getitem__) == "stack(stack(a, b), c)"
