"""What differs between two runs, parameter by parameter, with the events that explain each side.

Equal changes of many parameters are one `Change`, whose names fold: 44,544 experts that one run
stacks and the other does not are a few lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from hpx._text import counted, event_text, rule_place, shape_text
from hpx.lookup import Names
from hpx.ranges import fold_names

if TYPE_CHECKING:
    from hpx.params import Param
    from hpx.plan import Rule
    from hpx.provenance import Event
    from hpx.run import Run

__all__ = ["Change", "Diff", "FieldChange", "diff_runs"]

_NUMBER: Final = re.compile(r"(?<=\.)[0-9]+(?=\.|\b)")
_MAX_LINES: Final = 6


class FieldChange(NamedTuple):
    """One field and its two values as text."""

    field: str
    old: str
    new: str


@dataclass(frozen=True)
class Change:
    """One difference, and all names that have it.

    Attributes:
        what: ``added``, ``removed``, ``changed`` or ``attribute``.
        fields: What changed of the parameter or attribute; nothing for added and removed.
        value: For added and removed, what there is on the one side.
        names: The parameters (or ``module.attribute`` names), in the order of the tree.
        why_old: The events that explain the first run's side, one text each.
        why_new: Those of the second.
    """

    what: str
    fields: tuple[FieldChange, ...]
    value: str
    names: tuple[str, ...]
    why_old: tuple[str, ...]
    why_new: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """All of it, with names folded and their count."""
        return {
            "what": self.what,
            "fields": [field._asdict() for field in self.fields],
            "value": self.value or None,
            "count": len(self.names),
            "names": fold_names(self.names),
            "why_old": list(self.why_old),
            "why_new": list(self.why_new),
        }

    def lines(self) -> Iterator[str]:
        """The change as text."""
        kind = "attribute" if self.what == "attribute" else "parameter"
        head = "; ".join(f"{field}: {old} -> {new}" for field, old, new in self.fields)
        yield f"  {head or self.value}  ({counted(len(self.names), kind)})"
        folded = fold_names(self.names)
        yield from (f"    {name}" for name in folded[:_MAX_LINES])
        if len(folded) > _MAX_LINES:
            yield f"    and {len(folded) - _MAX_LINES} more lines; --json has them all"
        yield from (f"      a: {why}" for why in self.why_old)
        yield from (f"      b: {why}" for why in self.why_new)


@dataclass(frozen=True)
class Diff:
    """What differs between two runs; false if nothing does.

    Attributes:
        header: What the runs were asked for differently: ``model``, ``mesh``, ``plan``,
            ``pipeline``, ``options``; each with both values.
        changes: The differences, those of one kind together.
    """

    header: tuple[tuple[str, str, str], ...]
    changes: tuple[Change, ...]

    def __bool__(self) -> bool:
        return bool(self.header or self.changes)

    def to_json(self) -> dict[str, object]:
        """``{differs, header: {name: {old, new}}, changes}``."""
        return {
            "differs": bool(self),
            "header": {name: {"old": old, "new": new} for name, old, new in self.header},
            "changes": [change.to_json() for change in self.changes],
        }

    def __str__(self) -> str:
        if not self:
            return "no difference"
        lines = [f"{name}: {old} -> {new}" for name, old, new in self.header]
        titles = {
            "removed": "only in a",
            "added": "only in b",
            "changed": "changed",
            "attribute": "attributes of modules",
        }
        for what, title in titles.items():
            changes = [change for change in self.changes if change.what == what]
            if not changes:
                continue
            total = len({name for change in changes for name in change.names})
            lines.append(f"{title} ({total:,})")
            lines += [line for change in changes for line in change.lines()]
        if not self.changes:
            lines.append("every parameter has the same layout, by the same rule")
        return "\n".join(lines)


def diff_runs(a: Run, b: Run) -> Diff:
    """Compare two runs, fresh or loaded: ``a`` is the old one, ``b`` the new one.

    Parameters are matched by name. A rule differs if it says something else, not if it stands in
    another file or on another line.
    """
    return Diff(tuple(_header(a, b)), tuple(_Comparison(a, b).changes()))


def _header(a: Run, b: Run) -> Iterator[tuple[str, str, str]]:
    if a.entry_fingerprint != b.entry_fingerprint:
        yield "model", _model_text(a), _model_text(b)
    if a.mesh != b.mesh:
        yield "mesh", str(a.mesh), str(b.mesh)
    if a.plan.content_key() != b.plan.content_key():
        yield "plan", _plan_text(a), _plan_text(b)
    if a.pipeline != b.pipeline:
        yield "pipeline", a.pipeline, b.pipeline
    steps = [", ".join(str(step["pass"]) for step in run.schedule) for run in (a, b)]
    if steps[0] != steps[1]:
        yield "schedule", steps[0], steps[1]


def _model_text(run: Run) -> str:
    size = counted(run.model["num_parameters"], "parameter")
    return f"{run.model['source'] or 'a model'} ({size}, {run.entry_fingerprint[7:19]})"


def _plan_text(run: Run) -> str:
    return f"{run.plan.file or 'a plan from Python'} ({counted(len(run.plan.params), 'rule')})"


class _Field(NamedTuple):
    """A field of a parameter that is compared."""

    name: str
    text: Callable[[Param], str]
    key: str | None
    """The key of the ``set`` events that explain it; None for those of structure."""


def _layout_of(param: Param) -> str:
    return "none" if param.layout is None else str(param.layout)


def _rule_of(param: Param) -> str:
    rule = param.rule
    return "none" if rule is None else f"{rule.pattern!r} says {rule.layout} ({rule.source})"


_FIELDS: Final = (
    _Field("shape", lambda param: shape_text(param.shape), None),
    _Field("dtype", lambda param: param.dtype, None),
    _Field("requires_grad", lambda param: str(param.requires_grad).lower(), None),
    _Field("lineage", lambda param: param.lineage or "itself", None),
    _Field("names", lambda param: ", ".join(sorted([param.name, *param.aliases])), None),
    _Field("layout", _layout_of, "layout"),
    _Field("mesh", lambda param: param.mesh or "none", "mesh"),
    _Field("gradient summed over", lambda param: ", ".join(param.reduce) or "none", "reduce"),
    _Field("rule", _rule_of, "layout"),
)


class _Group(NamedTuple):
    """Equal changes: what they have in common, and of each its name and all its texts."""

    what: str
    fields: tuple[str, ...]
    names: list[str]
    texts: list[tuple[tuple[str, ...], ...]]

    def change(self) -> Change:
        # Column by column: a text may differ from name to name in the numbers of a path.
        columns = [tuple(map(_folded, zip(*rows, strict=True))) for rows in self._columns()]
        old, new, value, why_old, why_new = columns
        fields = tuple(map(FieldChange, self.fields, old, new))
        return Change(self.what, fields, "".join(value), tuple(self.names), why_old, why_new)

    def _columns(self) -> Iterator[tuple[tuple[str, ...], ...]]:
        return zip(*self.texts, strict=True)


class _Comparison:
    """Collects equal changes under one key."""

    def __init__(self, a: Run, b: Run) -> None:
        self.a, self.b = a, b
        self.names_a, self.names_b = Names(a), Names(b)
        self.groups: dict[tuple[object, ...], _Group] = {}

    def changes(self) -> Iterator[Change]:
        for param in self.a.params:
            other = self.b.by_name.get(param.name)
            if other is None:
                why_new = (_absence(self.b, self.names_b, param.name),)
                why_old = (_made(self.a, self.names_a, param),)
                self.add("removed", (), _value_of(param), param.name, why_old, why_new)
            else:
                self.compare(param, other)
        for param in self.b.params:
            if param.name not in self.a.by_name:
                why_old = (_absence(self.a, self.names_a, param.name),)
                why_new = (_made(self.b, self.names_b, param),)
                self.add("added", (), _value_of(param), param.name, why_old, why_new)
        self.attributes()
        return (group.change() for group in self.groups.values())

    def compare(self, old: Param, new: Param) -> None:
        pairs = ((field, field.text(old), field.text(new)) for field in _FIELDS)
        found = [(field, a, b) for field, a, b in pairs if a != b]
        if found:
            fields = [field for field, _, _ in found]
            changes = tuple(FieldChange(field.name, a, b) for field, a, b in found)
            whys = _why(self.a, old, fields), _why(self.b, new, fields)
            self.add("changed", changes, "", old.name, *whys)

    def attributes(self) -> None:
        old, new = _edited(self.a, self.names_a), _edited(self.b, self.names_b)
        for name in dict.fromkeys([*old, *new]):
            before, after = old.get(name), new.get(name)
            if before and after and before.new == after.new:
                continue
            first = before or after
            assert first is not None
            texts = [str(first.old) if e is None else str(e.new) for e in (before, after)]
            whys = [
                ("no pass changed it" if e is None else _event_text(e),) for e in (before, after)
            ]
            changed = FieldChange(name.rpartition(".")[2], *texts)
            self.add("attribute", (changed,), "", name, *whys)

    def add(
        self,
        what: str,
        fields: tuple[FieldChange, ...],
        value: str,
        name: str,
        why_old: tuple[str, ...],
        why_new: tuple[str, ...],
    ) -> None:
        named = tuple(field.field for field in fields)
        old, new = tuple(field.old for field in fields), tuple(field.new for field in fields)
        texts = (old, new, (value,), why_old, why_new)
        # Numbers inside names differ from layer to layer; what is else equal is one change.
        key = (what, named, *(tuple(map(_without_numbers, column)) for column in texts))
        group = self.groups.setdefault(key, _Group(what, named, [], []))
        group.names.append(name)
        group.texts.append(texts)


def _without_numbers(text: str) -> str:
    return _NUMBER.sub("#", text)


def _folded(texts: Iterable[str]) -> str:
    """Texts that differ in numbers of names alone, as one."""
    lines = fold_names(dict.fromkeys(texts))
    return lines[0] if len(lines) == 1 else f"{lines[0]}, and the like"


def _value_of(param: Param) -> str:
    return f"{shape_text(param.shape)} {param.dtype}, layout {_layout_of(param)}"


def _event_text(event: Event, rule: Rule | None = None) -> str:
    rule = rule or event.rule
    where = f" [{rule_place(rule)}]" if rule else ""
    return f"{event.pass_} (step {event.step}): {event.why}{where}"


def _why(run: Run, param: Param, fields: list[_Field]) -> tuple[str, ...]:
    """The last events that decided the fields, those of structure first."""
    events = [run.events[seq] for seq in param.events]
    found: dict[str, None] = {}
    for key in dict.fromkeys(field.key for field in fields):
        if key is None:
            deciding = [event for event in events if event.kind in ("derive", "alias", "rename")]
        elif key == "mesh" and any(field.key == "layout" for field in fields):
            continue  # it follows from the layout
        else:
            deciding = [event for event in events if event.kind == "set" and event.key == key]
        if deciding:
            found[_event_text(deciding[-1])] = None
        elif key is not None:
            found[f"no pass decided its {key}"] = None
    return tuple(found)


def _made(run: Run, names: Names, param: Param) -> str:
    """What made a parameter, if a pass did."""
    made = names.lineages.get(param.id)
    if made is None:
        return "as in the model"
    return _event_text(run.events[made[1]])


def _absence(run: Run, names: Names, name: str) -> str:
    """Why a run has no parameter of this name."""
    node_id, rest = names.walk(name)
    if rest or (node_id not in names.place_of and run.tree.kind(node_id) != "parameter"):
        return "it never had this name"
    now, slot = names.became(node_id)
    if slot is not None:
        event = run.events[slot.seq]
        return f"stacked into {names.path(now)} by {event.pass_} (step {event.step})"
    gone = names.removed.get(now)
    if gone is not None:
        return f"{event_text(gone, names.path)} by {_event_text(gone)}"
    return f"it is one more name of {names.path(now)}"


def _edited(run: Run, names: Names) -> dict[str, Event]:
    """The last event on every edited attribute, by ``module.attribute``."""
    found: dict[str, Event] = {}
    for event in run.events:
        if event.kind == "set" and event.key and event.key.startswith("attributes."):
            attribute = event.key.removeprefix("attributes.")
            for node in event.nodes:
                path = names.path(node)
                found[f"{path}.{attribute}" if path else attribute] = event
    return found
