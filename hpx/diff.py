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

__all__ = ["Change", "Diff", "diff_runs"]

_NUMBER: Final = re.compile(r"(?<=\.)[0-9]+(?=\.|\b)")
_MAX_LINES: Final = 6


@dataclass(frozen=True)
class Change:
    """One difference, and all names that have it.

    Attributes:
        what: ``added``, ``removed``, ``changed`` or ``attribute``.
        field: Which field changed; empty for added and removed.
        old: The first run's value as text.
        new: The second run's.
        names: The parameters (or ``module.attribute`` names), in the order of the tree.
        why_old: Why the first run has it so.
        why_new: Why the second has.
    """

    what: str
    field: str
    old: str
    new: str
    names: tuple[str, ...]
    why_old: str
    why_new: str

    def to_json(self) -> dict[str, object]:
        """All of it, with names folded and their count."""
        return {
            "what": self.what,
            "field": self.field,
            "old": self.old,
            "new": self.new,
            "count": len(self.names),
            "names": fold_names(self.names),
            "why_old": self.why_old,
            "why_new": self.why_new,
        }

    def lines(self) -> Iterator[str]:
        """The change as text."""
        kind = "attribute" if self.what == "attribute" else "parameter"
        head = f"{self.field}: {self.old} -> {self.new}" if self.field else self.old or self.new
        yield f"  {head}  ({counted(len(self.names), kind)})"
        folded = fold_names(self.names)
        yield from (f"    {name}" for name in folded[:_MAX_LINES])
        if len(folded) > _MAX_LINES:
            yield f"    and {len(folded) - _MAX_LINES} more lines; --json has them all"
        if self.why_old:
            yield f"      a: {self.why_old}"
        if self.why_new:
            yield f"      b: {self.why_new}"


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
            lines.append("the parameters are equal")
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
    return "none" if rule is None else f"{rule.pattern!r} -> {rule.layout} ({rule.source})"


_FIELDS: Final = (
    _Field("shape", lambda param: shape_text(param.shape), None),
    _Field("dtype", lambda param: param.dtype, None),
    _Field("requires_grad", lambda param: str(param.requires_grad).lower(), None),
    _Field("lineage", lambda param: param.lineage or "itself", None),
    _Field("names", lambda param: ", ".join([param.name, *param.aliases]), None),
    _Field("layout", _layout_of, "layout"),
    _Field("mesh", lambda param: param.mesh or "none", "mesh"),
    _Field("local shape", lambda param: shape_text(param.local_shape), "layout"),
    _Field("gradient summed over", lambda param: ", ".join(param.reduce) or "none", "reduce"),
    _Field("rule", _rule_of, "layout"),
)


class _Group(NamedTuple):
    """Equal changes: what they have in common, and of each its name and its four texts."""

    what: str
    field: str
    names: list[str]
    texts: list[tuple[str, str, str, str]]

    def change(self) -> Change:
        old, new, why_old, why_new = map(_folded, zip(*self.texts, strict=True))
        return Change(self.what, self.field, old, new, tuple(self.names), why_old, why_new)


class _Comparison:
    """Collects equal changes under one key."""

    def __init__(self, a: Run, b: Run) -> None:
        self.a, self.b = a, b
        self.names_a, self.names_b = Names(a), Names(b)
        self.groups: dict[tuple[str, ...], _Group] = {}

    def changes(self) -> Iterator[Change]:
        for param in self.a.params:
            other = self.b.by_name.get(param.name)
            if other is None:
                self.gone(param)
            else:
                self.compare(param, other)
        for param in self.b.params:
            if param.name not in self.a.by_name:
                self.new(param)
        self.attributes()
        return (group.change() for group in self.groups.values())

    def compare(self, old: Param, new: Param) -> None:
        for field in _FIELDS:
            texts = field.text(old), field.text(new)
            if texts[0] != texts[1] and not (field.name == "names" and _same_names(old, new)):
                why_old = _why(self.a, old, field)
                why_new = _why(self.b, new, field)
                self.add("changed", field.name, *texts, old.name, why_old, why_new)

    def gone(self, param: Param) -> None:
        why_new = _absence(self.b, self.names_b, param.name)
        text = f"{shape_text(param.shape)} {param.dtype}, {_layout_of(param)}"
        self.add("removed", "", text, "", param.name, _made(self.a, self.names_a, param), why_new)

    def new(self, param: Param) -> None:
        why_old = _absence(self.a, self.names_a, param.name)
        text = f"{shape_text(param.shape)} {param.dtype}, {_layout_of(param)}"
        self.add("added", "", "", text, param.name, why_old, _made(self.b, self.names_b, param))

    def attributes(self) -> None:
        old, new = _edited(self.a, self.names_a), _edited(self.b, self.names_b)
        for name in dict.fromkeys([*old, *new]):
            before, after = old.get(name), new.get(name)
            if before and after and before.new == after.new:
                continue
            first = before or after
            assert first is not None
            texts = [str(first.old) if e is None else str(e.new) for e in (before, after)]
            whys = ["no pass changed it" if e is None else _event_text(e) for e in (before, after)]
            self.add("attribute", name.rpartition(".")[2], texts[0], texts[1], name, *whys)

    def add(
        self, what: str, field: str, old: str, new: str, name: str, why_old: str, why_new: str
    ) -> None:
        # Numbers inside names differ from layer to layer; what is else equal is one change.
        texts = (old, new, why_old, why_new)
        key = (what, field, *(_NUMBER.sub("#", text) for text in texts))
        group = self.groups.setdefault(key, _Group(what, field, [], []))
        group.names.append(name)
        group.texts.append(texts)


def _folded(texts: Iterable[str]) -> str:
    """Texts that differ in numbers of names alone, as one."""
    lines = fold_names(dict.fromkeys(texts))
    return lines[0] if len(lines) == 1 else f"{lines[0]}, and the like"


def _same_names(old: Param, new: Param) -> bool:
    return {old.name, *old.aliases} == {new.name, *new.aliases}


def _event_text(event: Event, rule: Rule | None = None) -> str:
    rule = rule or event.rule
    where = f" [{rule_place(rule)}]" if rule else ""
    return f"{event.pass_} (step {event.step}): {event.why}{where}"


def _why(run: Run, param: Param, field: _Field) -> str:
    """The last event that decided a field; empty where none did."""
    events = [run.events[seq] for seq in param.events]
    if field.key is not None:
        events = [event for event in events if event.kind == "set" and event.key == field.key]
    else:
        events = [event for event in events if event.kind in ("derive", "alias", "rename")]
    if events:
        return _event_text(events[-1])
    return "no pass decided it" if field.key else ""


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
