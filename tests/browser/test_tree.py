"""The list: folding, opening, searching, sorting, axes and ranks."""

from __future__ import annotations

from hpx.graph import GraphBuilder, ModuleSpec, TensorSpec
from hpx.graph.graph import ModuleGraph
from hpx.plan import ShardingPlan
from hpx.render import Options, view
from hpx.run import Run, run
from tests.browser.conftest import Open, graph_of, moe
from tests.browser.driver import Page


def rows(page: Page) -> list[str]:
    """The names in the list, with how many each stands for."""
    found = page.evaluate(
        """[...document.querySelectorAll('.row')]
          .sort((a, b) => a.id.slice(4) - b.id.slice(4))
          .map((row) => row.querySelector('.label').textContent
            + (row.querySelector('.times')?.textContent.replace(/^./, ' x') || ''))"""
    )
    assert isinstance(found, list)
    return found


def cell(page: Page, label: str, column: str) -> str:
    """One cell of the row with this name."""
    return str(
        page.evaluate(
            f"""[...document.querySelectorAll('.row')]
              .find((row) => row.querySelector('.label').textContent === '{label}')
              .querySelector('.cell.{column}')?.textContent"""
        )
    )


def search(page: Page, text: str) -> list[str]:
    """What a search leaves."""
    page.search(text)
    return rows(page)


def test_equal_layers_and_experts_are_one_row_each(show: Open) -> None:
    assert rows(show(moe())) == [
        "embed.weight",
        "layers.0-2 x3",
        "attn",
        "q.weight",
        "k.weight",
        "v.weight",
        "o.weight",
        "s.weight",
        "mlp.experts.0-3 x4",
        "up.weight",
        "down.weight",
        "norm.weight",
    ]


def test_rows_are_those_of_the_text(show: Open, moe_run: Run) -> None:
    made = view(moe_run, Options(), picture=False)
    expected: list[str] = []

    def add(index: int) -> None:
        for item in made.boxes[index].items:
            if isinstance(item, int):
                expected.append(made.boxes[item].label)
                add(item)
            else:
                expected.append(item.label)

    add(0)
    assert show(moe_run).texts(".row .label") == expected


def test_an_odd_one_is_first_among_the_problems_and_open_in_the_list(
    show: Open, odd_one: ModuleGraph
) -> None:
    page = show(odd_one)
    problem = page.text("#findings li")
    assert "layers.3.experts.5.up.weight is float32, not bfloat16" in problem
    assert page.text(".row.marked .label") == "up.weight"
    assert "unlike its siblings" in page.text(".row.marked .mark")
    assert rows(page)[::3] == [
        "layers.0-2,4-5.experts.0-7 x40",
        "layers.3.experts.0-4,6-7 x7",
        "layers.3.experts.5",
    ]


def test_a_problem_leads_to_its_row(show: Open, odd_one: ModuleGraph) -> None:
    page = show(odd_one)
    page.click("#collapse")
    page.click("#findings button")
    assert page.text(".row.chosen .label") == "up.weight"
    assert page.text("#panel .path code") == "layers.3.experts.5.up.weight"


def test_a_click_closes_and_opens_a_module(show: Open) -> None:
    page = show(moe())
    page.click(".row .label", "layers.0-2")
    assert rows(page) == ["embed.weight", "layers.0-2 x3", "norm.weight"]
    page.click(".row .twisty", "▸")
    assert "q.weight" in rows(page)


def test_everything_closes_and_opens_at_once(show: Open) -> None:
    page = show(moe())
    page.click("#collapse")
    assert rows(page) == ["embed.weight", "layers.0-2 x3", "norm.weight"]
    page.click("#expand")
    assert len(rows(page)) == 12


def test_nothing_folds_if_asked_so(show: Open) -> None:
    page = show(moe(layers=2, experts=2))
    page.choose("#fold", "none")
    page.click("#expand")
    found = rows(page)
    assert "layers.0-1 x2" not in found
    assert found.count("q.weight") == 2
    assert found.count("up.weight") == 4


def test_folding_by_structure_joins_what_layouts_tell_apart(show: Open) -> None:
    plan = ShardingPlan({"layers.0.a.weight": {"tp": "S(0)"}, "layers.*.*.weight": "replicate"})
    graph = graph_of({f"layers.{n}.{name}.weight": (4, 4) for n in range(3) for name in "ab"})
    page = show(run(graph, plan, "tp=2"))
    assert "layers.1-2 x2" in rows(page)
    page.choose("#fold", "structure")
    page.click("#expand")
    assert rows(page) == ["layers.0-2 x3", "a.weight", "b.weight"]
    assert cell(page, "a.weight", "layout") == "mixed"
    assert cell(page, "b.weight", "layout") == "R"


def test_a_search_leaves_what_has_all_words_in_its_name(show: Open) -> None:
    page = show(moe())
    assert search(page, "attn q") == ["layers.0-2.attn.q.weight x3"]
    assert page.text("#count").startswith("3 names found")


def test_a_search_for_one_layer_leaves_that_one(show: Open) -> None:
    assert search(show(moe()), "layers.1.attn.q") == ["layers.1.attn.q.weight"]


def test_a_search_finds_layouts_dtypes_and_passes(show: Open, moe_run: Run) -> None:
    page = show(moe_run)
    assert search(page, "layout:tp:S(1)") == ["layers.0-2.attn.o.weight x3"]
    assert "norm.weight" in search(page, "dtype:bf16")
    assert "embed.weight" in search(page, "pass:shard-params")
    assert search(page, "ep:s(0) up") == ["layers.0-2.mlp.experts.up x3"]


def test_the_end_of_a_search_brings_the_list_back_as_it_was(show: Open) -> None:
    page = show(moe())
    page.click("#collapse")
    search(page, "attn")
    page.search("")
    assert rows(page) == ["embed.weight", "layers.0-2 x3", "norm.weight"]


def test_a_search_without_a_find_says_so(show: Open) -> None:
    page = show(moe())
    assert search(page, "nowhere") == []
    assert page.text("#nothing") == "Nothing matches."


def test_an_axis_has_its_own_placements_and_colours(show: Open, moe_run: Run) -> None:
    page = show(moe_run)
    assert cell(page, "mlp.experts.up", "layout") == "ep:S(0)"
    page.choose("#axis", "tp")
    assert page.text("#columns .layout") == "On tp"
    assert cell(page, "o.weight", "layout") == "S(1)"
    assert cell(page, "norm.weight", "layout") == "R"
    assert cell(page, "mlp.experts.up", "layout") == "other mesh"
    page.choose("#axis", "ep")
    assert cell(page, "mlp.experts.up", "layout") == "S(0)"


def test_the_same_dim_has_one_colour_on_every_axis(show: Open, moe_run: Run) -> None:
    page = show(moe_run)
    classes = page.evaluate(
        "[...document.querySelectorAll('.row .token')]"
        ".map((token) => `${token.textContent} ${token.className}`)"
    )
    assert "tp:S(0) token dim0" in classes
    assert "ep:S(0) token dim0" in classes
    assert "tp:S(1) token dim1" in classes
    assert "R token whole" in classes


def test_colours_tell_dtypes_passes_or_bytes_if_asked_so(show: Open, moe_run: Run) -> None:
    page = show(moe_run, color_by="dtype")
    colour = "document.querySelector('.row .{} .token').className"
    assert page.evaluate(colour.format("dtype")) == "token kind0"
    assert page.evaluate(colour.format("layout")) == "token whole"
    page.choose("#color", "pass")
    assert page.evaluate(colour.format("pass")) == "token kind0"
    page.choose("#color", "bytes")
    assert "token scale4" in page.evaluate(
        "[...document.querySelectorAll('.row .bytes .token')].map((chip) => chip.className)"
    )
    assert page.complaints == []


def test_a_rank_has_its_own_piece(show: Open) -> None:
    plan = ShardingPlan({"a.weight": {"tp": "S(0)"}})
    made = run(graph_of({"a.weight": (5, 4)}), plan, "tp=4", "shard-params{uneven=allow}")
    page = show(made)
    assert cell(page, "a.weight", "local") == "[2, 4]"
    page.choose("#rank", "2")
    assert page.text("#columns .local") == "On rank 2"
    assert cell(page, "a.weight", "local") == "[1, 4]"


def test_rows_sort_by_bytes_and_by_name(show: Open) -> None:
    page = show(graph_of({"b.weight": (2,), "a.weight": (3,), "c.weight": (9,)}))
    page.choose("#sort", "bytes")
    assert rows(page) == ["c.weight", "a.weight", "b.weight"]
    page.choose("#sort", "name")
    assert rows(page) == ["a.weight", "b.weight", "c.weight"]


def test_a_checkpoint_without_layouts_has_no_columns_for_them(show: Open) -> None:
    page = show(moe())
    assert page.texts("#columns span") == ["Name", "Shape", "Dtype", "Bytes"]
    assert page.evaluate("document.querySelector('#axis-label').hidden")
    assert page.texts(".token") == []


def test_a_tie_is_marked_on_both_rows_and_counted_once(show: Open) -> None:
    graph = graph_of({"embed.weight": (8, 4)}, ties={"head.weight": "embed.weight"})
    page = show(graph)
    assert rows(page) == ["embed.weight", "head.weight"]
    assert page.text(".row .badge") == "tied"
    assert page.text(".row .target") == "= embed.weight"
    assert "1 unique" in page.text("#facts")


def test_a_further_name_leads_to_the_first(show: Open) -> None:
    graph = graph_of({"embed.weight": (8, 4)}, ties={"head.weight": "embed.weight"})
    page = show(graph)
    page.click(".row .target")
    assert page.text(".row.chosen .label") == "embed.weight"


def test_the_legend_searches(show: Open, moe_run: Run) -> None:
    page = show(moe_run)
    page.click("#legend button", "tp:S(1)")
    assert rows(page) == ["layers.0-2.attn.o.weight x3"]


def test_an_empty_model_says_so(show: Open) -> None:
    assert show(graph_of({})).text("#nothing") == "There are no parameters."


def test_a_root_shows_what_is_below_it_under_whole_names(show: Open) -> None:
    page = show(moe(), root="layers.1")
    assert "attn" in rows(page)
    page.click(".row .label", "q.weight")
    assert page.text("#panel .path code") == "layers.1.attn.q.weight"


def test_what_is_expanded_does_not_fold(show: Open) -> None:
    page = show(moe(), expand=("layers.1",))
    page.click("#expand")
    assert {"layers.0,2 x2", "layers.1"} <= set(rows(page))


def test_five_thousand_levels_open(show: Open) -> None:
    page = show(graph_of({".".join(["a"] * 5000 + ["weight"]): (2,), "b.weight": (2,)}))
    assert len(rows(page)) == 2
    assert page.complaints == []


def wrapped() -> ModuleGraph:
    """What torch.compile makes of a model of DTensors that uses one module twice."""
    builder = GraphBuilder()
    top = builder.module(-1, "", ModuleSpec("OptimizedModule", wrapper="_orig_mod"))
    net = builder.module(top, "_orig_mod", ModuleSpec("Net"))
    shared = builder.module(net, "shared", ModuleSpec("Linear"))
    placed = (("dp", 2, "S(0)"), ("tp", 2, "S(1)"))
    for name, shape in (("weight", (5, 4)), ("empty", (0, 4))):
        builder.tensor("parameter", shared, name, TensorSpec(shape, "bfloat16", placed=placed))
    builder.link(net, "again", shared)
    return builder.finish(source="compiled")


def test_a_wrapper_has_no_row_and_no_part_in_names(show: Open) -> None:
    page = show(wrapped())
    assert rows(page) == ["shared.weight", "shared.empty", "again"]
    page.click(".row .label")
    assert page.text("#panel .path code") == "shared.weight"


def test_a_further_name_of_a_module_leads_to_what_is_in_it(show: Open) -> None:
    page = show(wrapped())
    page.click(".row .target")
    assert page.text(".row.chosen .label") == "shared.weight"


def test_dtensors_show_their_own_layouts_without_a_mesh(show: Open) -> None:
    page = show(wrapped())
    assert cell(page, "shared.weight", "layout") == "dp:S(0),tp:S(1)"
    assert cell(page, "shared.weight", "local") == "[3, 2]"
    assert cell(page, "shared.empty", "local") == "[0, 2]"
    page.choose("#axis", "tp")
    assert cell(page, "shared.weight", "layout") == "S(1)"
    assert page.complaints == []
