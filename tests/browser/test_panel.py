"""The panel: what is known of one parameter, and how it came about."""

from __future__ import annotations

from hpx.graph.edit import set_key
from hpx.graph.graph import ModuleGraph
from hpx.layout import Layout
from hpx.plan import ShardingPlan
from hpx.run import Run, run
from tests.browser.conftest import Open, graph_of, moe
from tests.browser.driver import Page


def said(page: Page) -> dict[str, str]:
    """The words of the panel and what stands behind them."""
    pairs = page.evaluate(
        """[...document.querySelectorAll('#panel dt')]
          .map((word) => [word.textContent, word.nextElementSibling.textContent])"""
    )
    return dict(pairs)


def test_it_tells_shapes_bytes_and_dtype(show: Open, moe_run: Run) -> None:
    page = show(moe_run)
    page.click(".row .label", "embed.weight")
    facts = said(page)
    assert facts["Shape"] == "[32, 8]"
    assert facts["On rank 0"] == "[16, 8]"
    assert facts["Dtype"] == "bfloat16"
    assert facts["Bytes"] == "512 bytes"
    assert facts["Bytes on rank 0"] == "256 bytes"


def test_it_tells_the_layout_of_every_axis_and_the_rule(show: Open, moe_run: Run) -> None:
    page = show(moe_run)
    page.click(".row .label", "q.weight")
    assert page.texts("#panel table:not(.pieces) td") == ["dp", "2", "R", "tp", "2", "S(0)"]
    facts = said(page)
    assert facts["Decided by"] == "shard-params"
    assert "plan.yaml:6 'layers.*.attn.{q,k,v}.weight'" in facts["Rule"]
    assert facts["Because"] == "whole heads"


def test_it_tells_what_the_problem_is(show: Open, odd_one: ModuleGraph) -> None:
    page = show(odd_one)
    page.click(".row.marked .label")
    assert "is float32, not bfloat16, unlike the other 7" in said(page)["Problem"]


def test_it_tells_every_event_in_order(show: Open, moe_run: Run) -> None:
    page = show(moe_run)
    page.click(".row .label", "mlp.experts.up")
    history = page.texts(".history li")
    assert "stack-experts" in history[0]
    assert "derived layers.0.mlp.experts.up [4, 16, 8]" in history[0]
    assert any("shard-params" in text and "layout = ep:S(0)" in text for text in history)
    assert any("plan.yaml:11" in text for text in history)


def test_it_keeps_the_events_of_what_a_parameter_is_made_of(show: Open, moe_run: Run) -> None:
    page = show(moe_run)
    page.click(".row .label", "mlp.experts.up")
    assert "removed" in page.text(".history li.inherited")
    assert "stack(layers.0.mlp.experts.{0-3}.up.weight)" in said(page)["Computed as"]


def test_it_keeps_rules_that_lost(show: Open, moe_run: Run) -> None:
    page = show(moe_run)
    page.click(".row .label", "q.weight")
    lost = page.text(".history li.skip")
    assert "plan.yaml:10" in lost
    assert "lost" in lost


def test_it_keeps_events_that_a_later_one_replaced(show: Open) -> None:
    plan = ShardingPlan({"a.weight": {"tp": "S(0)"}})
    made = run(graph_of({"a.weight": (4, 4)}), plan, "tp=2", "shard-params, shard-params")
    sets = [e for e in made.events if e.kind == "set" and e.key == "layout"]
    page = show(made)
    page.click(".row .label", "a.weight")
    overridden = page.texts(".history li.overridden .badge")
    assert (
        len(
            [
                text
                for text in page.texts(".history li")
                if "layout = " in text or "layout: " in text
            ]
        )
        == len(sets)
        == 2
    )
    assert any("overridden in step 2" in text for text in overridden)


def test_it_tells_what_every_position_holds(show: Open) -> None:
    plan = ShardingPlan({"a.weight": {"tp": "S(0)"}})
    made = run(graph_of({"a.weight": (5, 4)}), plan, "tp=4", "shard-params{uneven=allow}")
    page = show(made)
    page.click(".row .label", "a.weight")
    assert page.texts(".pieces td:last-child") == [
        "[0:2, 0:4]  rank 0",
        "[2:4, 0:4]",
        "[4:5, 0:4]",
        "[5:5, 0:4] (empty)",
    ]


def test_it_tells_the_piece_of_a_rank_among_many(show: Open) -> None:
    plan = ShardingPlan({"a.weight": {"tp": "S(1)"}})
    page = show(run(graph_of({"a.weight": (4, 640)}), plan, "dp=2,tp=64"))
    page.click(".row .label", "a.weight")
    page.choose("#rank", "100")
    assert page.text(".pieces tr.mine") == "36[0:4, 360:370]  rank 100"


def test_it_steps_through_equal_ones(show: Open) -> None:
    page = show(moe())
    page.click(".row .label", "up.weight")
    assert page.text(".stepper span") == "1 of 12 equal ones"
    for _ in range(5):
        page.click("[aria-label='The next one']")
    assert page.text("#panel .path code") == "layers.1.mlp.experts.1.up.weight"


def test_it_tells_the_names_of_a_tie(show: Open) -> None:
    graph = graph_of({"embed.weight": (8, 4)}, ties={"head.weight": "embed.weight"})
    page = show(graph)
    page.click(".row .label", "embed.weight")
    assert page.texts("#panel .goto") == ["head.weight"]


def test_it_copies_the_name(show: Open) -> None:
    page = show(moe())
    page.allow_clipboard()
    page.click(".row .label", "q.weight")
    page.click("#panel .copy")
    page.wait("document.querySelector('#said').textContent")
    assert page.text("#said") == "Copied layers.0.attn.q.weight"
    assert page.evaluate("navigator.clipboard.readText()") == "layers.0.attn.q.weight"


def test_it_copies_a_name_as_it_is_and_not_as_it_is_shown(show: Open) -> None:
    page = show(graph_of({"two\nlines.weight": (2,)}))
    page.allow_clipboard()
    page.click(".row .label")
    page.click("#panel .copy")
    page.wait("document.querySelector('#said').textContent")
    assert page.evaluate("navigator.clipboard.readText()") == "two\nlines.weight"


def test_a_module_tells_its_bytes_by_layout(show: Open, moe_run: Run) -> None:
    page = show(moe_run)
    page.click(".row .times")
    assert said(page)["Parameters"] == "7"
    assert "ep:S(0)" in page.text("#panel table")


def test_the_rules_of_the_plan_are_listed_with_what_they_decided(show: Open, moe_run: Run) -> None:
    page = show(moe_run)
    page.click("#legend button", "rules")
    rules = page.texts(".rules li")
    assert any("'embed.weight'" in text and "decides 1 parameter" in text for text in rules)
    assert any("'layers.*.attn.o.weight'" in text and "decides 3 param" in text for text in rules)


def test_parameters_without_a_rule_are_listed(show: Open, moe_run: Run) -> None:
    page = show(moe_run)
    assert "1 parameter" in page.text("#facts")
    page.click("#legend button", "rules")
    assert "1 parameter without a rule of the plan" in page.text("#panel section")
    assert page.texts("#panel .goto") == ["norm.weight"]


def test_a_comparison_marks_what_differs_and_says_what_it_was(show: Open) -> None:
    old = graph_of({"a.weight": (4, 4), "b.weight": (2,), "d.weight": (2,)})
    new = graph_of({"a.weight": (4, 8), "c.weight": (2,), "d.weight": (2,)})
    page = show(old, against=new)
    marks = page.evaluate(
        """[...document.querySelectorAll('.row')].map((row) =>
          ['.label', '.mark'].map((part) => row.querySelector(part)?.textContent || ''))"""
    )
    assert [(name, mark.split()[-1:]) for name, mark in marks] == [
        ("a.weight", ["changed"]),
        ("c.weight", ["added"]),
        ("d.weight", []),
        ("b.weight", ["removed"]),
    ]
    page.click(".row .label", "a.weight")
    assert "shape [4, 4]" in said(page)["Was"]
    assert "3 unique" in page.text("#facts")


def test_what_a_comparison_removed_is_not_said_to_have_no_layout(show: Open) -> None:
    old, new = graph_of({"a.weight": (4, 4), "b.weight": (2,)}), graph_of({"a.weight": (4, 4)})
    for graph in (old, new):
        set_key(graph, [node.id for node in graph.parameters()], "layout", Layout.parse("tp:S(0)"))
    page = show(old, against=new)
    assert page.texts(".row .cell.layout") == ["tp:S(0)", ""]
    page.click(".row .label", "b.weight")
    assert "removed" in said(page)["Stands out"]
    assert "No pass" not in page.text("#panel")
