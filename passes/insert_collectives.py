"""Pass ``insert-collectives``: what has to happen at the edges of modules whose weights are cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from hpx.check.findings import grouped
from hpx.check.head_counts import unclear_counts
from hpx.errors import ManyErrors
from hpx.facts import COLLECTIVES, LOCALIZED
from hpx.graph import ModuleGraph
from hpx.heads import attentions
from hpx.pipeline import Pass, PassInfo, register
from hpx.pipeline.context import PassContext
from hpx.roles import Role, roles
from hpx.roles.places import relative

__all__ = ["InsertCollectives"]

_INSTALLER: Final = "hpx.runtime.boundaries:install"
_INSTALLERS: Final = {"stream": "hpx.runtime.stream:install"}


@register
@dataclass(frozen=True, kw_only=True)
class InsertCollectives(Pass):
    """Ask for collectives at the boundaries that tensor parallel layouts make.

    1. Attention and mlp regions, and colwise layers that stand alone: the first input (or those
       that the plan declares) is copied in; its gradient is summed over tp.
    2. Rowwise layers: the output is summed over tp; a bias is withheld and added once, after it.
    3. An embedding cut on its rows: each rank looks up its own ids, and the result is summed.
    4. A head, cut on the vocabulary: its logits are gathered.
    5. Integers by which a colwise layer views its outputs (``nf`` of Conv1D) are divided by tp.
    6. What the plan declares under ``boundaries:`` comes before what is found.
    7. Refused: a colwise matrix that no rowwise one takes, a rowwise one without a colwise one, an
       embedding cut on its width (but for one with a column a head, beside cut heads), a bias that
       is not cut as its layer, a whole tensor of which it is not known on which side of a sum it
       stands, a head count of which it is not known whether what it counts is cut.
    8. ``sp=true``, sequence parallelism: between layers a rank holds some positions of the stream.
       The first layer of a list cuts it and the last one gathers it, regions gather what they read,
       and rowwise layers leave each rank its positions of the sum. Norms, biases and other whole
       parameters that a rank reads for its own positions have their gradient summed over tp. A
       module that is not cut and may look at all positions (whole attention, routed experts) is
       computed with all of them, by all ranks alike. Refused: layers in no list, a parameter that
       is shared by layers and something else, a boundary that is a layer itself.
    9. ``loss=parallel``: logits stay in columns, as DTensors, for ``loss_parallel()`` of torch.
    10. Where tp is not active, nothing is attached. What is attached already stays.
    """

    info = PassInfo(
        name="insert-collectives",
        requires={LOCALIZED},
        provides={COLLECTIVES},
        writes={"attach", "attributes", "boundary", "reduce"},
    )

    sp: bool = False
    """Cut the stream between layers on the sequence."""
    loss: Literal["gather", "parallel"] = "gather"
    """Gather the logits, or leave them in columns for a loss that is computed in parts."""

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        """Find every boundary, then attach."""
        if ctx.mesh.size("tp", 1) == 1:
            ctx.note("tp is not active: no boundary needs a collective")
            return
        found = roles(graph, ctx.mesh, ctx.plan, sp=self.sp, loss=self.loss)
        unclear = unclear_counts(graph, ctx.plan, attentions(graph, ctx.mesh))
        findings = grouped(ctx, [*found.findings, *unclear], "boundaries")
        if findings:
            raise ManyErrors.about("boundaries", findings).located(f"pass {ctx.name}")
        if found.whole:
            why = "its module is declared to be no region: each rank has the whole gradient"
            ctx.set(found.whole, "reduce", (), why=why)
        if found.partial:
            why = "beside a cut matrix of its LoRA layer: each rank has a part of the gradient"
            ctx.set(found.partial, "reduce", ("tp",), why=why)
        if found.positions:
            why = "read for the positions that a rank has: each has a part of the gradient"
            ctx.set(found.positions, "reduce", ("tp",), why=why)
        _narrow(graph, ctx, found.widths)
        todo: dict[str, list[Role]] = {}
        for role in found.boundaries:
            here = graph.module(role.module).props.get("boundary")
            if here is None:
                todo.setdefault(role.role, []).append(role)
            else:
                ctx.skip(role.module, key="boundary", why=f"it is a boundary already: {here}")
        if not found.boundaries:
            ctx.note("no parameter is cut on tp in a way that needs a collective")
        for name, group in todo.items():
            why = _WHY[name]
            seq = ctx.set([role.module for role in group], "boundary", name, why=why)
            for role in group:
                options = _options(graph, role)
                installer = _INSTALLERS.get(role.kind, _INSTALLER)
                ctx.attach(role.module, installer, options, why=_reason(role, why), cause=seq)


def _narrow(graph: ModuleGraph, ctx: PassContext, widths: list[tuple[int, str, int]]) -> None:
    """Divide the integers by which colwise layers view their outputs."""
    size = ctx.mesh.size("tp", 1)
    groups: dict[tuple[str, int], list[int]] = {}
    for module, name, value in widths:
        if f"attributes.{name}" not in graph.module(module).props:
            groups.setdefault((name, value), []).append(module)
    for (name, value), modules in groups.items():
        if value % size:
            raise ctx.error(
                f"{name} = {value} cannot be divided by tp",
                node=modules,
                why=f"the layer views its outputs by it, and {value} % {size} = {value % size}",
                fix="replicate the layer, or use a tp that divides it",
            )
        why = f"the layer views its outputs by it: {value} -> {value // size}"
        ctx.set(modules, f"attributes.{name}", value // size, why=why)


_WHY = {
    "attention": "q, k and v are cut on heads: its input is whole, its gradient summed over tp",
    "mlp": "its matrices are cut on channels: its input is whole, its gradient summed over tp",
    "colwise": "its outputs are cut: its input is whole, its gradient summed over tp",
    "rowwise": "its inputs are cut: each rank has a part of the sum, summed over tp",
    "embedding": "its rows are cut: ids of other ranks give zeros, summed over tp",
    "lm_head": "its rows are cut: logits are gathered over tp",
    "stream": "its layers have a part of the sequence each: cut at the first, gathered at the last",
    "whole": "it may look at all positions: each rank computes it with all of them",
    "declared": "declared in the plan",
}


def _options(graph: ModuleGraph, role: Role) -> dict[str, object]:
    if role.kind == "stream":
        return {
            "axis": "tp",
            "name": graph.path(role.module),
            "layers": [relative(graph, layer, role.module) for layer in role.layers],
            "regions": [relative(graph, region, role.module) for region in role.regions],
        }
    made: dict[str, object] = {
        "kind": role.kind,
        "axis": "tp",
        "name": graph.path(role.module) or "the model",
        "inputs": role.inputs,
        "output": role.output,
        "size": role.size,
        "bias": role.bias,
        "rowwise": list(role.rowwise),
        "colwise": list(role.colwise),
    }
    if role.sequence:
        made["sequence"] = True
    return made


def _reason(role: Role, why: str) -> str:
    parts = [why]
    if role.output == "columns":
        parts[0] = "its rows are cut: logits stay in columns, for a loss that is computed in parts"
    if role.sequence:
        at = "gathered from" if role.kind == "region" else "given to"
        parts.append(f"in a stream that is cut on the sequence: {at} the positions of all ranks")
    if role.bias is not None:
        parts.append("its bias is added once, after the sum")
    if role.declared is not None and role.role != "declared":
        parts.append(f"changed by {role.declared.where}")
    return "; ".join(parts)
