from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from hpx.errors import ContractError, HpxError, PassError, PipelineError
from hpx.graph import ModuleGraph
from hpx.lineage import Source
from hpx.mesh import MeshSpec
from hpx.pipeline import Fact, Pass, PassInfo
from hpx.pipeline.context import PassContext
from hpx.pipeline.manager import PassManager, Result
from hpx.pipeline.request import Request
from hpx.plan import ShardingPlan
from hpx.testing import graph_of

REQUEST = Request(ShardingPlan({}, default="replicate"), MeshSpec.parse("tp=2"))


def marked_by(key: str) -> Fact:
    """Holds if every parameter has the key."""
    return Fact(
        key,
        lambda graph, _: [
            f"{graph.path(node.id)} has no {key}"
            for node in graph.parameters()
            if key not in node.props
        ],
    )


WET, DRY = marked_by("wet"), marked_by("dry")


def mark(graph: ModuleGraph, ctx: PassContext, key: str) -> None:
    ctx.set([node.id for node in graph.parameters()], key, True, why=f"made {key}")


@dataclass(frozen=True, kw_only=True)
class Wash(Pass):
    """Makes everything wet."""

    info = PassInfo(name="wash", provides=WET, invalidates=DRY, writes={"wet"})

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        mark(graph, ctx, "wet")


@dataclass(frozen=True, kw_only=True)
class Spin(Pass):
    """Makes everything dry that is wet."""

    info = PassInfo(name="spin", requires=WET, provides=DRY, writes={"dry"})

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        mark(graph, ctx, "dry")


def doing(act: Callable[[ModuleGraph, PassContext], object], **info: object) -> Pass:
    """A pass that does one thing."""

    class Doing(Pass):
        """Does what it is told."""

        def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
            act(graph, ctx)

    Doing.info = PassInfo(name="doing", **info)  # type: ignore[arg-type]
    return Doing()


def run(*passes: Pass, graph: ModuleGraph | None = None) -> Result:
    before = graph or graph_of({"a.weight": (4, 2), "b.weight": (4, 2)})
    return PassManager(passes).run(before, REQUEST)


# -- a run that works --------------------------------------------------------------------------


def test_passes_run_in_the_order_of_their_declarations() -> None:
    result = run(Spin(), Wash())
    assert [event.pass_ for event in result.log.events] == ["wash", "spin"]
    assert [event.step for event in result.log.events] == [1, 2]


def test_the_result_says_which_facts_hold_at_the_end() -> None:
    assert run(Wash(), Spin()).facts == ("dry", "wet")
    assert run().facts == ()


def test_the_graph_that_was_given_stays_as_it_was() -> None:
    before = graph_of({"a.weight": (4, 2)})
    nodes = dict(before.nodes)
    result = run(Wash(), graph=before)
    assert before.nodes == nodes
    assert result.graph.nodes != nodes


def test_facts_that_hold_at_entry_are_detected() -> None:
    wet = run(Wash()).graph
    manager = PassManager([Spin()])
    assert manager.facts_at_entry(wet, REQUEST) == {"wet"}
    assert [step.name for step in manager.run(wet, REQUEST).schedule.steps] == ["spin"]


def test_a_fact_that_does_not_hold_at_entry_is_an_error() -> None:
    with pytest.raises(PipelineError, match="wet"):
        run(Spin())


def test_every_step_has_its_time_and_its_numbers_of_events_and_nodes() -> None:
    timings = run(Wash(), Spin()).timings
    assert [(t.step, t.name, t.events, t.nodes) for t in timings] == [
        (1, "wash", 1, 2),
        (2, "spin", 1, 2),
    ]
    assert all(t.seconds >= 0 for t in timings)


def test_progress_is_called_before_each_step() -> None:
    calls: list[tuple[int, int, str]] = []
    before = graph_of({"a.weight": (4, 2)})
    manager = PassManager([Wash(), Spin()])
    manager.run(before, REQUEST, progress=lambda *call: calls.append(call))
    assert calls == [(1, 2, "wash"), (2, 2, "spin")]


def test_a_pass_that_does_nothing_says_so_in_the_log() -> None:
    result = run(doing(lambda graph, ctx: None))
    assert [(event.kind, event.why) for event in result.log.events] == [
        ("note", "matched nothing: no decision to make here")
    ]


def test_problems_of_all_passes_are_collected_in_order() -> None:
    first = doing(lambda graph, ctx: ctx.problem("look"))
    assert [problem.text for problem in run(first, Wash()).problems] == ["look"]


def test_a_repeated_pass_is_two_steps_with_two_names() -> None:
    assert [event.pass_ for event in run(Wash(), Wash()).log.events] == ["wash#1", "wash#2"]


# -- a pass that breaks its word ---------------------------------------------------------------


def failing(*passes: Pass) -> HpxError:
    """The error of a run, after which the given graph has to be as it was."""
    before = graph_of({"a.weight": (4, 2), "b.weight": (4, 2)})
    nodes = dict(before.nodes)
    with pytest.raises(HpxError) as caught:
        run(*passes, graph=before)
    assert before.nodes == nodes
    return caught.value


def test_an_undeclared_write_is_a_contract_error_that_names_the_pass() -> None:
    error = failing(Wash(), doing(lambda graph, ctx: mark(graph, ctx, "dry")))
    assert isinstance(error, ContractError)
    assert str(error) == (
        "pass doing: wrote 'dry', which it does not declare: its PassInfo.writes is empty."
        " Fix: add 'dry' to writes"
    )


def test_a_promised_fact_that_does_not_hold_is_a_contract_error_with_what_speaks_against() -> None:
    error = failing(doing(lambda graph, ctx: None, provides=WET))
    assert isinstance(error, ContractError)
    assert str(error) == (
        "pass doing: provides 'wet', which does not hold after it: a.weight has no wet (and 1 more)"
    )


def test_a_module_removed_without_what_is_below_it_is_a_contract_error() -> None:
    def cut_off(graph: ModuleGraph, ctx: PassContext) -> None:
        ctx.remove(graph.find("a") or -1, why="in the way")

    error = failing(doing(cut_off, writes={"structure"}))
    assert isinstance(error, ContractError)
    assert "pass doing: left 'weight' without a place" in str(error)


def test_an_edge_to_nothing_is_a_contract_error() -> None:
    def dangle(graph: ModuleGraph, ctx: PassContext) -> None:
        ctx.derive(graph.root, "w", Source(graph.find("a.weight") or -1), why="x")
        root = graph.module(graph.root)
        graph.nodes[graph.root] = root._replace(children={**root.children, "ghost": 999})

    error = failing(doing(dangle, writes={"structure"}))
    assert str(error) == "pass doing: left a broken edge at 'ghost'"


# -- a pass that fails -------------------------------------------------------------------------


def test_a_refusal_names_the_pass_once() -> None:
    def refuse(graph: ModuleGraph, ctx: PassContext) -> None:
        raise ctx.error("will not")

    assert str(failing(Wash(), doing(refuse))) == "pass doing: will not"


def test_an_error_from_below_is_given_the_name_of_the_pass() -> None:
    def refuse(graph: ModuleGraph, ctx: PassContext) -> None:
        raise PassError("will not")

    assert str(failing(doing(refuse))) == "pass doing: will not"


def test_a_crash_of_a_pass_is_one_line_that_names_it_and_keeps_its_cause() -> None:
    def fail(graph: ModuleGraph, ctx: PassContext) -> None:
        raise KeyError("oops\nand more")

    error = failing(Wash(), doing(fail))
    line = fail.__code__.co_firstlineno + 1
    assert isinstance(error, ContractError)
    assert error.exit_code == 2
    assert str(error) == (
        f"pass doing, step 2 of 2: crashed at {__file__}:{line}: KeyError: 'oops\\nand more'"
    )
    assert isinstance(error.__cause__, KeyError)


def test_a_crash_below_a_pass_is_told_at_the_line_of_the_pass() -> None:
    def fail(graph: ModuleGraph, ctx: PassContext) -> None:
        MeshSpec.parse(3)  # type: ignore[arg-type]

    error = failing(doing(fail))
    assert f"{__file__}:{fail.__code__.co_firstlineno + 1}: " in str(error)
    assert "\n" not in str(error)


def test_a_crash_of_a_fact_names_the_fact_and_its_pass() -> None:
    def ask(graph: ModuleGraph, request: Request) -> list[str]:
        return [str(1 // 0)]

    error = failing(doing(lambda graph, ctx: None, provides={Fact("odd", ask)}))
    assert str(error) == (
        f"pass doing, fact 'odd': crashed at {__file__}:{ask.__code__.co_firstlineno + 1}:"
        " ZeroDivisionError: integer division or modulo by zero"
    )
