"""What differs between two runs or models, by parameter, with the events that explain each side.

Equal changes of many parameters are one `Change`, whose names fold: 44,544 experts that one run
stacks and the other does not are a few lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from hpx._text import counted, shape_text
from hpx.diff_sides import FIELDS, GraphSide, RunSide, Side, layout_text, told
from hpx.graph.graph import ModuleGraph
from hpx.ranges import fold_names

if TYPE_CHECKING:
    from hpx.params import Param
    from hpx.run import Run

__all__ = ["Change", "Diff", "FieldChange", "diff_models", "diff_runs"]

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
            yield f"    and {len(folded) - _MAX_LINES} more lines; JSON has them all"
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

    def _repr_html_(self) -> str:
        """What differs as a table, for notebooks."""
        from hpx.render.notebook import html_of_diff

        return html_of_diff(self)

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
        if not self.changes and self.header:
            lines.append("every parameter has the same layout, by the same rule")
        return "\n".join(lines)


def diff_runs(a: Run, b: Run) -> Diff:
    """Compare two runs, fresh or loaded: ``a`` is the old one, ``b`` the new one.

    Parameters are matched by name. A rule differs if it says something else, not if it stands in
    another file or on another line.
    """
    return Diff(tuple(_header(a, b)), tuple(_Comparison(RunSide(a), RunSide(b)).changes()))


def diff_models(a: Run | ModuleGraph, b: Run | ModuleGraph) -> Diff:
    """Compare runs with runs, models with models, or one with the other: ``a`` is the old side.

    What one side does not know is not compared: of a checkpoint its layouts, if it has none, and
    what only classes tell. Where a model was read from is no difference.
    """
    if not isinstance(a, ModuleGraph) and not isinstance(b, ModuleGraph):
        return diff_runs(a, b)
    one = GraphSide(a) if isinstance(a, ModuleGraph) else RunSide(a)
    other = GraphSide(b) if isinstance(b, ModuleGraph) else RunSide(b)
    return Diff((), tuple(_Comparison(one, other).changes()))


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

    def __init__(self, a: Side, b: Side) -> None:
        self.a, self.b = a, b
        known = a.fields & b.fields
        self.fields = [field for field in FIELDS if field.name in known]
        self.groups: dict[tuple[object, ...], _Group] = {}

    def changes(self) -> Iterator[Change]:
        for param in self.a.params:
            # One of several names may be gone, and what was one tensor may be several now.
            others: dict[int, tuple[str, Param]] = {}
            for name in (param.name, *param.aliases):
                if (other := self.b.by_name.get(name)) is not None:
                    others.setdefault(other.id, (name, other))
            for name, other in others.values():
                self.compare(name, param, other)
            if not others and not self.is_elsewhere(self.a, self.b, param.name):
                whys = self.a.made(param), self.b.absence(param.name)
                self.add("removed", (), self.value(param), param.name, *whys)
        for param in self.b.params:
            known = any(name in self.a.by_name for name in (param.name, *param.aliases))
            if not known and not self.is_elsewhere(self.b, self.a, param.name):
                whys = self.a.absence(param.name), self.b.made(param)
                self.add("added", (), self.value(param), param.name, *whys)
        self.attributes()
        return (group.change() for group in self.groups.values())

    @staticmethod
    def is_elsewhere(has: Side, lacks: Side, name: str) -> bool:
        """Whether a file's tensor, of which only the name is known, is a buffer on the other."""
        return not has.whole and lacks.has_other(name)

    def value(self, param: Param) -> str:
        text = f"{shape_text(param.shape)} {param.dtype}"
        known = any(field.name == "layout" for field in self.fields)
        return f"{text}, layout {layout_text(param)}" if known else text

    def compare(self, name: str, old: Param, new: Param) -> None:
        pairs = ((field, field.text(old), field.text(new)) for field in self.fields)
        found = [(field, a, b) for field, a, b in pairs if a != b]
        if found:
            fields = [field for field, _, _ in found]
            changes = tuple(FieldChange(field.name, a, b) for field, a, b in found)
            whys = self.a.why(old, fields), self.b.why(new, fields)
            self.add("changed", changes, "", name, *whys)

    def attributes(self) -> None:
        if not (isinstance(self.a, RunSide) and isinstance(self.b, RunSide)):
            return
        old, new = self.a.edited(), self.b.edited()
        for name in dict.fromkeys([*old, *new]):
            before, after = old.get(name), new.get(name)
            if before and after and before.new == after.new:
                continue
            first = before or after
            assert first is not None
            texts = [str(first.old) if e is None else str(e.new) for e in (before, after)]
            whys = [("no pass changed it" if e is None else told(e),) for e in (before, after)]
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
