"""What an author of passes needs to test them: small graphs, one pass alone, and what it must keep.

A test of a pass is *before -> pass -> expected graph and events*, compared by path:

>>> from hpx.testing import assert_pass, graph_of
>>> from hpx.passes.shard_params import ShardParams
>>> before = graph_of({"up.weight": (8, 4), "norm.weight": (4,)})
>>> done = assert_pass(
...     ShardParams(),
...     before,
...     {
...         "up.weight": {"layout": "tp:S(0)", "mesh": "dense"},
...         "norm.weight": {"layout": "R", "mesh": "dense"},
...     },
...     plan={"up.weight": {"tp": "S(0)"}, "norm.weight": "replicate"},
...     events=[
...         "set layout tp:S(0): up.weight",
...         "set mesh dense: up.weight",
...         "set layout R: norm.weight",
...         "set mesh dense: norm.weight",
...     ],
... )
>>> [event.why for event in done.events if event.key == "layout"]
['rule says tp:S(0)', 'rule says replicate']

`check_contract` holds a pass to its own `PassInfo`; `assert_idempotent` runs it on its own result.
Failures are plain ``AssertionError``, so that any test runner shows them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from hpx._given import as_mesh
from hpx._graph_of import graph_of
from hpx._outline import (
    Changes,
    Outline,
    assert_same_graph,
    assert_same_outline,
    changed,
    outline,
    plain_value,
)
from hpx.graph.graph import ModuleGraph
from hpx.lineage import describe
from hpx.mesh import MeshSpec
from hpx.pipeline.context import PassContext, Problem
from hpx.pipeline.info import Pass
from hpx.pipeline.manager import check_step
from hpx.pipeline.request import Request
from hpx.plan import ShardingPlan
from hpx.provenance import Derivation, Event, Provenance, replay
from hpx.ranges import fold_names

if TYPE_CHECKING:
    from torch import nn

    from hpx.runtime.conservation import Conserved

__all__ = [
    "Outcome",
    "assert_idempotent",
    "assert_pass",
    "assert_same_graph",
    "check_contract",
    "event_lines",
    "graph_of",
    "outline",
    "prove_conservation",
    "run_pass",
]

PlanLike: TypeAlias = "ShardingPlan | Mapping[str, object] | None"
"""A plan, its ``params`` alone, or None for a plan that replicates everything."""


class Outcome(NamedTuple):
    """What one pass made of a graph."""

    graph: ModuleGraph
    events: tuple[Event, ...]
    problems: tuple[Problem, ...]


# -- running a pass ------------------------------------------------------------------------------


def run_pass(
    pass_: Pass, graph: ModuleGraph, *, plan: PlanLike = None, mesh: MeshSpec | str = "tp=2"
) -> Outcome:
    """Run one pass alone on a copy of a graph, held to its declarations.

    Facts that the pass requires are taken for granted, so that a test can give it just the part of
    a graph that it looks at.

    Args:
        pass_: The pass.
        graph: The graph before; stays as it is.
        plan: A plan, its ``params`` alone, or None for ``default: replicate``.
        mesh: A mesh or its text.

    Raises:
        HpxError: The pass refused, or broke its declarations.
    """
    request = _request(plan, mesh)
    working, log = graph.copy(), Provenance()
    ctx = PassContext(working, request, log, pass_, entry=graph)
    pass_.run(working, ctx)
    check_step(working, request, pass_, ctx.name, log.events)
    return Outcome(working, tuple(log.events), tuple(ctx.problems))


def _request(plan: PlanLike, mesh: MeshSpec | str) -> Request:
    if not isinstance(plan, ShardingPlan):
        plan = ShardingPlan(plan or {}, default="error" if plan else "replicate")
    return Request(plan, as_mesh(mesh))


def event_lines(events: Iterable[Event], before: ModuleGraph, after: ModuleGraph) -> list[str]:
    """One line for each event: what it did, and to what; reasons are left to tests of their own.

    Args:
        events: The events.
        before: The graph before them.
        after: The graph after them.
    """

    def name_of(node_id: int) -> str:
        graph = before if node_id in before.nodes else after
        return graph.path(node_id) or "(root)"

    return [_event_line(event, name_of, before) for event in events]


def _event_line(event: Event, name: Callable[[int], str], before: ModuleGraph) -> str:
    words: list[str] = [event.kind]
    if event.kind == "derive":
        words.append(describe(cast(Derivation, event.new).lineage, before.path))
    elif event.kind == "alias":
        words.append(name(cast(int, event.old)))
    elif event.kind in ("set", "skip") and event.key is not None:
        words.append(event.key.removeprefix("attributes."))
        if event.kind == "set":
            words.append(str(plain_value(event.new)))
    if not event.nodes:
        return " ".join(words)
    return f"{' '.join(words)}: {', '.join(fold_names(map(name, event.nodes)))}"


def assert_pass(
    pass_: Pass,
    before: ModuleGraph,
    expected: ModuleGraph | Changes,
    *,
    plan: PlanLike = None,
    mesh: MeshSpec | str = "tp=2",
    events: Sequence[str] | None = None,
) -> Outcome:
    """Run one pass and compare what it made with what it should have made.

    Args:
        pass_: The pass.
        before: The graph before; has to stay as it is.
        expected: The graph after, or what differs from the one before: by path the keys that have
            another value (``{"layout": "tp:S(0)"}``, ``{"num_heads": 2}``), None for what is gone.
        plan: A plan, its ``params`` alone, or None for ``default: replicate``.
        mesh: A mesh or its text.
        events: The log line by line, as `event_lines` prints it; not compared if None.

    Returns:
        The graph, events and problems, for what else a test wants to look at.

    Raises:
        AssertionError: Something differs.
        HpxError: The pass refused.
    """
    outcome = run_pass(pass_, before, plan=plan, mesh=mesh)
    wanted = outline(expected) if isinstance(expected, ModuleGraph) else changed(before, expected)
    got = outline(outcome.graph, before)
    if not isinstance(expected, ModuleGraph):
        wanted = {**{path: wanted[path] for path in got if path in wanted}, **wanted}
        _forgive_children(got, wanted, expected)
    assert_same_outline(got, wanted)
    if events is not None:
        lines = event_lines(outcome.events, before, outcome.graph)
        if lines != list(events):
            diff = difflib.unified_diff(list(events), lines, "expected", "got", n=1, lineterm="")
            raise AssertionError("the events differ:\n" + "\n".join(diff))
    return outcome


def _forgive_children(got: Outline, wanted: Outline, changes: Changes) -> None:
    """Changes name what comes and goes, so the lists of children need not be written too.

    What a change does not say of a new node is taken from the graph.
    """
    for path, change in changes.items():
        if change is not None and "kind" not in wanted.get(path, {}) and path in got:
            wanted[path] = {**got[path], **wanted[path]}
    for path, facts in wanted.items():
        if path in got and "children" in facts and "children" not in (changes.get(path) or {}):
            facts["children"] = got[path].get("children")


# -- contracts -----------------------------------------------------------------------------------


def check_contract(
    pass_: Pass, graph: ModuleGraph, plan: PlanLike = None, mesh: MeshSpec | str = "tp=2"
) -> Outcome:
    """Hold a pass to its own declaration on one graph.

    1. It writes only what ``writes`` names, and provides what ``provides`` promises.
    2. The graph that it was given stays as it is.
    3. Every change is an event: replaying them on the graph before gives the graph after.
    4. Facts that it requires still hold after it, unless it invalidates them.

    Returns:
        What the pass made.

    Raises:
        AssertionError: The graph was changed in place, or other than by events.
        ContractError: It wrote, or failed to provide, other than it declares.
    """
    request = _request(plan, mesh)
    nodes, next_id = dict(graph.nodes), graph.copy().take_id()
    held = [fact for fact in pass_.info.requires if not list(fact.holds(graph, request))]
    outcome = run_pass(pass_, graph, plan=plan, mesh=mesh)
    if graph.nodes != nodes or graph.copy().take_id() != next_id:
        raise AssertionError(f"{pass_.info.name} changed the graph that it was given")
    replayed = replay(graph, outcome.events)
    if replayed != outcome.graph:
        assert_same_outline(outline(outcome.graph, graph), outline(replayed, graph))
        raise AssertionError(f"the events of {pass_.info.name} do not make the graph that it left")
    for fact in held:
        against = list(fact.holds(outcome.graph, request))
        if against and fact not in pass_.info.invalidates:
            raise AssertionError(
                f"'{fact.name}' held before {pass_.info.name} and not after it: {against[0]};"
                " declare that it invalidates the fact"
            )
    return outcome


def assert_idempotent(
    pass_: Pass, graph: ModuleGraph, plan: PlanLike = None, mesh: MeshSpec | str = "tp=2"
) -> Outcome:
    """Run a pass on a graph and again on the result: the second run must change nothing.

    Returns:
        What the first run made.

    Raises:
        AssertionError: The second run changed something.
    """
    first = run_pass(pass_, graph, plan=plan, mesh=mesh)
    second = run_pass(pass_, first.graph, plan=plan, mesh=mesh)
    assert_same_outline(outline(second.graph, graph), outline(first.graph, graph))
    return first


# -- whole runs ----------------------------------------------------------------------------------


def prove_conservation(
    model: nn.Module,
    plan: PlanLike,
    mesh: MeshSpec | str,
    pipeline: str | Sequence[str | Pass | type[Pass]] = "@default",
) -> Conserved:
    """Apply a model as every rank of a mesh, and account for every single element of it.

    Every element gets a number of its own, in the bits of its own dtype. What each rank holds has
    to be where the run says and where ``torch.chunk`` puts it, on as many ranks as its layout
    leaves it whole; and all of it has to come back, through the inverse of the lineages and through
    `hpx.restore`, under the original names. One process plays all ranks, without a process group.

    Args:
        model: A model of plain tensors, real or meta; stays as it is.
        plan: A plan, its ``params`` alone, or None for ``default: replicate``.
        mesh: A mesh or its text.
        pipeline: Text form or passes.

    Raises:
        AssertionError: An element is lost, doubled or elsewhere; the message names it.
        HpxError: The run or the application is refused, or there is a process group already.

    >>> import torch
    >>> model = torch.nn.Linear(3, 5)
    >>> prove_conservation(model, {"weight": {"tp": "S(0)"}, "bias": "replicate"}, "dp=2,tp=5")
    Conserved(parameters=2, elements=20, ranks=10, held=80)
    """
    from hpx.run import run
    from hpx.runtime.conservation import Conservation, with_memory

    request = _request(plan, mesh)
    model = with_memory(model)
    return Conservation(model, run(model, request.plan, request.mesh, pipeline)).prove()
