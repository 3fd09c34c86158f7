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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

from hpx.graph.builder import GraphBuilder
from hpx.graph.edit import set_key
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, ModuleSpec, Node, TensorKind, TensorSpec
from hpx.layout import Layout
from hpx.lineage import describe
from hpx.mesh import MeshSpec
from hpx.pipeline.context import PassContext, Problem
from hpx.pipeline.info import Pass
from hpx.pipeline.manager import check_step
from hpx.pipeline.request import Request
from hpx.plan import ShardingPlan
from hpx.provenance import Derivation, Event, Provenance, replay
from hpx.ranges import fold_names

__all__ = [
    "Outcome",
    "assert_idempotent",
    "assert_pass",
    "assert_same_graph",
    "check_contract",
    "event_lines",
    "graph_of",
    "outline",
    "run_pass",
]

PlanLike: TypeAlias = "ShardingPlan | Mapping[str, object] | None"
"""A plan, its ``params`` alone, or None for a plan that replicates everything."""
Changes: TypeAlias = Mapping[str, "Mapping[str, object] | None"]
"""What differs from the graph before: by path the keys that have another value; None for gone."""
Outline: TypeAlias = dict[str, dict[str, object]]
"""A graph by path: what each node is and what passes decided about it."""

_MODULE = "torch.nn.modules.module.Module"


class Outcome(NamedTuple):
    """What one pass made of a graph."""

    graph: ModuleGraph
    events: tuple[Event, ...]
    problems: tuple[Problem, ...]


# -- building graphs -----------------------------------------------------------------------------


def graph_of(
    tensors: Mapping[str, Sequence[int] | TensorSpec],
    *,
    attributes: Mapping[str, Mapping[str, int]] | None = None,
    classes: Mapping[str, str] | None = None,
    dtypes: Mapping[str, str] | None = None,
    frozen: Collection[str] = (),
    buffers: Collection[str] = (),
    tied: Mapping[str, str] | None = None,
    layouts: Mapping[str, str] | None = None,
    hints: Mapping[str, object] | None = None,
) -> ModuleGraph:
    """A graph from names and shapes.

    Args:
        tensors: Parameters by dotted name: a shape, or a whole specification.
        attributes: Integers of modules by module name; ``""`` is the root.
        classes: Qualified class names of modules by module name.
        dtypes: dtypes other than float32, by tensor.
        frozen: Tensors that need no gradient.
        buffers: Which of the tensors are buffers.
        tied: Further names of parameters: new name -> name in ``tensors``.
        layouts: Layouts that a pass has decided already, by tensor, as ``"tp:S(0)"`` or ``"R"``.
        hints: What the model declares, such as ``{"config": {"num_attention_heads": 8}}``.

    >>> graph = graph_of({"attn.q.weight": (8, 8)}, attributes={"attn": {"num_heads": 4}})
    >>> graph.module(graph.find("attn")).attributes
    {'num_heads': 4}
    """
    builder = GraphBuilder()
    integers, names = attributes or {}, classes or {}
    modules: dict[str, int] = {}
    made: dict[str, int] = {}
    todo = [""]
    extra = [*integers, *names, *(name.rpartition(".")[0] for name in tied or {})]
    below = _modules_below([*tensors, *(f"{name}.x" for name in extra if name)])
    while todo:
        path = todo.pop()
        parent, _, name = path.rpartition(".")
        spec = ModuleSpec(
            names.get(path, _MODULE), attributes=tuple(integers.get(path, {}).items())
        )
        modules[path] = builder.module(modules[parent] if path else -1, name, spec)
        for full, value in tensors.items():
            owner, _, leaf = full.rpartition(".")
            if owner == path:
                kind: TensorKind = "buffer" if full in buffers else "parameter"
                spec_of = _tensor_spec(value, (dtypes or {}).get(full), full not in frozen)
                made[full] = builder.tensor(kind, modules[path], leaf, spec_of)
        todo.extend(reversed(below.get(path, ())))
    for alias, target in (tied or {}).items():
        owner, _, leaf = alias.rpartition(".")
        builder.link(modules[owner], leaf, made[target])
    graph = builder.finish(source="test", hints=hints)
    for full, text in (layouts or {}).items():
        layout = Layout.parse(text)
        set_key(graph, [made[full]], "layout", layout)
        view = "dense" if layout.dim("ep") is None else "expert"
        set_key(graph, [made[full]], "mesh", view)
    return graph


def _modules_below(names: Iterable[str]) -> dict[str, list[str]]:
    """The child modules of every module, in the order in which names mention them."""
    below: dict[str, list[str]] = {}
    for full in names:
        parts = full.split(".")[:-1]
        for length in range(1, len(parts) + 1):
            parent, path = ".".join(parts[: length - 1]), ".".join(parts[:length])
            if path not in below.setdefault(parent, []):
                below[parent].append(path)
    return below


def _tensor_spec(
    value: Sequence[int] | TensorSpec, dtype: str | None, requires_grad: bool
) -> TensorSpec:
    if isinstance(value, TensorSpec):
        return value
    shape = tuple(value)
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return TensorSpec(
        shape,
        dtype or "float32",
        tuple(strides),
        requires_grad,
        cls="torch.nn.parameter.Parameter",
    )


# -- comparing graphs ----------------------------------------------------------------------------


def outline(graph: ModuleGraph, entry: ModuleGraph | None = None) -> Outline:
    """A graph by path, in plain values; what two graphs have to agree in to be the same.

    Args:
        graph: The graph.
        entry: The graph before any pass, whose names lineages are told in.

    >>> outline(graph_of({"w": (4, 2)}))["w"]["shape"]
    [4, 2]
    """
    return {graph.path(node.id): dict(_facts(graph, node, entry or graph)) for node in graph.walk()}


def _facts(graph: ModuleGraph, node: Node, entry: ModuleGraph) -> Iterator[tuple[str, object]]:
    yield "kind", node.kind
    aliases = graph.paths(node.id)[1:]
    if aliases:
        yield "aliases", sorted(aliases)
    if isinstance(node, ModuleNode):
        yield "cls", node.spec.cls
        for field in ("container", "hooks", "wrapper", "parametrized"):
            value = getattr(node.spec, field)
            if value:
                yield field, _plain(value)
        yield from node.attributes.items()
        yield "children", list(node.children)
    else:
        for field, value in node.spec._asdict().items():
            yield ("class" if field == "cls" else field), _plain(value)
        if node.lineage is not None:
            yield "lineage", describe(node.lineage, entry.path)
    for key, value in node.props.items():
        if not key.startswith("attributes."):
            yield key, _plain(value)


def _plain(value: object) -> object:
    """The value as tests write it: layouts as text, tuples as lists."""
    if isinstance(value, Layout):
        return str(value)
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


def assert_same_graph(
    got: ModuleGraph, expected: ModuleGraph, *, entry: ModuleGraph | None = None
) -> None:
    """Compare two graphs by path; ids may differ.

    Raises:
        AssertionError: They differ; the message shows where, path by path.
    """
    _assert_same(outline(got, entry), outline(expected, entry))


def _assert_same(got: Outline, expected: Outline) -> None:
    if got == expected and list(got) == list(expected):
        return
    lines = list(
        difflib.unified_diff(_lines(expected), _lines(got), "expected", "got", n=0, lineterm="")
    )
    shown = [line for line in lines if not line.startswith("@@")]
    raise AssertionError("the graphs differ:\n" + "\n".join(shown))


def _lines(shape: Outline) -> list[str]:
    return [
        f"{path or '(root)'}  {key} = {value}"
        for path, facts in shape.items()
        for key, value in sorted(facts.items())
    ]


def _changed(before: ModuleGraph, changes: Changes) -> Outline:
    """The outline that the changes make of a graph."""
    expected = outline(before)
    for path, change in changes.items():
        if change is None:
            if path not in expected:
                raise AssertionError(f"'{path}' is expected to go, and was never there")
            for name in [n for n in expected if n == path or n.startswith(f"{path}.")]:
                del expected[name]
        else:
            expected.setdefault(path, {}).update({k: _plain(v) for k, v in change.items()})
    return expected


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
    return Request(plan, MeshSpec.parse(mesh) if isinstance(mesh, str) else mesh)


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
            words.append(str(_plain(event.new)))
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
    wanted = outline(expected) if isinstance(expected, ModuleGraph) else _changed(before, expected)
    got = outline(outcome.graph, before)
    if not isinstance(expected, ModuleGraph):
        wanted = {**{path: wanted[path] for path in got if path in wanted}, **wanted}
        _forgive_children(got, wanted, expected)
    _assert_same(got, wanted)
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
        _assert_same(outline(outcome.graph, graph), outline(replayed, graph))
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
    _assert_same(outline(second.graph, graph), outline(first.graph, graph))
    return first
