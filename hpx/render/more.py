"""Facts that only some subjects have: what they were cut to, compared with, and left undecided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from hpx._text import counted
from hpx.ranges import fold_names
from hpx.render.placing import meshes_of_dtensors
from hpx.render.subject import Subject

if TYPE_CHECKING:
    from hpx.run import Run

__all__ = ["compared_text", "more_facts", "unmatched_rules", "without_rule"]

_MOST: Final = 3


def more_facts(subject: Subject) -> Iterator[tuple[str, str]]:
    """Pairs of a word and its text, for the header."""
    if subject.mesh is None and (meshes := meshes_of_dtensors(subject.graph)):
        texts = (",".join(f"{axis}={size}" for axis, size in mesh) for mesh in meshes)
        yield "mesh", f"{' and '.join(texts)}, by the DTensors in it"
    if subject.selection:
        shown = sum(1 for _ in subject.graph.parameters())
        total = sum(1 for _ in subject.full_graph.parameters())
        total += sum(1 for mark in subject.compared.values() if mark == "removed")
        yield "shown", f"{shown:,} of {counted(total, 'parameter')}: {subject.selection}"
    if subject.diff is not None:
        yield "compared", compared_text(subject)
    unmatched = unmatched_rules(subject)
    if unmatched:
        what = counted(len(unmatched), "rule")
        yield "unmatched", f"{what} matched nothing: {_listed(unmatched)}"
    bare = without_rule(subject)
    if bare:
        names = fold_names(subject.graph.path(node_id) for node_id in bare)
        what = counted(len(bare), "parameter")
        yield "no rule", f"{what}, whole by the plan's default: {_listed(names)}"


def compared_text(subject: Subject) -> str:
    """How many parameters a comparison found added, removed and changed."""
    counts = Counter(subject.compared.values())
    found = [f"{counts[mark]:,} {mark}" for mark in ("added", "removed", "changed") if counts[mark]]
    assert subject.diff is not None
    attributes = sum(len(c.names) for c in subject.diff.changes if c.what == "attribute")
    if attributes:
        found.append(f"{counted(attributes, 'attribute')} of modules changed")
    text = ", ".join(found) or "every parameter is the same"
    asked = ", ".join(name for name, _, _ in subject.diff.header)
    return f"{text}; other {asked}" if asked else text


def _listed(items: list[str]) -> str:
    more = f" and {len(items) - _MOST} more" if len(items) > _MOST else ""
    return ", ".join(items[:_MOST]) + more


def unmatched_rules(subject: Subject) -> list[str]:
    """The rules of the plan that matched no parameter, as ``plan.yaml:12 'pattern'``."""
    run = subject.run
    if run is None or not _has_sharded(run):
        return []
    used = {
        event.rule.index
        for event in run.events
        if event.rule is not None and event.key == "layout" and event.rule.source != "default"
    }
    return [f"{rule.where} {rule.pattern!r}" for rule in run.plan.params if rule.index not in used]


def _has_sharded(run: Run) -> bool:
    return any(str(step["pass"]).partition("#")[0] == "shard-params" for step in run.schedule)


def without_rule(subject: Subject) -> list[int]:
    """The parameters that no rule of the plan matched, and its default decided."""
    return [
        node.id
        for node in subject.graph.parameters()
        if (decision := subject.decisions.get(node.id)) is not None
        and decision.rule is not None
        and decision.rule.source == "default"
    ]
