"""The page's file: its policy, its data, and that nothing in it depends on chance."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

import pytest

from hpx.errors import MeshError, UsageError
from hpx.graph.from_names import NamedTensor, graph_from_names
from hpx.graph.graph import ModuleGraph
from hpx.plan import ShardingPlan
from hpx.render import Options, draw
from hpx.render.page.assemble import script_json
from hpx.render.page.forms import column
from hpx.run import Run, run


def graph_of(*names: str, shape: tuple[int, ...] = (4, 4)) -> ModuleGraph:
    return graph_from_names([NamedTensor(name, shape, "bfloat16") for name in names], source="m.pt")


def html(target: Run | ModuleGraph, **options: Any) -> str:
    return draw(target, "html", Options(**options)).decode()


def data(target: Run | ModuleGraph, **options: Any) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', html(target, **options), re.DOTALL)
    assert found is not None
    value = json.loads(found[1])
    assert isinstance(value, dict)
    return value


def unfolded(values: Any, count: int) -> list[int]:
    """A column as the script reads it."""
    if isinstance(values, int):
        return [values] * count
    runs = values["d"] if isinstance(values, dict) else values
    out: list[int] = []
    for item in runs:
        out += [item] if isinstance(item, int) else [item[0]] * item[1]
    if isinstance(values, dict):
        for place in range(1, len(out)):
            out[place] += out[place - 1]
    assert len(out) == count
    return out


@pytest.fixture
def planned() -> Run:
    plan = ShardingPlan({"layers.*.weight": {"tp": "S(0)"}, "norm": "replicate"})
    return run(graph_of("layers.0.weight", "layers.1.weight", "norm"), plan, "dp=2,tp=2")


def test_the_policy_allows_the_script_and_the_style_by_their_hashes_alone() -> None:
    text = html(graph_of("a.weight"))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert policy is not None
    assert len(script) == len(style) == 1
    hashes = [
        base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        for part in (*script, *style)
    ]
    assert policy[1] == (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def test_the_page_names_no_other_place() -> None:
    assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", html(graph_of("a.weight"))) == []


def test_the_script_neither_writes_markup_nor_evaluates_text() -> None:
    text = html(graph_of("a.weight"))
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in text


def test_the_same_input_gives_the_same_bytes(planned: Run) -> None:
    assert html(planned) == html(planned)


def test_a_saved_run_gives_the_same_page(planned: Run, tmp_path: Any) -> None:
    assert html(Run.load(planned.save(tmp_path / "run.json"))) == html(planned)


def test_markup_in_names_is_escaped_in_the_data() -> None:
    text = html(graph_of("</script><!--\u2028&.weight"))
    assert text.count("</script>") == 2
    assert "\u2028" not in text


def test_a_lone_surrogate_can_be_written() -> None:
    assert json.loads(script_json("\ud800")) == "\ud800"
    assert data(graph_of("\ud800.weight"))["tree"]["names"][-1] == "\ud800"


def test_a_checkpoint_alone_knows_no_layouts_rules_or_events() -> None:
    found = data(graph_of("a.weight"))
    assert not found["layoutsKnown"]
    assert found["tokens"] == found["rules"] == found["events"] == []


def test_equal_layers_are_one_form() -> None:
    found = data(graph_of(*(f"layers.{n}.weight" for n in range(100))))
    assert found["tree"]["tensors"]["count"] == 1
    assert found["tree"]["modules"]["count"] == 3  # a layer, the list, the model


def test_sums_count_every_layer_and_a_tie_once() -> None:
    tensors = [NamedTensor(f"layers.{n}.weight", (4, 4), "bfloat16") for n in range(3)]
    tensors.append(NamedTensor("head.weight", (4, 4), "bfloat16", same_as="layers.0.weight"))
    facts = dict(data(graph_from_names(tensors, source="m.pt"))["facts"])
    assert facts["parameters"].startswith("3 unique, 48 elements")
    assert facts["bytes"] == "96 bytes in all"


def test_facts_are_those_of_the_text(planned: Run) -> None:
    text = draw(planned, "text", Options()).decode()
    for word, said in data(planned)["facts"]:
        assert re.search(rf"^  {word} +{re.escape(said)}$", text, re.MULTILINE), word


def test_a_history_has_the_events_of_its_parameter(planned: Run) -> None:
    found = data(planned)
    count = found["tree"]["tensors"]["count"]
    history = unfolded(found["tree"]["tensors"]["history"], count)[0]
    told = [found["events"][place][5] for place in found["histories"][history]]
    assert "layout = tp:S(0)" in " ".join(told) or "layout = R" in " ".join(told)


def test_an_earlier_step_has_its_events_alone(planned: Run) -> None:
    assert data(planned, step=0)["events"] == []
    step = next(int(s["step"]) for s in planned.schedule if s["pass"] == "shard-params")
    assert {event[2] for event in data(planned, step=step)["events"]} == {"shard-params"}


def test_one_root_is_shown_with_the_name_above_it() -> None:
    found = data(graph_of("layers.0.weight", "norm"), root="layers.0")
    assert found["prefix"] == "layers.0"
    assert dict(found["facts"])["parameters"].startswith("1 unique")


def test_an_unknown_root_is_refused_with_near_names() -> None:
    with pytest.raises(UsageError, match="there is no 'layer'"):
        html(graph_of("layers.0.weight"), root="layer")


def test_a_rank_that_the_mesh_lacks_is_refused(planned: Run) -> None:
    with pytest.raises(MeshError, match="no rank 4"):
        html(planned, rank=4)


def test_a_rank_without_a_mesh_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no mesh"):
        html(graph_of("a.weight"), rank=0)


def test_an_axis_that_the_mesh_lacks_is_refused(planned: Run) -> None:
    with pytest.raises(UsageError, match="no axis 'ep'"):
        html(planned, axis="ep")


@pytest.mark.parametrize(
    "values",
    [[], [5], [5] * 4, list(range(2, 30)), [3, 1, 4, 1, 5], [0, 0, 0, 7, 7, 1], [-1, 5, -3] * 9],
)
def test_a_column_comes_back(values: list[int]) -> None:
    assert unfolded(column(values), len(values)) == values
