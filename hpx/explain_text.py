"""The text of an explanation: a chain that a person reads from the top down.

What it is, where it came from, what happened in order, which rules matched and lost or came close,
what a rank holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from hpx._text import (
    bytes_text,
    counted,
    event_text,
    rule_place,
    shape_text,
    value_text,
)
from hpx.explain_ranks import held_by_rank, held_by_ranks, slot_holders
from hpx.graph.nodes import ModuleSpec, TensorSpec

if TYPE_CHECKING:
    from hpx.holding import Piece, Pulled
    from hpx.lookup import Found, Names
    from hpx.params import Param
    from hpx.plan import Tried
    from hpx.provenance import Event
    from hpx.run import Run

__all__ = [
    "attribute_text",
    "decision",
    "event_line",
    "module_text",
    "tensor_text",
    "tried_line",
]

_MAX_EVENTS = 60
_MAX_TRIED = 6
_MAX_CHILDREN = 24


def event_line(event: Event, names: Names) -> str:
    """What an event did and why, on one line."""
    rule = f" [{rule_place(event.rule)}]" if event.rule else ""
    return f"{event.pass_}: {event_text(event, names.path)}: {event.why}{rule}"


def tried_line(entry: Tried) -> str:
    """A rule that does not decide, and what beat it or where it stopped matching."""
    return f"{rule_place(entry.rule)}: {entry.stopped_at}"


# -- parameters, buffers, plain tensors --------------------------------------------------------


def tensor_text(
    run: Run,
    names: Names,
    found: Found,
    events: Sequence[Event],
    lost: Sequence[Tried],
    rank: int | None,
    piece: Piece | None,
    pulled: Iterable[Pulled],
) -> str:
    """The text for a parameter, a buffer or a plain tensor."""
    param = found.param
    lines = [found.asked]
    if found.path != found.asked:
        lines.append(f"  canonical name: {found.path}")
    if param is None:
        lines += _other_tensor(run, found)
        lines += _history(events, names, found.node)
        return "\n".join(lines)
    lines += _became(names, found, param)
    lines += _what_it_is(run, names, found, param)
    lines += ["", "what decided", f"  {decision(run, param)}"]
    lines += _history(events, names, found.node)
    lines += _lost(lost)
    lines += held_by_ranks(run, param)
    if found.slot is not None:
        lines += slot_holders(run, names, found, param)
    if piece is not None:
        lines += held_by_rank(rank, param, piece, pulled)
    return "\n".join(lines)


def _became(names: Names, found: Found, param: Param) -> Iterator[str]:
    if found.node == found.origin:
        return
    event = names.run.events[found.slot.seq] if found.slot else None
    if event is not None:
        yield f"  became {found.slot} of {param.name} (step {event.step}, {event.pass_})"
    else:
        yield f"  is one more name of {param.name}"


def _what_it_is(run: Run, names: Names, found: Found, param: Param) -> Iterator[str]:
    trained = "trained" if param.requires_grad else "frozen"
    yield (
        f"  {param.kind} {shape_text(param.shape)} {param.dtype}, {bytes_text(param.bytes)}, "
        f"{trained}"
    )
    if param.aliases:
        yield f"  one parameter, {counted(len(param.aliases) + 1, 'name')}: " + ", ".join(
            [param.name, *param.aliases]
        )
    yield f"  from {param.lineage or f'{param.name} of {_source(run)}, as it is'}"
    owner = names.parent(found.node)
    if owner is not None and owner not in names.place_of:
        spec = run.tree.spec(owner)
        assert isinstance(spec, ModuleSpec)
        where = names.path(owner) or "the root"
        yield f"  in {where}" + (f" ({spec.short_cls})" if spec.cls else "")


def _source(run: Run) -> str:
    return str(run.model["source"] or "the model")


def _other_tensor(run: Run, found: Found) -> Iterator[str]:
    spec = run.tree.spec(found.origin)
    assert isinstance(spec, TensorSpec)
    kind = found.kind
    if kind == "buffer":
        kind_text = "buffer" if spec.persistent else "buffer, not in the state dict"
    else:
        kind_text = "parameter" if kind == "parameter" else "plain tensor attribute"
    yield f"  {kind_text}: {shape_text(spec.shape)} {spec.dtype}, {bytes_text(spec.num_bytes)}"
    if found.gone is not None:
        yield f"  removed in step {found.gone.step} by {found.gone.pass_}: {found.gone.why}"
    elif kind != "parameter":
        yield "  layouts are for parameters: every rank holds it whole"


def decision(run: Run, param: Param) -> str:
    """Which of the ways a layout comes about this one is: rule, default, no rule, nobody."""
    layout = param.layout
    if layout is None:
        if not run.mesh.active_axes:
            return f"no layout: mesh {run.mesh} has no weight axis larger than 1, so it stays whole"
        return "no layout: no pass of this run decided one, so every rank holds it whole"
    event = _layout_event(run, param)
    rule = param.rule
    why = event.why if event else "nobody says why"
    place = f" [{rule_place(rule)}]" if rule is not None else " (no rule of the plan)"
    role = _role(run, param)
    text = f"{'cut' if layout.shards else 'replicated'}, {why}{place}"
    return f"{text}; {role}" if role and role[:8] not in why else text


def _layout_event(run: Run, param: Param) -> Event | None:
    events = [run.events[seq] for seq in param.events]
    sets = [event for event in events if event.kind == "set" and event.key == "layout"]
    return sets[-1] if sets else None


def _role(run: Run, param: Param) -> str:
    """What kind of replicated parameter this is, where that matters."""
    if param.layout is None or param.layout.shards:
        return ""
    owner, _, name = param.name.rpartition(".")
    node = run.tree.find(owner)
    spec = None if node is None else run.tree.spec(run.tree.unwrapped(node))
    if isinstance(spec, ModuleSpec) and spec.short_cls.lower().endswith("norm"):
        return "it belongs to a norm"
    if name != "bias":
        return ""
    weight_id = run.tree.find(f"{owner}.weight")
    weight = None if weight_id is None else run.param(weight_id)
    if weight is not None and weight.layout is not None and weight.layout.dim("tp") == 1:
        return f"bias of a rowwise layer ({weight.name} is {weight.layout}): added once"
    return ""


def _history(events: Sequence[Event], names: Names, node: int) -> Iterator[str]:
    yield ""
    yield "what happened"
    if not events:
        yield "  nothing: no event names it"
    for event in events[:_MAX_EVENTS]:
        of = "" if node in event.nodes else ", of what it is made of"
        shared = ""
        if len(event.nodes) > 1:
            shared = f" (one decision for {counted(len(event.nodes), 'node')}{of})"
        yield f"  {event.step}. {event.pass_}: {event_text(event, names.path)}{shared}"
        yield f"     why: {event.why}"
        if event.rule is not None:
            yield f"     rule: {rule_place(event.rule)}"
        if event.cause is not None:
            cause = names.run.events[event.cause]
            yield f"     follows from {cause.pass_}: {event_text(cause, names.path)}"
    if len(events) > _MAX_EVENTS:
        yield f"  and {counted(len(events) - _MAX_EVENTS, 'more event')}; --json has them all"


def _lost(lost: Sequence[Tried]) -> Iterator[str]:
    yield from _tried("matched and lost", [entry for entry in lost if entry.matched])
    yield from _tried("came close", [entry for entry in lost if not entry.matched])


def _tried(heading: str, entries: Sequence[Tried]) -> Iterator[str]:
    if not entries:
        return
    yield ""
    yield heading
    for entry in entries[:_MAX_TRIED]:
        yield f"  {tried_line(entry)}"
    if len(entries) > _MAX_TRIED:
        yield f"  and {counted(len(entries) - _MAX_TRIED, 'more rule')}; --json has them all"


# -- modules and attributes --------------------------------------------------------------------


def module_text(
    run: Run, names: Names, found: Found, events: Sequence[Event], record: dict[str, Any]
) -> str:
    """The text for a module: its class, its integers, its tensors, its events."""
    lines = [found.asked or "(the root)"]
    lines.append(f"  module {record['class'] or '(its class is not known)'}")
    if found.path != found.asked:
        lines.append(f"  canonical name: {found.path}")
    if record["aliases"]:
        lines.append(f"  shared; also {', '.join(record['aliases'])}")
    if found.gone is not None:
        lines.append(f"  removed in step {found.gone.step} by {found.gone.pass_}: {found.gone.why}")
        lines += _left_of(run, names, found.node)
    for key, value in record["attributes"].items():
        entry, now = value["entry"], value["now"]
        changed = "" if entry == now else f" -> {value_text(now)}"
        lines.append(f"  {key} = {value_text(entry)}{changed}")
    if found.gone is None:
        lines += _tensors_of(run, names, found)
    lines += _history(events, names, found.node)
    return "\n".join(lines)


def _tensors_of(run: Run, names: Names, found: Found) -> Iterator[str]:
    """The tensors that the module itself holds, with their layouts."""
    inside = {name: node for (parent, name), node in names.placed.items() if parent == found.node}
    modules = 0
    for name, node in run.tree.children(found.node).items():
        if node in names.removed:
            continue
        if run.tree.kind(node) == "module":
            modules += 1
        else:
            inside[name] = names.became(node)[0]
    for name, node in islice(inside.items(), _MAX_CHILDREN):
        param = run.param(node)
        if param is not None:
            layout = "no layout" if param.layout is None else str(param.layout)
            yield f"  holds {name} {shape_text(param.shape)} {param.dtype}, {layout}"
        elif node not in names.place_of:
            spec = run.tree.spec(node)
            assert isinstance(spec, TensorSpec)
            yield f"  holds {run.tree.kind(node)} {name} {shape_text(spec.shape)} {spec.dtype}"
    if len(inside) > _MAX_CHILDREN:
        yield f"  and {counted(len(inside) - _MAX_CHILDREN, 'more tensor')}"
    if modules:
        yield f"  with {counted(modules, 'module')} directly inside"


def _left_of(run: Run, names: Names, module: int) -> Iterator[str]:
    """What became of the tensors below a module that is gone."""
    todo = [module]
    lines: list[str] = []
    while todo and len(lines) <= _MAX_CHILDREN:
        for node in run.tree.children(todo.pop()).values():
            if run.tree.kind(node) == "module":
                todo.append(node)
                continue
            now, slot = names.became(node)
            became = f"became {slot} of {names.path(now)}" if slot else "is gone"
            lines.append(f"  {names.path(node)} {became}")
    yield from lines[:_MAX_CHILDREN]
    if len(lines) > _MAX_CHILDREN or todo:
        yield "  and more tensors"


def attribute_text(
    names: Names, found: Found, events: Sequence[Event], record: dict[str, Any]
) -> str:
    """The text for an integer attribute of a module."""
    entry, now = value_text(record["entry"]), value_text(record["now"])
    lines = [found.asked, f"  attribute {found.attribute} of {record['module'] or 'the root'}"]
    lines.append(f"  {entry}" if entry == now else f"  {entry} at first, {now} now")
    return "\n".join([*lines, *_history(events, names, found.node)])
