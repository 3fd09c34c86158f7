"""Derive a sharding plan from a model and a mesh: `hpx.plan`.

1. Ties are made and experts stacked first, as the pipeline does before it matches a rule.
2. Each parameter gets a choice with a reason, from the model's own plan, structure and names.
3. What a check of the passes refuses is left whole, with its reason.
4. Where there is code, what the shape proof refuses is left whole too (`hpx.derive.proved`).
5. Choices become few rules, grouped as a person would write them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hpx._given import as_mesh
from hpx.derive.decide import Decider
from hpx.derive.fused import inputs_of
from hpx.derive.patterns import Line, lines_of
from hpx.derive.settle import leave_whole, settle
from hpx.derive.types import Choice, said_by
from hpx.errors import HpxError, ManyErrors
from hpx.graph.graph import ModuleGraph
from hpx.mesh import MeshSpec
from hpx.pipeline.manager import PassManager
from hpx.pipeline.request import Request
from hpx.pipeline.textform import as_passes
from hpx.plan import MatchResult, Packed, Rule, ShardingPlan, Tied, match_parameters
from hpx.plan.boundary import Boundary, Edge
from hpx.plan.rules import Source

if TYPE_CHECKING:
    import torch

__all__ = ["as_rules_see_it", "derive_plan", "packed_facts", "plan", "rules_of", "tied_pairs"]


def plan(model: ModuleGraph | torch.nn.Module | str | Path, mesh: MeshSpec | str) -> ShardingPlan:
    """Derive a plan: the layout of every parameter, with a reason for each rule.

    Args:
        model: A graph, a module, or what ``hpx plan MODEL`` takes.
        mesh: A mesh, or its text such as ``dp=4,tp=8,ep=16``.

    Returns:
        An ordinary plan for this mesh; ``.to_yaml()`` writes it to edit.

    Raises:
        HpxError: The model cannot be read, or the mesh is malformed.
    """
    from hpx.derive.proved import proved_plan

    spec = as_mesh(mesh)
    if isinstance(model, (str, Path)):
        from hpx.prove import open_with_model

        graph, module, inputs = open_with_model(str(model))
        return proved_plan(graph, spec, module, inputs)
    if isinstance(model, ModuleGraph):
        return derive_plan(model, spec)
    return proved_plan(ModuleGraph.from_module(model), spec, model)


def derive_plan(
    graph: ModuleGraph, mesh: MeshSpec, whole: Mapping[str, str] | None = None
) -> ShardingPlan:
    """Derive a plan from a graph; the graph stays as it is.

    Args:
        graph: The graph.
        mesh: The mesh.
        whole: Modules that stay whole, each with the reason.
    """
    seen, unstacked = as_rules_see_it(graph, mesh)
    base = ShardingPlan(experts=None if unstacked is None else [])
    decider = Decider(seen, mesh, base, unstacked)
    packed = packed_facts(seen, decider)
    edges = _boundaries(seen, decider)
    trial = ShardingPlan(experts=base.experts, packed=packed, boundaries=edges)
    settle(decider, trial)
    if whole:
        leave_whole(decider, whole)
        settle(decider, trial)
    names = {seen.path(node.id): node.id for node in seen.parameters()}
    choices = {name: decider.choices[node] for name, node in names.items()}
    return ShardingPlan(
        rules_of(seen, choices),
        mesh=mesh,
        experts=base.experts,
        packed=packed,
        tied=tied_pairs(seen),
        boundaries=_boundaries(seen, decider),
    )


def as_rules_see_it(graph: ModuleGraph, mesh: MeshSpec) -> tuple[ModuleGraph, str | None]:
    """The graph with its ties made and its experts stacked, or why they cannot be."""
    asked = ShardingPlan()
    try:
        passes = as_passes("tie-weights, stack-experts")
        return PassManager(passes).run(graph, Request(asked, mesh)).graph, None
    except HpxError as error:
        first = error.findings[0] if isinstance(error, ManyErrors) else error
        why = first.what if first.why is None else f"{first.what}, {first.why}"
    none = ShardingPlan(experts=())
    return PassManager(as_passes("tie-weights")).run(graph, Request(none, mesh)).graph, why


def rules_of(graph: ModuleGraph, choices: Mapping[str, Choice]) -> list[Rule]:
    """Few rules for all choices; a name that another's pattern would take has a rule before it."""
    lines = lines_of(choices)
    result = match_parameters(graph, [_rule(*entry) for entry in enumerate(lines)])
    if result.conflicts:
        lines = lines_of(_renamed(graph, choices, result))
        result = match_parameters(graph, [_rule(*entry) for entry in enumerate(lines)])
    first: list[Line] = []
    for node_id in result.winner:
        rule = result.rule(node_id)
        name = graph.path(node_id)
        if rule is None or lines[rule.index].choice != choices[name]:
            first.append(Line(name, choices[name]))
    return [_rule(*entry) for entry in enumerate([*first, *lines])]


def _renamed(
    graph: ModuleGraph, choices: Mapping[str, Choice], result: MatchResult
) -> dict[str, Choice]:
    """The choices, with what patterns take under two names (a layer of a list) under the list's."""
    names = {}
    for node_id in result.conflicts:
        known = [name for name, _ in result.winner[node_id]]
        numbered = [n for n in known if any(part.isdigit() for part in n.split("."))]
        names[graph.path(node_id)] = next(iter(numbered), known[0])
    return {names.get(name, name): choice for name, choice in choices.items()}


def _rule(index: int, line: Line) -> Rule:
    choice = line.choice
    reason = f"{choice.reason} ({said_by(choice.origin)})"
    source: Source = "user" if choice.origin == "given" else choice.origin
    return Rule(index, line.pattern, choice.layout, source, reason=reason, heading=choice.heading)


def packed_facts(graph: ModuleGraph, decider: Decider) -> list[Packed]:
    """What the code of fused layers fixes, by pattern."""
    facts: dict[str, tuple[int, int, tuple[tuple[str, int], ...]]] = {}
    choices: dict[str, Choice] = {}
    for block in decider.found:
        for fact in block.packed:
            name = graph.path(fact.layer.weight)
            facts[name] = (fact.layer.out_dim, fact.repeat, fact.parts)
            text = f"{facts[name]}"
            choices[name] = Choice.whole(text, "packed")
    by_text = {choices[name].reason: value for name, value in facts.items()}
    return [Packed(line.pattern, *by_text[line.choice.reason]) for line in lines_of(choices)]


def _boundaries(graph: ModuleGraph, decider: Decider) -> list[Boundary]:
    """What enters blocks that are cut and have several inputs, where their class fixes it."""
    known: dict[str, tuple[tuple[str, Edge], ...]] = {}
    choices: dict[str, Choice] = {}
    for block in decider.found:
        inputs = inputs_of(graph.module(block.owner))
        if inputs is not None:  # blocks that are whole are there to keep patterns off them
            said = str(dict(inputs)) if block.obstacle is None else ""
            known[said] = tuple(inputs.items())
            choices[graph.path(block.owner)] = Choice.whole(said, "boundaries")
    return [
        Boundary(line.pattern, inputs=known[line.choice.reason])
        for line in lines_of(choices)
        if line.choice.reason
    ]


def tied_pairs(graph: ModuleGraph) -> list[Tied]:
    """The pairs that hold one parameter, each further name with the first."""
    pairs: list[Tied] = []
    for node in graph.parameters():
        first = graph.path(node.id)
        pairs += [Tied(first, graph.edge_path(parent, name)) for parent, name in node.more]
    return pairs
