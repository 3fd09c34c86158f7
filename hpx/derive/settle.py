"""Hold choices against the checks of the passes, and leave whole what they refuse.

The passes stay the judges: whatever `hpx.check` and `hpx.roles` learn to refuse, a derived plan
replicates, with their reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from hpx.check.cuts import cut_problems
from hpx.check.findings import Finding
from hpx.check.head_counts import head_problems
from hpx.check.per_head import per_head_modules, wide_norms
from hpx.derive.decide import Decider
from hpx.derive.sharing import whole_with_others
from hpx.derive.types import Block, Choice
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import TensorNode
from hpx.heads import attentions
from hpx.packing import packing_of, patterns_of
from hpx.pipeline.context import PassContext
from hpx.pipeline.info import Pass, PassInfo
from hpx.pipeline.request import Request
from hpx.plan import ShardingPlan
from hpx.provenance import Provenance
from hpx.roles import roles
from hpx.sharding import Decision

__all__ = ["leave_whole", "settle"]

_MOST_ROUNDS: Final = 50


@dataclass(frozen=True, kw_only=True)
class _Trial(Pass):
    """Sets orders and layouts on a copy of the graph."""

    info = PassInfo(name="derive-trial", writes={"layout", "order"})

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        """Nothing: `settle` calls the checks itself."""


def settle(decider: Decider, plan: ShardingPlan) -> None:
    """Change choices until no check refuses any."""
    if decider.tp == 1 and not decider.mesh.has("ep"):
        return
    for _ in range(_MOST_ROUNDS):
        findings = list(_findings(decider, plan))
        if not [finding for finding in findings if _demote(decider, finding)]:
            return
        for block, why in list(whole_with_others(decider.graph, decider.found)):
            decider.demote(block, why)


def leave_whole(decider: Decider, modules: Mapping[str, str]) -> None:
    """Leave whole what stands in modules, or is cut together with it, each for its reason."""
    graph = decider.graph
    for path, why in modules.items():
        module = graph.find(path)
        for node in graph.parameters(module) if module is not None else ():
            block = decider.blocks.get(node.id)
            if block is not None and block.obstacle is None:
                decider.demote(block, why)
            choice = decider.choices[node.id]
            if block is None and choice.layout.dim("tp") is not None:
                decider.choices[node.id] = Choice.whole(why, choice.heading, choice.origin)


def _demote(decider: Decider, finding: Finding) -> bool:
    """Leave whole what a finding is about; whether anything changed."""
    why = finding.what if finding.why is None else f"{finding.what}: {finding.why}"
    blocks = list(_blocks_at(decider, finding.node))
    for block in blocks:
        told = decider.blocks.get(finding.node) is block or finding.node == block.owner
        decider.demote(block, why if told else f"{_inside(decider, finding.node, block)}: {why}")
    if blocks:
        return True
    choice = decider.choices.get(finding.node)
    if choice is None or not choice.layout.shards:
        return False
    decider.choices[finding.node] = Choice.whole(why, choice.heading, choice.origin)
    name = decider.graph.path(finding.node)
    for node in _layer_of(decider.graph, finding.node):
        other = decider.choices[node]
        if node not in decider.blocks and other.layout.shards:
            together = f"whole with {name}: {why}"
            decider.choices[node] = Choice.whole(together, other.heading, other.origin)
    return True


def _inside(decider: Decider, node_id: int, block: Block) -> str:
    """The name of a node as a block's module has it."""
    owner = decider.graph.path(block.owner)
    return decider.graph.path(node_id).removeprefix(f"{owner}." if owner else "")


def _layer_of(graph: ModuleGraph, node_id: int) -> Iterator[int]:
    """The parameters beside one: a bias goes with its weight."""
    node = graph.nodes[node_id]
    for place in (node.parent, *(parent for parent, _ in node.more)):
        for child in graph.children(place):
            if isinstance(child, TensorNode) and child.kind == "parameter" and child.id != node_id:
                yield child.id


def _blocks_at(decider: Decider, node_id: int) -> Iterator[Block]:
    """Cut blocks that a node belongs to, stands in, or is."""
    own = decider.blocks.get(node_id)
    if own is not None and own.obstacle is None:
        yield own
        return
    cut = [block for block in decider.found if block.obstacle is None]
    inside = [block for block in cut if block.owner == node_id]
    if not inside:
        above = set(_above(decider.graph, node_id))
        inside = [block for block in cut if block.owner in above]
    yield from inside


def _above(graph: ModuleGraph, node_id: int) -> Iterator[int]:
    while (node_id := graph.nodes[node_id].parent) >= 0:
        yield node_id


def _findings(decider: Decider, plan: ShardingPlan) -> Iterator[Finding]:
    graph, mesh = decider.graph.copy(), decider.mesh
    request = Request(plan, mesh)
    ctx = PassContext(
        graph, request, Provenance(), _Trial(), step=1, name="derive", entry=decider.graph
    )
    decisions: dict[int, Decision] = {}
    groups: dict[Choice, list[int]] = {}
    packed = patterns_of(plan)
    for node in graph.parameters():
        choice = decider.choices[node.id]
        layout = choice.layout.resolve(mesh, len(node.shape))
        decisions[node.id] = Decision(layout, choice.reason, None)
        groups.setdefault(choice, []).append(node.id)
        packing = packing_of(graph, node, packed, layout, mesh)
        if packing is not None and packing.order is not None:
            ctx.set(node.id, "order", packing.order, why="a trial of pack-fused")
    yield from cut_problems(graph, ctx, decisions, uneven_allowed=False)
    for nodes in groups.values():
        ctx.set(nodes, "layout", decisions[nodes[0]].layout, why="a trial")
    if decider.tp == 1:
        return
    found = attentions(graph, mesh)
    for attention in found:
        yield from head_problems(ctx, attention, decider.tp)
        yield from wide_norms(graph, attention)
        yield from per_head_modules(graph, attention)
    if graph.has_structure:  # from names alone nothing runs, and an embedding looks like a layer
        yield from roles(graph, mesh, plan).findings
