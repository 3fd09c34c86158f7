"""What stands against stacking the experts of a container, by name; nothing is ever dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from hpx.check.module_fields import MODULE_FIELDS
from hpx.check.quantised import KNOWN_CLASSES
from hpx.errors import HpxError
from hpx.experts import ExpertContainer, expert_parameters, stacked_name
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, ModuleSpec, TensorNode, TensorSpec
from hpx.ranges import number_text

if TYPE_CHECKING:
    from hpx.pipeline.context import PassContext

__all__ = ["container_problems"]

_Form: TypeAlias = dict[str, ModuleSpec | TensorSpec]

_APART: Final = (
    "leave the container out of the plan's experts: (experts: [] leaves all of them apart)"
)
_FIX: Final = f"remove it, or {_APART}"
_FIELDS: Final = ("shape", "dtype", "requires_grad", "device", "cls", "attributes", "placed")
"""What experts have to agree in; strides are not among them, values are what counts."""


def container_problems(
    graph: ModuleGraph, ctx: PassContext, container: ExpertContainer
) -> list[HpxError]:
    """Everything that forbids stacking one container; empty if nothing does."""
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
        for error in _in_expert(graph, ctx, index, child)
    ]
    if not alike and not findings:
        findings = list(_differences(graph, ctx, container))
    return findings or list(_names(graph, ctx, container))


def _bad_indices(ctx: PassContext, node: int, indices: list[int]) -> HpxError:
    missing = sorted(set(range(max(indices) + 1)) - set(indices))
    twice = [index for index, count in Counter(indices).items() if count > 1]
    wrong = [f"missing: {number_text(missing)}"] if missing else []
    wrong += [f"twice: {number_text(twice)}"] if twice else []
    return ctx.error(
        f"its {len(indices)} experts are not numbered 0..{len(indices) - 1}",
        node=node,
        why="; ".join(wrong),
        fix=f"number them without gaps, or {_APART}",
    )


def _in_expert(graph: ModuleGraph, ctx: PassContext, index: int, expert: int) -> Iterator[HpxError]:
    """Refuse by name what stacking would lose."""
    for node in graph.walk(expert):
        what = _module_text(node) if isinstance(node, ModuleNode) else _tensor_text(node)
        if what is not None:
            yield ctx.error(f"expert {index} {what}", node=node.id, fix=_FIX)
        if node.more:
            names = ", ".join(graph.paths(node.id))
            what = f"expert {index} shares a {node.kind}"
            yield ctx.error(what, node=node.id, why=f"names: {names}", fix=_FIX)
        if isinstance(node, ModuleNode):
            for name, child in node.children.items():
                first = graph.nodes[child]
                if (first.parent, first.name) != (node.id, name):
                    what = f"expert {index} shares '{name}' with {graph.path(child)}"
                    yield ctx.error(what, node=node.id, fix=_FIX)


def _module_text(node: ModuleNode) -> str | None:
    if node.spec.parametrized:
        return f"is parametrised ({', '.join(node.spec.parametrized)})"
    if node.spec.wrapper is not None:
        return f"is wrapped by {node.spec.short_cls or 'a wrapper'}"
    return f"has hooks ({', '.join(node.spec.hooks)})" if node.spec.hooks else None


def _tensor_text(node: TensorNode) -> str | None:
    if node.kind != "parameter":
        return f"has a {'buffer' if node.kind == 'buffer' else 'tensor attribute'}"
    if node.spec.placed is not None:
        axes = ", ".join(f"{axis}:{text}" for axis, _, text in node.spec.placed)
        return f"has a DTensor already ({axes})"
    if node.spec.cls not in KNOWN_CLASSES:
        return f"has a tensor of type {node.spec.cls.rsplit('.', 1)[-1]}"
    return None


def _differences(
    graph: ModuleGraph, ctx: PassContext, container: ExpertContainer
) -> Iterator[HpxError]:
    """Name the experts that differ from the majority, and in what."""
    forms = {index: _form(graph, child) for index, _, child in container.experts}
    usual = Counter(map(str, forms.values())).most_common(1)[0][0]
    common = next(form for form in forms.values() if str(form) == usual)
    groups: dict[str, list[int]] = {}
    for index, form in forms.items():
        text = _how_it_differs(common, form)
        if text:
            groups.setdefault(text, []).append(index)
    for text, indices in groups.items():
        yield ctx.error(
            f"expert {number_text(indices)} of {len(forms)} differs from the others",
            node=container.id,
            why=text,
            fix=f"make them equal, or {_APART}",
        )


def _form(graph: ModuleGraph, expert: int) -> _Form:
    above = graph.path(expert)
    return {
        graph.path(node.id).removeprefix(above).lstrip("."): node.spec
        for node in graph.walk(expert)
    }


def _how_it_differs(common: _Form, form: _Form) -> str:
    lost = [name for name in common if name not in form]
    extra = [name for name in form if name not in common]
    parts = [f"it lacks {', '.join(lost)}"] if lost else []
    parts += [f"it also has {', '.join(extra)}"] if extra else []
    if not parts:
        parts = [t for name, mine in form.items() for t in _spec_texts(name, mine, common[name])]
    return "; ".join(parts)


def _spec_texts(
    name: str, mine: ModuleSpec | TensorSpec, other: ModuleSpec | TensorSpec
) -> Iterator[str]:
    if isinstance(mine, TensorSpec) and isinstance(other, TensorSpec):
        for field in _FIELDS:
            a, b = getattr(mine, field), getattr(other, field)
            if a != b:
                yield f"{name} has {field} {a}, not {b}"
    elif isinstance(mine, ModuleSpec) and isinstance(other, ModuleSpec):
        where = f"{name}." if name else ""
        if mine.cls != other.cls:
            yield f"{name or 'it'} is a {mine.short_cls}, not a {other.short_cls}"
        integers = dict(other.attributes)
        for key, value in mine.attributes:
            if integers.get(key) != value:
                yield f"{where}{key} is {value}, not {integers.get(key)}"
    else:
        yield f"{name} is a tensor in one and a module in the other"


def _names(graph: ModuleGraph, ctx: PassContext, container: ExpertContainer) -> Iterator[HpxError]:
    """Names that the stacked parameters cannot have."""
    owner = graph.module(container.id)
    taken = set(owner.children) - {name for _, name, _ in container.experts}
    taken |= set(owner.attributes)
    for inner in expert_parameters(graph, container.experts[0][2]):
        name = stacked_name(inner)
        why = None
        if name in taken:
            why = f"'{name}' exists there already"
        elif name in MODULE_FIELDS:
            why = f"'{name}' names a field of every module"
        elif name.isdigit():
            why = f"'{name}' would be taken for an expert's number"
        if why is not None:
            yield ctx.error(
                f"cannot stack '{inner}' as '{name}'",
                node=container.id,
                why=why,
                fix=f"rename the module inside the experts, or {_APART}",
            )
        taken.add(name)
