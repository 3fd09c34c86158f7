"""Large models: the file stays small, and only the rows in sight are made."""

from __future__ import annotations

import pytest

from hpx.graph.graph import ModuleGraph
from hpx.render import Options
from hpx.render.page import page as page_of
from tests.browser.conftest import Open, graph_of

MOST_ROWS = 80
"""The window has room for some 30."""


@pytest.fixture(scope="module")
def large() -> ModuleGraph:
    """100,000 parameters: 50 layers of 1,000 experts, two tensors each."""
    return graph_of(
        {
            f"layers.{layer}.experts.{expert}.{name}.weight": (4, 4)
            for layer in range(50)
            for expert in range(1000)
            for name in ("up", "down")
        }
    )


@pytest.fixture(scope="module")
def irregular() -> ModuleGraph:
    """20,000 parameters of which no two have one name and shape: nothing folds."""
    return graph_of(
        {f"block_{i % 97}.part_{i}.weight": (i % 977 + 1, i % 53 + 1) for i in range(20_000)}
    )


def test_a_hundred_thousand_parameters_are_few_elements(show: Open, large: ModuleGraph) -> None:
    page = show(large, fold="none")
    page.click("#expand")
    assert page.text("#count") == "150,051 rows for 100,000 parameters"
    assert page.evaluate("document.querySelectorAll('.row').length") <= MOST_ROWS
    page.evaluate("document.querySelector('#scroll').scrollTop = 2000000")
    page.wait("document.querySelector('#row-76923')")
    assert page.evaluate("document.querySelectorAll('.row').length") <= MOST_ROWS


def test_the_last_of_a_hundred_thousand_is_reached(show: Open, large: ModuleGraph) -> None:
    page = show(large, fold="none")
    page.click("#expand")
    page.evaluate("document.querySelector('#tree').focus()")
    page.press("End")
    page.press("Enter")
    assert page.text("#panel .path code") == "layers.49.experts.999.down.weight"


def test_a_search_goes_through_all_of_them(show: Open, large: ModuleGraph) -> None:
    page = show(large)
    page.search("layers.37.experts.512.up")
    assert page.texts(".row .label") == ["layers.37.experts.512.up.weight"]


def test_equal_subtrees_are_written_once(large: ModuleGraph) -> None:
    small = graph_of({"layers.0.experts.0.up.weight": (4, 4)})
    assert len(page_of(large, Options())) < len(page_of(small, Options())) + 5_000


def test_what_nothing_repeats_in_takes_less_than_fifty_bytes_a_parameter(
    irregular: ModuleGraph,
) -> None:
    small = graph_of({"a.weight": (4, 4)})
    size = len(page_of(irregular, Options())) - len(page_of(small, Options()))
    assert size < 50 * 20_000


def test_what_nothing_repeats_in_is_listed_too(show: Open, irregular: ModuleGraph) -> None:
    page = show(irregular)
    page.click("#expand")
    assert page.text("#count").endswith("for 20,000 parameters")
    page.search("part_19999")
    assert page.texts(".row .label") == ["block_17.part_19999.weight"]
