from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

import pytest

import hpx
from hpx.errors import InputError
from hpx.graph import ModuleGraph
from hpx.pipeline import Fact, Pass, PassInfo, as_passes, schedule
from hpx.pipeline.context import PassContext
from hpx.pipeline.manager import FailedStep
from hpx.render.pipeline import (
    PipelinePicture,
    failure_to_json,
    picture_of_failure,
    picture_of_run,
    pipeline_to_dot,
)
from hpx.testing import graph_of

CLEAN = Fact("clean", lambda graph, request: [])


@dataclass(frozen=True, kw_only=True)
class Wash(Pass):
    """Wash it; <b> is no tag & \\N no name."""

    info = PassInfo(name="wash", provides=CLEAN, writes={"layout"})
    minutes: int = 30

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Iron(Pass):
    """Iron it."""

    info = PassInfo(name="iron", requires=CLEAN)

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None: ...


def picture(*passes: Pass, entry: Collection[str] | None = None) -> PipelinePicture:
    return PipelinePicture("test", schedule(passes, entry))


def failure(**changes: object) -> dict[str, object]:
    plan = schedule(as_passes("@default"), None)
    value = failure_to_json(
        FailedStep(plan, 2), title="m on tp=2", pipeline="@default", order="auto", error="too\nbad"
    )
    return {**value, **changes}


def test_every_edge_has_its_reason() -> None:
    dot = pipeline_to_dot(picture(Iron(), Wash()))
    assert re.search(r's1 -> s2 \[label="provides clean\\l"\]', dot)


def test_every_reason_of_a_real_pipeline_is_on_an_edge() -> None:
    plan = schedule(as_passes("@run"), None)
    dot = pipeline_to_dot(PipelinePicture("test", plan))
    numbers = {step.name: step.index for step in plan.steps}
    for edge in plan.edges:
        why = edge.why.removeprefix(f"{edge.first} ")
        pattern = rf"s{numbers[edge.first]} -> s{numbers[edge.then]} \[label=\"[^\"]*{why}\\l"
        assert re.search(pattern, dot), edge


def test_a_step_shows_its_facts_and_options() -> None:
    dot = pipeline_to_dot(picture(Iron(), Wash(minutes=60)))
    assert "provides clean" in dot
    assert "requires clean" in dot
    assert "{minutes=60}" in dot


def test_steps_that_nothing_orders_stand_in_the_order_they_run_in() -> None:
    assert re.search(r"s1 -> s2 \[style=invis", pipeline_to_dot(picture(Wash(), Wash(minutes=1))))


def test_a_fact_that_holds_at_entry_has_an_edge_from_the_model() -> None:
    dot = pipeline_to_dot(picture(Iron(), entry={"clean"}))
    assert re.search(r's0 -> s1 \[label="clean holds\\l"', dot)
    assert "assumed" not in dot


def test_a_fact_that_nobody_looked_for_is_called_assumed() -> None:
    assert re.search(r"s0 -> s1 .*clean is assumed", pipeline_to_dot(picture(Iron())))


def test_the_docstring_of_a_pass_cannot_break_the_picture() -> None:
    dot = pipeline_to_dot(picture(Wash()))
    assert "&lt;b&gt; is no tag &amp; \\\\N no name" in dot


def test_the_step_that_failed_stands_out_and_later_ones_were_not_reached() -> None:
    dot = pipeline_to_dot(picture_of_failure(failure()))
    labels = dict(re.findall(r"^\t(s\d+) \[label=(.*)\]$", dot, re.MULTILINE))
    assert [name for name, label in labels.items() if ">failed<" in label] == ["s2"]
    assert 'border="3" color="#D55E00"' in labels["s2"]
    assert ">done<" in labels["s1"]
    assert all(">not reached<" in labels[f"s{n}"] for n in range(3, len(labels) + 1))
    assert "failed at step 2" in dot
    assert ("too<br" in dot, "bad<br" in dot) == (True, True)


def test_a_run_shows_how_many_events_each_step_has() -> None:
    run = hpx.run(graph_of({"w": (4, 2)}), hpx.ShardingPlan({"w": {"tp": "S(0)"}}), "tp=2")
    made = picture_of_run(run)
    assert sum(int(text.split()[0]) for text in made.done.values()) == len(run.events)
    assert len(made.plan.steps) == len(run.schedule)


@pytest.mark.parametrize("field", ["schedule", "step", "pipeline", "error"])
def test_a_damaged_file_of_a_failed_run_is_refused(field: str) -> None:
    value = failure()
    del value[field]
    with pytest.raises(InputError, match="is damaged"):
        picture_of_failure(value)


def test_a_step_that_the_order_does_not_have_is_refused() -> None:
    with pytest.raises(InputError, match="it has no step 40"):
        picture_of_failure(failure(step=40))


def test_a_pass_that_is_not_there_any_more_is_told() -> None:
    with pytest.raises(InputError, match="gone-pass"):
        picture_of_failure(failure(pipeline="gone-pass"))


def test_another_order_than_that_of_the_file_is_not_drawn_as_if_it_were() -> None:
    with pytest.raises(InputError, match="its order was"):
        picture_of_failure(failure(pipeline="tie-weights"))
