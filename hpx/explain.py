"""Explain what a run did to one name, and why a pass did nothing to it.

`explain` gives the chain from the original tensors to what a rank holds; `why_not` asks one pass.
Both answer from the log and the folded entry graph, so a loaded run is never expanded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from hpx import explain_text
from hpx._text import counted
from hpx.errors import UsageError, nearest
from hpx.graph.nodes import ModuleSpec, TensorSpec
from hpx.holding import Piece, Pulled, piece_of, pull
from hpx.lineage import Source
from hpx.lookup import Found, Names, find
from hpx.plan import Tried, tried
from hpx.provenance import Event

if TYPE_CHECKING:
    from hpx.run import Run

__all__ = ["Explanation", "WhyNot", "explain", "why_not"]


@dataclass(frozen=True)
class Explanation:
    """Everything a run knows about one name.

    Attributes:
        found: What the name means.
        events: Its events, those of what it is made of included.
        tried: The rules of the plan that matched it and lost, and those that came close.
        record: The answer as JSON.
        text: The answer for people; also ``str()``.
    """

    found: Found
    events: tuple[Event, ...]
    tried: tuple[Tried, ...]
    record: dict[str, object]
    text: str

    def to_json(self) -> dict[str, object]:
        """One ``params`` entry with its events in full, and ``tried``."""
        return self.record

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class WhyNot:
    """What a pass did to one name, or why it did nothing.

    Attributes:
        name: The name as it was asked for.
        pass_name: The pass as it was asked for.
        acted: Whether the pass changed it.
        reasons: Why not, or what it did; one line each.
        events: The events of the pass about it.
    """

    name: str
    pass_name: str
    acted: bool
    reasons: tuple[str, ...]
    events: tuple[Event, ...]

    def to_json(self) -> dict[str, object]:
        """``{name, pass, acted, reasons, events}``."""
        return {
            "name": self.name,
            "pass": self.pass_name,
            "acted": self.acted,
            "reasons": list(self.reasons),
            "events": [event.to_json() for event in self.events],
        }

    def __str__(self) -> str:
        head = "acted on" if self.acted else "did nothing to"
        lines = [f"{self.pass_name} {head} {self.name}"]
        return "\n".join([*lines, *(f"  {reason}" for reason in self.reasons)])


def explain(run: Run, name: str, *, rank: int | None = None) -> Explanation:
    """From the original tensors to what a rank holds.

    Args:
        run: Fresh or loaded.
        name: A parameter, buffer, module or ``module.attribute``, by any name it has or had.
        rank: A global rank, to say exactly which indices it holds.

    Raises:
        UsageError: There is and was nothing of that name.
        MeshError: There is no such rank.
    """
    names = Names(run)
    found = find(run, name, names)
    if rank is not None:
        run.mesh.coordinate(rank)  # an unknown rank is an error whatever the name is
    if found.kind == "attribute":
        key = f"attributes.{found.attribute}"
        events = [e for e in run.log.of(found.node) if e.key in (key, found.attribute)]
        record = _attribute_record(run, names, found, events)
        text = explain_text.attribute_text(names, found, events, record)
        return Explanation(found, tuple(events), (), _finished(record, events, ()), text)
    events = names.history(found.node)
    if found.kind == "module":
        record = _module_record(run, names, found, events)
        text = explain_text.module_text(run, names, found, events, record)
        return Explanation(found, tuple(events), (), _finished(record, events, ()), text)
    lost: tuple[Tried, ...] = ()
    if found.param is not None:
        lost = tuple(tried(run.plan, [found.param.name, *found.param.aliases]))
    piece, pulled = _held(run, names, found, rank)
    record = _tensor_record(run, names, found)
    record["rank"] = None if piece is None else _rank_record(rank, piece, pulled)
    text = explain_text.tensor_text(run, names, found, events, lost, rank, piece, pulled)
    return Explanation(found, tuple(events), lost, _finished(record, events, lost), text)


def _finished(
    record: dict[str, object], events: Iterable[Event], lost: Iterable[Tried]
) -> dict[str, object]:
    record["events"] = [event.to_json() for event in events]
    record["tried"] = [entry.to_json() for entry in lost]
    return record


def _attribute_record(
    run: Run, names: Names, found: Found, events: Iterable[Event]
) -> dict[str, object]:
    spec = run.tree.spec(found.node)
    assert isinstance(spec, ModuleSpec)
    now = entry = dict(spec.attributes).get(cast(str, found.attribute))
    for event in events:
        if event.kind == "set":
            now = cast("int | None", event.new)
    return {
        "query": found.asked,
        "name": found.path,
        "kind": "attribute",
        "module": names.path(found.node),
        "entry": entry,
        "now": now,
    }


def _module_record(
    run: Run, names: Names, found: Found, events: Iterable[Event]
) -> dict[str, object]:
    spec = run.tree.spec(found.node)
    assert isinstance(spec, ModuleSpec)
    entry = dict(spec.attributes)
    now: dict[str, object] = dict(entry)
    for event in events:
        if event.kind == "set" and event.key and event.key.startswith("attributes."):
            now[event.key.removeprefix("attributes.")] = event.new
    edges = run.tree.more_edges(found.node)
    more = [".".join(filter(None, (names.path(parent), name))) for parent, name in edges]
    return {
        "query": found.asked,
        "name": found.path,
        "aliases": more,
        "kind": "module",
        "class": spec.cls,
        "attributes": {key: {"entry": entry.get(key), "now": value} for key, value in now.items()},
        "removed": found.gone is not None,
    }


def _tensor_record(run: Run, names: Names, found: Found) -> dict[str, object]:
    record: dict[str, object] = {"query": found.asked}
    if found.param is not None:
        record.update(found.param.to_json())
        record["decided"] = explain_text.decision(run, found.param)
        record["slot"] = None
        if found.slot is not None:
            index, counts = list(found.slot.index), list(found.slot.counts)
            record["slot"] = {"name": found.path, "index": index, "counts": counts}
        return record
    spec = run.tree.spec(found.origin)
    assert isinstance(spec, TensorSpec)
    return {
        **record,
        "id": found.node,
        "name": names.path(found.node),
        "kind": found.kind,
        "shape": list(spec.shape),
        "dtype": spec.dtype,
        "persistent": spec.persistent,
        "bytes": spec.num_bytes,
        "removed": found.gone is not None,
    }


def _held(
    run: Run, names: Names, found: Found, rank: int | None
) -> tuple[Piece | None, tuple[Pulled, ...]]:
    if rank is None or found.param is None:
        return None, ()
    piece = piece_of(found.param, run.mesh, rank)
    made = names.expression(found.node)
    return piece, () if isinstance(made, Source) else pull(made, piece.ranges, names.path)


def _rank_record(rank: int | None, piece: Piece, pulled: Iterable[Pulled]) -> dict[str, object]:
    return {"rank": rank, **piece.to_json(), "sources": [item.to_json() for item in pulled]}


# -- why not -----------------------------------------------------------------------------------


def why_not(run: Run, name: str, pass_name: str) -> WhyNot:
    """Why a pass did nothing to ``name``, or what it did.

    Args:
        run: Fresh or loaded.
        name: As for `explain`.
        pass_name: A pass, or one step of it, such as ``shard-params#2``.

    Raises:
        UsageError: There is and was nothing of that name, or no such pass.
    """
    names = Names(run)
    found = find(run, name, names)
    steps = _steps_of(run, pass_name)
    if not steps:
        return WhyNot(name, pass_name, False, (_not_listed(run, pass_name),), ())
    history = names.history(found.node)
    events = [event for event in history if event.step in steps]
    if found.attribute is not None:
        events = [e for e in events if e.key in (f"attributes.{found.attribute}", None)]
    acted = any(event.kind not in ("skip", "note") for event in events)
    reasons = [explain_text.event_line(event, names) for event in events]
    if not acted:
        reasons += _reasons(run, names, found, steps, considered=bool(events))
    return WhyNot(name, pass_name, acted, tuple(reasons), tuple(events))


def _steps_of(run: Run, pass_name: str) -> list[int]:
    """The numbers of the steps that a pass name means; none for a pass that was not listed."""
    listed = {int(step["step"]): str(step["pass"]) for step in run.schedule}
    steps = [
        number for number, name in listed.items() if pass_name in (name, name.partition("#")[0])
    ]
    if steps:
        return steps
    from hpx.pipeline import registry

    known = list(dict.fromkeys([*listed.values(), *registry.names()]))
    if pass_name not in known:
        close = nearest(pass_name.lower().replace("_", "-"), known)
        raise UsageError(
            f"there is no pass '{pass_name}'",
            why=f"the run has {', '.join(listed.values()) or 'none'}",
            fix=f"did you mean {', '.join(close)}?" if close else None,
        )
    return []


def _not_listed(run: Run, pass_name: str) -> str:
    return f"{pass_name} is not in the pipeline of this run: {run.pipeline or 'it is empty'}"


def _reasons(
    run: Run, names: Names, found: Found, steps: list[int], *, considered: bool
) -> list[str]:
    """Why a pass that ran left a node alone, as far as the log can say."""
    out: list[str] = []
    first = min(steps)
    if found.gone is not None and found.gone.step < first:
        out.append(f"it was gone by then: {explain_text.event_line(found.gone, names)}")
    mine = [event for event in run.events if event.step in steps]
    out += [f"note: {e.why}" for e in mine if e.kind == "note" and not e.nodes]
    if found.param is not None and any(e.key == "layout" for e in mine):
        lost = tried(run.plan, [found.param.name, *found.param.aliases])
        out += [explain_text.tried_line(entry) for entry in lost]
    changes = [event for event in mine if event.kind not in ("skip", "note")]
    if not considered:
        out.append(f"no event of it names {found.asked}: what the pass looks for is not here")
    touched = {node for event in changes for node in event.nodes}
    kinds = dict.fromkeys(_what(event) for event in changes)
    done = f"{counted(len(touched), 'node')} ({', '.join(kinds)})" if touched else "nothing"
    out.append(f"in all of the model it changed {done}")
    return out


def _what(event: Event) -> str:
    return event.key or event.kind
