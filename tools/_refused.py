"""What else can be said of a plan that the pipeline refuses.

A pass raises at its first kind of finding, and what passes and checks after it would find stays
unsaid. Here every check is asked that does not need the layouts of what was refused: those
parameters, and what is computed with them, get no layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hpx.check.checks import run_checks
from hpx.check.cuts import cut_problems
from hpx.check.findings import grouped
from hpx.check.per_head import is_norm
from hpx.errors import HpxError, ManyErrors
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.mesh import MeshSpec
from hpx.passes.build_source_info import BuildSourceInfo
from hpx.passes.shard_params import ShardParams
from hpx.passes.update_heads import UpdateHeads
from hpx.pipeline.context import PassContext, Problem
from hpx.pipeline.info import Pass
from hpx.pipeline.request import Request
from hpx.plan import ShardingPlan, fold_names
from hpx.provenance import Provenance
from hpx.sharding import Decision, decide

__all__ = ["Others", "other_findings"]

_ROUNDS = 4
_MAX_NAMES = 4
_NOT_COMPUTED = "memory, communication, gradients and the shape proof, which need all layouts"


class Others(NamedTuple):
    """What was found beside a refusal.

    Attributes:
        errors: More of what would be refused.
        problems: What a person should look at, by ids of ``graph``.
        graph: The graph with the layouts that could be set.
        unchecked: What could not be computed or asked, in words.
    """

    errors: tuple[HpxError, ...]
    problems: tuple[Problem, ...]
    graph: ModuleGraph
    unchecked: tuple[str, ...]


def other_findings(
    reached: ModuleGraph,
    request: tuple[ShardingPlan, MeshSpec],
    passes: Sequence[Pass],
    told: Iterable[HpxError],
    entry: ModuleGraph,
) -> Others:
    """Ask what can be asked of a refused plan.

    Args:
        reached: The graph as the rules see it, as far as the passes before them work.
        request: The plan and the mesh.
        passes: The pipeline.
        told: Why it was refused.
        entry: The graph of the model.
    """
    known = {str(error) for error in told}
    errors: dict[str, HpxError] = {}
    without: set[int] = set()
    for node in (node for error in told for node in error.nodes):
        without |= _computed_with(reached, node)
    sharding = next((one for one in passes if isinstance(one, ShardParams)), ShardParams())
    later = [one for one in passes if isinstance(one, (UpdateHeads, BuildSourceInfo))]
    for _ in range(_ROUNDS):
        trial = _Trial(reached.copy(), Request(*request), entry)
        found = list(trial.set_layouts(sharding, without))
        for pass_ in later:
            found += trial.ask(pass_)
        new = {str(error): error for error in found if str(error) not in known}
        fresh = [error for text, error in new.items() if text not in errors]
        errors |= new
        before = len(without)
        for node in (node for error in fresh for node in error.nodes):
            without |= _computed_with(reached, node)
        if len(without) == before:
            break
    problems = (*trial.problems, *run_checks(trial.graph, *request))
    kept = tuple(p for p in problems if not p.nodes or not without.issuperset(p.nodes))
    return Others(tuple(errors.values()), kept, trial.graph, tuple(_unchecked(reached, without)))


def _computed_with(graph: ModuleGraph, node_id: int) -> set[int]:
    """The tensors of a module, or those that a tensor is computed with: of its block."""
    if node_id not in graph.nodes:
        return set()
    node = graph.nodes[node_id]
    place = node.id
    if isinstance(node, TensorNode):
        owner = graph.module(node.parent)
        around = graph.nodes.get(owner.parent)
        inside = isinstance(around, ModuleNode) and around.parent >= 0
        alone = is_norm(graph, node) or "Embedding" in owner.spec.cls
        place = owner.parent if inside and not alone else owner.id
    return {one.id for one in graph.walk(place) if isinstance(one, TensorNode)}


class _Trial:
    """A copy of the graph on which passes are tried, one after the other."""

    def __init__(self, graph: ModuleGraph, request: Request, entry: ModuleGraph) -> None:
        self.graph = graph
        self.request = request
        self.entry = entry
        self.problems: list[Problem] = []

    def _context(self, pass_: Pass) -> PassContext:
        return PassContext(self.graph, self.request, Provenance(), pass_, entry=self.entry)

    def set_layouts(self, pass_: ShardParams, without: set[int]) -> Iterator[HpxError]:
        """Set what can be set; what cannot be is added to ``without``."""
        ctx = self._context(pass_)
        choice = decide(self.graph, ctx)
        yield from choice.findings
        unclear = {node for error in choice.findings for node in error.nodes}
        possible: Mapping[int, Decision] = {
            node: decision for node, decision in choice.decisions.items() if node not in unclear
        }
        allowed = pass_.uneven == "allow"
        findings = list(cut_problems(self.graph, ctx, possible, uneven_allowed=allowed))
        yield from grouped(ctx, findings)
        for finding in findings:
            without |= _computed_with(self.graph, finding.node)
        for node, decision in possible.items():
            view = ctx.mesh.view_of(decision.layout)
            active = ctx.mesh.size("ep" if view.name == "expert" else "tp", 1) > 1
            if node not in without and active:
                ctx.set(node, "layout", decision.layout, why="a trial")
                ctx.set(node, "mesh", view.name, why="a trial")

    def ask(self, pass_: Pass) -> Sequence[HpxError]:
        """What a pass refuses; what it points out is kept."""
        ctx = self._context(pass_)
        try:
            pass_.run(self.graph, ctx)
        except ManyErrors as error:
            return error.findings
        except HpxError as error:
            return (error,)
        self.problems += ctx.problems
        return ()


def _unchecked(graph: ModuleGraph, without: set[int]) -> Iterator[str]:
    yield _NOT_COMPUTED
    names = fold_names(graph.path(node.id) for node in graph.parameters() if node.id in without)
    if names:
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        shown = ", ".join(names[:_MAX_NAMES])
        yield f"heads and boundaries around what is refused: {shown}{more}"
