"""Add up what each group of a folded graph stands for, by walking every tensor once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from hpx.graph.fold import FoldedGraph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.render.placing import Placer, Placing
from hpx.render.subject import Decision
from hpx.render.tied import TieNames, below_shared, tie_names
from hpx.render.viewmodel import Totals

__all__ = ["GroupSum", "Sums", "add_up", "ranked"]


@dataclass(slots=True)
class GroupSum:
    """What one group stands for, itself and below.

    Attributes:
        tensors: Parameters, buffers, plain tensors and further names; 0 means nothing to draw.
        parameters: Parameters alone.
        bytes: Bytes of the parameters.
        tokens: These bytes by token.
        placings: The different placings of the group's own tensors.
        passes: The passes that decided them.
        marked: Whether any of its own tensors is among those that stand out.
        warned: The same for warnings.
    """

    tensors: int = 0
    parameters: int = 0
    bytes: int = 0
    tokens: Counter[str] = field(default_factory=Counter)
    placings: list[Placing] = field(default_factory=list)
    passes: list[str] = field(default_factory=list)
    marked: bool = False
    warned: bool = False


@dataclass(frozen=True)
class Sums:
    """The sums of all groups, and of the whole."""

    groups: list[GroupSum]
    totals: Totals
    tokens: tuple[tuple[str, int], ...]
    passes: tuple[tuple[str, int], ...]
    dtypes: tuple[tuple[str, int], ...]
    ties: TieNames


def add_up(
    folded: FoldedGraph,
    placer: Placer,
    decisions: Mapping[int, Decision],
    *,
    marked: Collection[int] = (),
    warned: Collection[int] = (),
    removed: Collection[int] = (),
    original_parameters: int | None = None,
    with_mesh: bool = False,
) -> Sums:
    """Sum over every tensor of the graph, so that a group's numbers are exact however it folds.

    Args:
        folded: The groups.
        placer: Works out what a rank holds.
        decisions: Who decided the layouts.
        marked: Ids that stand out.
        warned: Ids that a warning names.
        removed: Ids of what is drawn though it is gone; it counts in no sum.
        original_parameters: How many parameters the model came with.
        with_mesh: Whether bytes per rank can be told.
    """
    owner = folded.owner_of()
    sums = [GroupSum() for _ in folded.groups]
    tokens: Counter[str] = Counter()
    passes: Counter[str] = Counter()
    dtypes: Counter[str] = Counter()
    elements = local_bytes = tied = others = 0
    any_layout = False
    shared = below_shared(folded.graph)
    nodes, keys = folded.graph.nodes, folded.keys
    # Nearly all are equal to one before in all that is added up: those are counted first.
    alike: dict[tuple[object, ...], list[TensorNode]] = {}
    for node_id, index in owner.items():
        node = nodes[node_id]
        if isinstance(node, ModuleNode):
            continue
        sums[index].tensors += 1
        if node_id in removed:
            continue
        if node.kind != "parameter":
            others += 1
            continue
        decision = decisions.get(node_id)
        placed = (node.layout, node.mesh, node.spec.placed)
        key = (index, keys[node_id], placed, decision and decision.pass_)
        alike.setdefault(key, []).append(node)
        tied += bool(node.more) or node.parent in shared
    for same in alike.values():
        node, count = same[0], len(same)
        placing, decision = placer.of(node), decisions.get(node.id)
        _add_parameters(sums[owner[node.id]], node, count, placing, decision)
        tokens[placing.token] += count
        any_layout = any_layout or placing.decided
        if decision is not None:
            passes[decision.pass_] += count
        dtypes[node.spec.dtype] += count
        elements += node.spec.num_elements * count
        local_bytes += placing.local_bytes * count
    for node_id in marked:
        if node_id in owner:
            sums[owner[node_id]].marked = True
    for node_id in warned:
        if node_id in owner:
            sums[owner[node_id]].warned = True
    _carry_up(folded, sums)
    totals = Totals(
        parameters=tokens.total(),
        original_parameters=original_parameters,
        elements=elements,
        bytes=sums[0].bytes,
        local_bytes=local_bytes if with_mesh and any_layout else None,
        tied=tied,
        buffers=others,
    )
    return Sums(
        sums,
        totals,
        ranked(tokens) if any_layout else (),
        ranked(passes),
        ranked(dtypes),
        tie_names(folded, owner),
    )


def _add_parameters(
    here: GroupSum, node: TensorNode, count: int, placing: Placing, decision: Decision | None
) -> None:
    size = node.spec.num_bytes * count
    here.parameters += count
    here.bytes += size
    here.tokens[placing.token] += size
    if not any(placing is known for known in here.placings):
        here.placings.append(placing)
    if decision is not None and decision.pass_ not in here.passes:
        here.passes.append(decision.pass_)


def _carry_up(folded: FoldedGraph, sums: list[GroupSum]) -> None:
    for group in reversed(folded.groups):
        if group.link and any(isinstance(n, TensorNode) for n in folded.graph.walk(group.node)):
            sums[group.index].tensors += 1  # a shared module without tensors is not drawn
        if group.parent >= 0:
            above, here = sums[group.parent], sums[group.index]
            above.tensors += here.tensors
            above.parameters += here.parameters
            above.bytes += here.bytes
            above.tokens.update(here.tokens)


def ranked(counter: Counter[str]) -> tuple[tuple[str, int], ...]:
    """Words with their counts, most first, and by name where they are equal."""
    return tuple(sorted(counter.items(), key=lambda pair: (-pair[1], pair[0])))
