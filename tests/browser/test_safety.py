"""The page asks for nothing and runs nothing, whatever the names are."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpx.graph.graph import ModuleGraph
from hpx.run import Run
from tests.browser.conftest import Open, graph_of
from tests.browser.driver import Browser

HOSTILE = {
    "script": "</script><script>window.hacked = 1</script>",
    "image": "<img src=x onerror=window.hacked=1>",
    "quotes": "\"'`",
    "newline": "two\nlines",
    "emoji": "🦙",
    "separator": "\u2028window/hacked=1\u2029",
    "turned": "\u202egnp/exe",
    "comment": "<!--<script>",
    "entity": "&lt;b&gt;&amp;",
    "brackets": "{|}\\",
    "surrogate": "\ud800",
    "prototype": "__proto__",
    "constructor": "constructor",
    "long": "x" * 300,
}


@pytest.fixture
def hostile() -> ModuleGraph:
    return graph_of({f"{name}.weight": (2, 2) for name in HOSTILE.values()})


def test_a_page_asks_for_nothing_but_itself(show: Open, moe_run: Run) -> None:
    page = show(moe_run)
    page.click(".row .label", "embed.weight")
    page.wait("!document.querySelector('#panel').hidden")
    assert len(page.requests) == 1
    assert page.requests[0].startswith("file://")


def test_a_page_breaks_no_rule_of_its_policy_and_logs_nothing(show: Open, moe_run: Run) -> None:
    page = show(moe_run)
    page.choose("#fold", "none")
    page.choose("#axis", "tp")
    page.choose("#sort", "bytes")
    page.click("#expand")
    page.click(".row .label", "embed.weight")
    page.click("#legend button", "rules")
    assert page.complaints == []


def test_the_policy_refuses_any_other_script_and_style(show: Open, moe_run: Run) -> None:
    page = show(moe_run)
    page.evaluate(
        """(() => {
          const script = document.createElement('script');
          script.textContent = 'window.hacked = 1';
          document.body.append(script);
          const image = document.createElement('img');
          image.src = 'https://example.org/x.png';
          document.body.append(image);
          document.body.setAttribute('style', 'color: red');
        })()"""
    )
    page.wait("true")
    assert page.evaluate("window.hacked === undefined")
    assert any("script" in text for text in page.complaints)
    assert any("img-src" in text or "image" in text for text in page.complaints)
    assert any("style" in text for text in page.complaints)
    assert page.evaluate("document.body.style.color") == ""


def test_hostile_names_run_nothing(show: Open, hostile: ModuleGraph) -> None:
    page = show(hostile)
    for row in range(len(HOSTILE)):
        page.click(f"#row-{row} .label")
    page.search("<img")
    assert page.evaluate("window.hacked === undefined")
    assert page.dialogs == []
    assert page.complaints == []
    assert page.evaluate("document.querySelectorAll('img, #tree script').length") == 0


def test_hostile_names_are_there_as_text_and_what_turns_a_line_is_escaped(
    show: Open, hostile: ModuleGraph
) -> None:
    escaped = {
        "newline": "two\\nlines",
        "separator": "\\u2028window/hacked=1\\u2029",
        "turned": "\\u202egnp/exe",
        "surrogate": "\\ud800",
    }
    expected = [f"{name}.weight" for name in {**HOSTILE, **escaped}.values()]
    assert show(hostile).texts(".row .label") == expected


def test_a_title_cannot_end_the_head(show: Open) -> None:
    graph = graph_of({"a.weight": (2,)})
    graph.source = "</title><script>window.hacked = 1</script>"
    page = show(graph)
    assert page.evaluate("window.hacked === undefined")
    assert graph.source in page.text("#facts")


def test_words_of_the_template_in_names_are_only_names(show: Open) -> None:
    page = show(graph_of({"@script@.weight": (2,), "@data@.weight": (2,), "@policy@.a": (2,)}))
    assert page.texts(".row .label") == ["@script@.weight", "@data@.weight", "@policy@.a"]


def test_a_page_copied_elsewhere_still_works(
    browser: Browser, show: Open, moe_run: Run, tmp_path: Path
) -> None:
    show(moe_run)
    copy = tmp_path / "folder with spaces & more.html"
    copy.write_bytes((tmp_path / "page0.html").read_bytes())
    window = browser.open(copy)
    assert "embed.weight" in window.texts(".row .label")
    window.close()
