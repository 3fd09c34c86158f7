"""What a check found: how far each kind of tensor is apart, and where the two models part."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hpx._text import counted
from hpx.errors import DifferenceError
from hpx.ranges import fold_names

if TYPE_CHECKING:
    from hpx.lookup import Names
    from hpx.numeric.locating import Located
    from hpx.numeric.measure import Deviation, Kind
    from hpx.provenance import Event
    from hpx.run import Run

__all__ = ["SCHEMA", "Blame", "Figure", "Report"]

SCHEMA: Final = "hpx.check/1"
_MOST_NAMES: Final = 6
_MOST_EVENTS: Final = 24
_FOLLOWS: Final = ("mesh", "source", "localized")
"""Keys that follow from the layout: a person who looks for a fault need not read them."""


@dataclass(frozen=True)
class Figure:
    """One kind of tensor.

    Attributes:
        kind: ``output``, ``loss``, ``gradient`` or ``parameter`` (after the last step).
        tensors: How many were compared, on all ranks together each counted once.
        wrong: How many of them are over the limit.
        by: The largest ``max|a-b| / max|b|``.
        name: The tensor that it belongs to.
        rank: The rank that found it.
        note: What is to be said of that tensor.
    """

    kind: Kind
    tensors: int
    wrong: int
    by: float
    name: str
    rank: int
    note: str = ""

    def to_json(self) -> dict[str, object]:
        """Its fields."""
        return {
            "kind": self.kind,
            "tensors": self.tensors,
            "wrong": self.wrong,
            "largest": _number(self.by),
            "name": self.name,
            "rank": self.rank,
            "note": self.note,
        }


def _number(by: float) -> float | None:
    """What JSON can say: it has no infinity, as where a shape is another one."""
    return by if math.isfinite(by) else None


class Decision(NamedTuple):
    """An event of the run, as far as a report tells it.

    Attributes:
        seq: Its place in the log.
        pass_: The pass that made it.
        key: The key that it set, if any.
        text: What it did and why.
    """

    seq: int
    pass_: str
    key: str | None
    text: str


@dataclass(frozen=True)
class Blame:
    """The module at which the sharded model leaves the unsharded one.

    Attributes:
        module: Its path; None where only a direction is known.
        cls: Its class.
        direction: ``forward`` or ``backward``.
        what: What of it differs, or the error that it raised.
        by: By how much; None where it raised.
        parameters: Its parameters, by name.
        events: The events that decided it and them.
    """

    module: str | None
    cls: str
    direction: str
    what: str
    by: float | None
    parameters: tuple[str, ...] = ()
    events: tuple[Decision, ...] = ()

    @property
    def passes(self) -> tuple[str, ...]:
        """The passes of these events, the last one first."""
        return tuple(dict.fromkeys(event.pass_ for event in reversed(self.events)))

    def to_json(self) -> dict[str, object]:
        """Its fields, with ``passes``."""
        return {
            "module": self.module,
            "class": self.cls,
            "direction": self.direction,
            "what": self.what,
            "by": None if self.by is None else _number(self.by),
            "parameters": list(self.parameters),
            "passes": list(self.passes),
            "events": [
                {"seq": event.seq, "pass": event.pass_, "key": event.key, "text": event.text}
                for event in self.events
            ],
        }

    def lines(self) -> Iterator[str]:
        """As a person reads it."""
        name = self.module or ("the model" if self.module == "" else "no single module")
        cls = f" ({self.cls})" if self.cls else ""
        by = "" if not self.by else f", by {self.by:.2g}"
        yield f"first, {self.direction}: {name}{cls}: {self.what}{by}"
        if self.parameters:
            names = fold_names(self.parameters)
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            yield f"  its parameters: {', '.join(names[:_MOST_NAMES])}{more}"
        telling = [event for event in self.events if event.key not in _FOLLOWS]
        if telling:
            yield "  what decided it"
        for event in telling[-_MOST_EVENTS:]:
            yield f"    {event.seq} {event.text}"


@dataclass(frozen=True)
class Report:
    """A check of one model on one mesh.

    Attributes:
        model: What was checked.
        run: The run that was carried out, to ask further questions.
        tolerance: The limit of ``max|a-b| / max|b|``.
        steps: Steps of AdamW.
        figures: One for each kind of tensor; empty if the sharded model raised.
        blame: Where the models part; None if they are equal.
        held: The largest share of all elements that a rank holds.
        ranks: The ranks on which something is over the limit.
        seconds: What the check took.
    """

    model: str
    run: Run
    tolerance: float
    steps: int
    figures: tuple[Figure, ...]
    blame: Blame | None
    held: float
    ranks: tuple[int, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether both models computed the same."""
        return bool(self.figures) and not any(figure.wrong for figure in self.figures)

    @property
    def verdict(self) -> str:
        """``equal``, ``different`` or ``failed``: the sharded model cannot compute."""
        if self.ok:
            return "equal"
        return "different" if self.figures else "failed"

    def largest(self, kind: str) -> float:
        """The largest ``max|a-b| / max|b|`` of a kind of tensor."""
        return next(figure.by for figure in self.figures if figure.kind == kind)

    def raise_if_different(self) -> None:
        """End a test that is about equality.

        Raises:
            DifferenceError: The models differ; with the whole report.
        """
        if not self.ok:
            raise DifferenceError(str(self))

    def to_json(self) -> dict[str, Any]:
        """One entry of ``checks`` in ``hpx.check/1``."""
        return {
            "model": self.model,
            "mesh": str(self.run.mesh),
            "pipeline": self.run.pipeline,
            "plan": self.run.plan.file,
            "verdict": self.verdict,
            "ok": self.ok,
            "tolerance": self.tolerance,
            "steps": self.steps,
            "world_size": self.run.mesh.world_size,
            "ranks": list(self.ranks),
            "held": self.held,
            "seconds": round(self.seconds, 3),
            "figures": [figure.to_json() for figure in self.figures],
            "first": None if self.blame is None else self.blame.to_json(),
        }

    def __str__(self) -> str:
        mesh = self.run.mesh
        size = counted(mesh.world_size, "rank")
        steps = counted(self.steps, "step")
        lines = [f"{self.verdict}: {self.model} on {mesh} ({size}), {steps} of AdamW in float64"]
        width = max((len(_counted(figure)) for figure in self.figures), default=0)
        for figure in self.figures:
            at = f" at {figure.name}" if figure.name and figure.by else ""
            wrong = f", {figure.wrong} over the limit (rank {figure.rank})" if figure.wrong else ""
            note = f" ({figure.note})" if figure.note and figure.wrong else ""
            lines.append(f"  {_counted(figure):<{width}}  {figure.by:.1e}{at}{wrong}{note}")
        if self.ok:
            lines.append(
                f"  limit {self.tolerance:g} of max|a-b| / max|b|; a rank holds"
                f" {self.held:.0%} of the elements; {self.seconds:.1f} s"
            )
            # What no rank cuts is equal by itself.
            found = [one.text for one in self.run.problems if one.check == "nothing-cut"]
            lines += [f"  nothing was put to the test: {text}" for text in found]
        elif self.figures:
            ranks = ", ".join(map(str, self.ranks))
            lines.append(f"  limit {self.tolerance:g} of max|a-b| / max|b|; on ranks {ranks}")
        if self.blame is not None:
            lines += self.blame.lines()
        return "\n".join(lines)


def _counted(figure: Figure) -> str:
    names = {"output": "output", "loss": "loss", "gradient": "gradient", "parameter": "new value"}
    many = {"loss": "losses"}
    word = names[figure.kind]
    return counted(figure.tensors, word, many.get(figure.kind))


def figures_of(results: Sequence[Sequence[Deviation]], tolerance: float) -> tuple[Figure, ...]:
    """The figures of what all ranks found.

    Args:
        results: What each rank found.
        tolerance: The limit.
    """
    from hpx.numeric.measure import KINDS

    worst: dict[Kind, tuple[Deviation, int]] = {}
    seen: dict[object, bool] = {}
    for rank, result in enumerate(results):
        for one in result:
            seen[one.key] = seen.get(one.key, False) or not one.by <= tolerance
            kind = one.key.kind
            if kind not in worst or not one.by <= worst[kind][0].by:
                worst[kind] = one, rank
    tensors = Counter(getattr(key, "kind", "") for key in seen)
    wrong = Counter(getattr(key, "kind", "") for key, over in seen.items() if over)
    return tuple(
        Figure(kind, tensors[kind], wrong[kind], one.by, one.key.name, rank, one.note)
        for kind in KINDS
        if kind in worst
        for one, rank in [worst[kind]]
    )


def blame(
    run: Run,
    located: Located | None,
    classes: Mapping[str, str],
) -> Blame:
    """What a run has to say of the module at which two models part.

    Args:
        run: The run.
        located: What was found; None if no single module is to blame.
        classes: Classes of modules by path.
    """
    if located is None:
        what = "every module by itself computes the same; look at what stands between them"
        return Blame(None, "", "forward", what, None)
    return blame_module(
        run, located.module, classes, located.direction, f"{located.what} differs", located.by
    )


def blame_module(
    run: Run,
    module: str | None,
    classes: Mapping[str, str],
    direction: str,
    what: str,
    by: float | None,
) -> Blame:
    """As `blame`, of a module that is known."""
    if module is None:
        return Blame(None, "", direction, what, by)
    names = _parameters(run, module)
    return Blame(
        module, classes.get(module, ""), direction, what, by, names, _events(run, module, names)
    )


def _parameters(run: Run, module: str) -> tuple[str, ...]:
    """Those of the module itself; where it has none, of all modules inside."""
    prefix = f"{module}." if module else ""
    inside = [name for name in run.by_name if name.startswith(prefix)]
    own = [name for name in inside if "." not in name[len(prefix) :]]
    return tuple(own or inside)


def _events(run: Run, module: str, names: Sequence[str]) -> tuple[Decision, ...]:
    from hpx.errors import UsageError
    from hpx.lookup import Names, find

    known = Names(run)
    found: dict[int, Event] = {}
    for name in (module, *names) if module else names:
        try:
            node = find(run, name, known).node
        except UsageError:  # a module that only runs: an expert's stand-in in a stacked container
            continue
        found |= {event.seq: event for event in known.history(node)}
    return tuple(_decision(found[seq], known) for seq in sorted(found))


def _decision(event: Event, names: Names) -> Decision:
    from hpx.explain_text import event_line

    text = event_line(event, names)
    if event.kind == "attach" and isinstance(event.new, Mapping):
        text = f"{event.pass_}: installs {event.new.get('function')}: {event.why}"
    return Decision(event.seq, event.pass_, event.key, text)
