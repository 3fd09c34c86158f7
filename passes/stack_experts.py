"""Pass ``stack-experts``: one ``[E, ...]`` parameter for each parameter path inside the experts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hpx.errors import HpxError, ManyErrors
from hpx.experts import ExpertContainer, expert_containers, unmatched_expert_patterns
from hpx.facts import EXPERTS_STACKED, TIED
from hpx.graph import ModuleGraph, ModuleNode, TensorNode, TensorSpec
from hpx.lineage import Source, Stack
from hpx.pipeline import Pass, PassInfo, register
from hpx.pipeline.context import PassContext
from hpx.ranges import number_text

__all__ = ["StackExperts"]

# A parameter of one of these names would hide a method or field of nn.Module on its container.
_TAKEN: Final = frozenset(
    [
        "T_destination",
        "add_module",
        "apply",
        "bfloat16",
        "buffers",
        "call_super_init",
        "children",
        "compile",
        "cpu",
        "cuda",
        "double",
        "dump_patches",
        "eval",
        "extra_repr",
        "float",
        "forward",
        "get_buffer",
        "get_extra_state",
        "get_parameter",
        "get_submodule",
        "half",
        "ipu",
        "load_state_dict",
        "modules",
        "mtia",
        "named_buffers",
        "named_children",
        "named_modules",
        "named_parameters",
        "parameters",
        "register_backward_hook",
        "register_buffer",
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
        "register_load_state_dict_post_hook",
        "register_load_state_dict_pre_hook",
        "register_module",
        "register_parameter",
        "register_state_dict_post_hook",
        "register_state_dict_pre_hook",
        "requires_grad_",
        "set_extra_state",
        "set_submodule",
        "share_memory",
        "state_dict",
        "to",
        "to_empty",
        "train",
        "training",
        "type",
        "xpu",
        "zero_grad",
        "append",
        "extend",
        "insert",
        "pop",
        "clear",
        "items",
        "keys",
        "values",
        "update",
    ]
)


@register
@dataclass(frozen=True, kw_only=True)
class StackExperts(Pass):
    """Stack the experts of each container on a new first dim, slot i holding expert i.

    1. Containers are those under ``experts:`` in the plan, else found by name or structure.
    2. Indices must be exactly ``0..E-1`` and are taken as numbers, so 2 comes before 10.
    3. The stacked name is the inner path without a final ``.weight``, dots as ``_``; a name that
       exists, or that would hide a field of the container, is refused.
    4. Experts must agree in parameter names, shapes, dtypes and requires_grad; refused by name.
    5. Buffers, tensor attributes, shared tensors and hooks inside experts are refused by name.
    6. What else stands in the container stays there. Stacked containers are left as they are.
    7. Patterns under ``experts:`` that name no container are an error, unless ``optional``.
    """

    info = PassInfo(
        name="stack-experts",
        requires={TIED},
        provides={EXPERTS_STACKED},
        writes={"structure"},
    )

    optional: bool = False
    """Whether a model without the experts that the plan names is fine."""

    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        """Stack every container of the graph."""
        if not self.optional:
            self._refuse_unmatched(graph, ctx)
        containers = expert_containers(graph, ctx.plan)
        todo = [container for container in containers if not container.stacked]
        done = [container.id for container in containers if container.stacked]
        if done:
            ctx.skip(done, why="its parameters are stacked already")
        if not containers:
            ctx.note("the model has no expert containers: nothing to stack")
        findings = [error for container in todo for error in _check(graph, ctx, container)]
        if findings:
            raise ManyErrors(
                f"{len(findings)} problem(s) with experts; nothing was changed", findings
            ).located(f"pass {ctx.name}")
        for container in todo:
            _stack(graph, ctx, container)

    def _refuse_unmatched(self, graph: ModuleGraph, ctx: PassContext) -> None:
        missing = unmatched_expert_patterns(graph, ctx.plan)
        if missing:
            raise ctx.error(
                f"no experts at {', '.join(repr(pattern) for pattern in missing)}",
                why="a container has numbered modules 0..E-1, or stacked 3-D parameters",
                fix="correct the plan's experts:, or use stack-experts{optional=true}",
            )


def _stack(graph: ModuleGraph, ctx: PassContext, container: ExpertContainer) -> None:
    count = len(container.experts)
    stacked: list[int] = []
    columns = [_parameters(graph, child) for _, _, child in container.experts]
    for inner in columns[0]:
        parts = tuple([Source(column[inner].id) for column in columns])
        why = f"{count} experts, found by {container.found_by}; slot i is expert i"
        stacked.append(ctx.derive(container.id, stacked_name(inner), Stack(parts), why=why))
    gone = [node.id for _, _, child in container.experts for node in graph.walk(child)]
    names = ", ".join(graph.nodes[node_id].name for node_id in stacked)
    ctx.remove(gone, why=f"stacked into {names}")


def stacked_name(inner: str) -> str:
    """The name of the stacked parameter for a path inside an expert.

    >>> stacked_name("gate_proj.weight"), stacked_name("gate_proj.bias"), stacked_name("weight")
    ('gate_proj', 'gate_proj_bias', 'weight')
    """
    return inner.removesuffix(".weight").replace(".", "_")


def _parameters(graph: ModuleGraph, expert: int) -> dict[str, TensorNode]:
    """The parameters of one expert by inner path, in order."""
    return dict(_inside(graph, expert, ""))


def _inside(graph: ModuleGraph, module_id: int, prefix: str) -> Iterator[tuple[str, TensorNode]]:
    for name, child_id in graph.module(module_id).children.items():
        child = graph.nodes[child_id]
        if isinstance(child, TensorNode):
            yield prefix + name, child
        else:
            yield from _inside(graph, child_id, f"{prefix}{name}.")


# -- refusals ----------------------------------------------------------------------------------


def _check(graph: ModuleGraph, ctx: PassContext, container: ExpertContainer) -> list[HpxError]:
    indices = [index for index, _, _ in container.experts]
    if indices != list(range(len(indices))):
        return [_bad_indices(ctx, container.id, indices)]
    signatures = {graph.module(child).signature for _, _, child in container.experts}
    experts = container.experts
    # Equal signatures are equal experts: one look is enough for all of them.
    alike = len(signatures) == 1 and 0 not in signatures
    findings = [
        error
        for index, _, child in (experts[:1] if alike else experts)
        for error in _check_expert(graph, ctx, index, child)
    ]
    if not alike and not findings:
        findings = list(_differences(graph, ctx, container))
    return findings or list(_collisions(graph, ctx, container))


def _bad_indices(ctx: PassContext, node: int, indices: list[int]) -> HpxError:
    missing = sorted(set(range(max(indices) + 1)) - set(indices))
    twice = [index for index, count in Counter(indices).items() if count > 1]
    wrong = [f"missing: {number_text(missing)}"] if missing else []
    wrong += [f"twice: {number_text(twice)}"] if twice else []
    return ctx.error(
        f"its {len(indices)} experts are not numbered 0..{len(indices) - 1}",
        node=node,
        why="; ".join(wrong) or f"found: {number_text(indices)}",
        fix="number them without gaps, or leave the container out of the plan's experts:",
    )


def _check_expert(
    graph: ModuleGraph, ctx: PassContext, index: int, expert: int
) -> Iterator[HpxError]:
    """Refuse by name what stacking would lose."""
    fix = "remove it, or leave the container out of the plan's experts:"
    for node in graph.walk(expert):
        if isinstance(node, ModuleNode):
            if node.spec.hooks:
                hooks = ", ".join(node.spec.hooks)
                yield ctx.error(f"expert {index} has hooks ({hooks})", node=node.id, fix=fix)
            if node.spec.parametrized:
                yield ctx.error(f"expert {index} is parametrised", node=node.id, fix=fix)
        elif node.kind != "parameter":
            kind = "buffer" if node.kind == "buffer" else "tensor attribute"
            yield ctx.error(f"expert {index} has a {kind}", node=node.id, fix=fix)
        if node.more:
            names = ", ".join(graph.paths(node.id))
            yield ctx.error(
                f"expert {index} shares a {node.kind}", node=node.id, why=f"names: {names}", fix=fix
            )
        if isinstance(node, ModuleNode):
            for name, child in node.children.items():
                first = graph.nodes[child]
                if (first.parent, first.name) != (node.id, name):
                    yield ctx.error(
                        f"expert {index} shares '{name}' with {graph.path(child)}",
                        node=node.id,
                        fix=fix,
                    )


def _differences(
    graph: ModuleGraph, ctx: PassContext, container: ExpertContainer
) -> Iterator[HpxError]:
    """Name the experts that differ from the majority, and in what."""
    forms = {index: _form(graph, child) for index, _, child in container.experts}
    usual = Counter(map(str, forms.values())).most_common(1)[0][0]
    common = next(form for form in forms.values() if str(form) == usual)
    odd = {index: form for index, form in forms.items() if str(form) != usual}
    groups: dict[str, list[int]] = {}
    for index, form in odd.items():
        groups.setdefault(_how_it_differs(common, form), []).append(index)
    for text, indices in groups.items():
        yield ctx.error(
            f"expert {number_text(indices)} of {len(forms)} differs from the others",
            node=container.id,
            why=text,
            fix="make them equal, or leave the container out of the plan's experts:",
        )


def _form(graph: ModuleGraph, expert: int) -> dict[str, TensorSpec | tuple[object, ...]]:
    form: dict[str, TensorSpec | tuple[object, ...]] = {}
    for node in graph.walk(expert):
        inner = graph.path(node.id).removeprefix(graph.path(expert)).lstrip(".")
        if isinstance(node, ModuleNode):
            form[inner or "(itself)"] = (node.spec.cls, node.spec.attributes)
        else:
            form[inner] = node.spec
    return form


def _how_it_differs(
    common: dict[str, TensorSpec | tuple[object, ...]],
    form: dict[str, TensorSpec | tuple[object, ...]],
) -> str:
    lost = [name for name in common if name not in form]
    extra = [name for name in form if name not in common]
    if lost or extra:
        parts = [f"it lacks {', '.join(lost)}"] if lost else []
        parts += [f"it also has {', '.join(extra)}"] if extra else []
        return "; ".join(parts)
    texts = []
    for name, mine in form.items():
        other = common[name]
        if mine == other:
            continue
        if isinstance(mine, TensorSpec) and isinstance(other, TensorSpec):
            fields = [f for f in TensorSpec._fields if getattr(mine, f) != getattr(other, f)]
            texts += [f"{name} {f} {getattr(mine, f)}, not {getattr(other, f)}" for f in fields]
        else:
            texts.append(f"{name} is {mine}, not {other}")
    return "; ".join(texts)


def _collisions(
    graph: ModuleGraph, ctx: PassContext, container: ExpertContainer
) -> Iterator[HpxError]:
    taken = set(graph.module(container.id).children) - {name for _, name, _ in container.experts}
    for inner in _parameters(graph, container.experts[0][2]):
        name = stacked_name(inner)
        if name in taken or name in _TAKEN or name.isdigit():
            kind = "exists there already" if name in taken else "names a field of every module"
            yield ctx.error(
                f"cannot stack '{inner}' as '{name}'",
                node=container.id,
                why=f"'{name}' {kind}",
                fix="rename the module inside the experts, or leave the container out of experts:",
            )
        taken.add(name)
