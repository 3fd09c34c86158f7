"""The picture of a pipeline: passes in their order, their facts, and the reason on every edge.

In a run that failed the step that did stands out, and those after it are grey.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from hpx._text import counted, printable
from hpx.errors import InputError, PipelineError
from hpx.pipeline.info import Pass, PassInfo
from hpx.pipeline.schedule import Schedule, schedule
from hpx.pipeline.textform import as_passes, format_pipeline
from hpx.render.labels import cell, escape, small, table
from hpx.render.palette import ALERT
from hpx.render.svg import GREY
from hpx.render.words import shorten

if TYPE_CHECKING:
    import graphviz

    from hpx.pipeline.manager import FailedStep
    from hpx.run import Run

__all__ = [
    "FAILED_SCHEMA",
    "PipelinePicture",
    "failure_to_json",
    "picture_of_failure",
    "picture_of_run",
    "pipeline_to_dot",
]

FAILED_SCHEMA: Final = "hpx.failed/1"

_LINE: Final = "#888888"
_HEAD: Final = "#E8E8E8"
_PALE: Final = "#8C8C8C"
_DONE: Final = "#00664B"
_AT_ENTRY: Final = " holds at entry"
_WIDE: Final = 58
_SAID: Final = 4
"""So many lines of an error are told."""


@dataclass(frozen=True)
class PipelinePicture:
    """What there is to draw.

    Attributes:
        title: What is above the picture.
        plan: The order, with its edges and facts.
        done: What a run did at each step, by its number.
        failed: The number of the step that failed; None if none did.
        error: What it failed of.
    """

    title: str
    plan: Schedule
    done: Mapping[int, str] = field(default_factory=dict)
    failed: int | None = None
    error: str = ""


def picture_of_run(run: Run) -> PipelinePicture:
    """The pipeline of a run, with the number of its events at each step.

    Raises:
        InputError: The passes that are there now have another order, or are not there.
    """
    names = [str(step["pass"]) for step in run.schedule]
    reasons = [reason for step in run.schedule for reason in step["because"]]
    plan = _again(run.pipeline, str(run.options.get("order", "auto")), names, reasons)
    counts: dict[int, int] = {}
    for event in run.events:
        counts[event.step] = counts.get(event.step, 0) + 1
    done = {step.index: counted(counts.get(step.index, 0), "event") for step in plan.steps}
    title = f"{run.model['source'] or 'a model'} on {run.mesh}"
    return PipelinePicture(title, plan, done)


def picture_of_failure(value: Mapping[str, object]) -> PipelinePicture:
    """The pipeline of a run that failed, from the file that ``hpx run -o`` leaves then.

    Args:
        value: The file, ``hpx.failed/1``.

    Raises:
        InputError: It is not such a file, or the passes that are there now have another order.
    """
    try:
        steps = cast("list[dict[str, Any]]", value["schedule"])
        names = [str(step["pass"]) for step in steps]
        reasons = [str(reason) for step in steps for reason in step["because"]]
        number = int(cast(int, value["step"]))
        text, order = str(value["pipeline"]), str(value["order"])
        title, error = str(value["title"]), str(value["error"])
    except (KeyError, TypeError, ValueError) as problem:
        why = f"{type(problem).__name__}: {problem}"
        raise InputError("the file of a failed run is damaged", why=why) from None
    if not 0 < number <= len(names):
        raise InputError("the file of a failed run is damaged", why=f"it has no step {number}")
    plan = _again(text, order, names, reasons)
    done = {step.index: "done" for step in plan.steps if step.index < number}
    return PipelinePicture(title, plan, done, number, error)


def failure_to_json(
    failed: FailedStep, *, title: str, pipeline: str, order: str, error: str
) -> dict[str, object]:
    """What a failed run leaves: its order, and where and of what it failed.

    Args:
        failed: The order and the step.
        title: The model and the mesh.
        pipeline: The text form.
        order: ``auto`` or ``given``.
        error: What it failed of.
    """
    return {
        "schema": FAILED_SCHEMA,
        "title": title,
        "pipeline": pipeline,
        "order": order,
        "schedule": failed.schedule.to_json(),
        "step": failed.number,
        "error": error,
    }


def _again(text: str, order: str, names: list[str], reasons: list[str]) -> Schedule:
    """The schedule of a file with its edges, which files do not hold."""
    at_entry = {reason.removesuffix(_AT_ENTRY) for reason in reasons if reason.endswith(_AT_ENTRY)}
    try:
        plan = schedule(as_passes(text), at_entry, order="given" if order == "given" else "auto")
    except PipelineError as error:
        raise InputError("the pipeline cannot be drawn", why=str(error)) from None
    if [step.name for step in plan.steps] != names:
        raise InputError(
            "the pipeline cannot be drawn",
            why=f"its order was {', '.join(names)}, and the passes that are there now have another",
            fix=f"draw what they have now: hpx passes -p '{text}' -o ...",
        )
    return plan


def pipeline_to_dot(picture: PipelinePicture) -> str:
    """A pipeline as DOT text.

    Args:
        picture: What to draw.
    """
    import graphviz

    dot = graphviz.Digraph(
        "hpx",
        graph_attr={
            "rankdir": "TB",
            "label": _title(picture),
            "labelloc": "t",
            "labeljust": "l",
            "fontname": "Helvetica",
            "fontsize": "10",
            "nodesep": "0.3",
            "ranksep": "0.28",
            "bgcolor": "white",
        },
        node_attr={"shape": "plain", "fontname": "Helvetica", "fontsize": "10"},
        edge_attr={
            "color": "#777777",
            "arrowsize": "0.6",
            "fontname": "Helvetica",
            "fontsize": "9",
            "fontcolor": "#333333",
        },
    )
    _add_entry(dot, picture)
    places = {step.name: step.index for step in picture.plan.steps}
    for step in picture.plan.steps:
        dot.node(f"s{step.index}", label=_label(picture, step.index))
    for (first, then), reasons in _reasons(picture.plan).items():
        late = picture.failed is not None and places[then] > picture.failed
        attributes = {"color": _PALE, "fontcolor": _PALE} if late else {}
        label = "".join(f"{_plain(reason)}\\l" for reason in reasons)
        dot.edge(f"s{places[first]}", f"s{places[then]}", label=label, **attributes)
    # A step that nothing orders stands where it runs all the same.
    for step in picture.plan.steps[1:]:
        dot.edge(f"s{step.index - 1}", f"s{step.index}", style="invis", weight="8")
    text: str = dot.source
    return text


def _plain(text: str) -> str:
    """Text for an ordinary label, where a backslash has a meaning."""
    return printable(text).replace("\\", "\\\\")


def _reasons(plan: Schedule) -> dict[tuple[str, str], list[str]]:
    """The reasons of every pair of steps, those that say least first."""
    found: dict[tuple[str, str], list[str]] = {}
    for edge in plan.edges:
        whys = found.setdefault((edge.first, edge.then), [])
        # That a pass provides it stands at the edge's beginning already.
        why = edge.why.removeprefix(f"{edge.first} ")
        if why not in whys:
            whys.append(why)
    return found


def _add_entry(dot: graphviz.Digraph, picture: PipelinePicture) -> None:
    """What holds before the first step, where a step asks for it."""
    needed = {
        step.index: sorted(
            fact.name
            for fact in step.pass_.info.requires
            if fact.name in picture.plan.facts_at_entry
            and not _provided(picture.plan, step.name, fact.name)
        )
        for step in picture.plan.steps
    }
    if not any(needed.values()):
        return
    assumed = bool(picture.plan.assumed)
    word = "assumed of the model" if assumed else "the model as it came"
    facts = ", ".join(sorted({name for names in needed.values() for name in names}))
    rows = [f"<tr>{cell(f'<b>{word}</b>')}</tr>", f"<tr>{cell(small(facts))}</tr>"]
    attributes = f'border="1" color="{_LINE}" cellborder="0" cellspacing="0" style="rounded"'
    dot.node("s0", label=f"<{table(rows, attributes)}>")
    for index, names in needed.items():
        if names:
            label = f"{', '.join(names)} {'is assumed' if assumed else 'holds'}\\l"
            dot.edge("s0", f"s{index}", label=label, style="dashed")


def _provided(plan: Schedule, name: str, fact: str) -> bool:
    return any(edge.then == name and edge.why.endswith(f" provides {fact}") for edge in plan.edges)


def _title(picture: PipelinePicture) -> str:
    plan = picture.plan
    text = format_pipeline([step.pass_ for step in plan.steps])
    rows = [
        cell(f'<font point-size="16"><b>{escape(shorten(picture.title, 80))}</b></font>'),
        cell(small(f"{counted(len(plan.steps), 'step')}; an edge says why a step runs no earlier")),
    ]
    if text and len(text) <= 130:
        rows.append(cell(small(text)))
    if picture.failed is not None:
        step = plan.steps[picture.failed - 1]
        lines = [f"failed at step {step.index}, {step.name}", *picture.error.splitlines()[:_SAID]]
        text = "".join(_wrapped(shorten(line, 480), 120) for line in lines)
        rows.append(cell(text, f'border="2" color="{ALERT.hex}"'))
    rows.extend(
        cell(_wrapped(f"warning: {warning}", 120), f'border="1" color="{ALERT.hex}"')
        for warning in plan.warnings[:4]
    )
    outer = 'border="0" cellborder="0" cellspacing="2" cellpadding="1"'
    return f"<{table([f'<tr>{row}</tr>' for row in rows], outer)}>"


def _wrapped(text: str, width: int) -> str:
    lines = textwrap.wrap(text.strip(), width, break_on_hyphens=False)
    return "".join(f'{escape(line)}<br align="left"/>' for line in lines)


def _label(picture: PipelinePicture, index: int) -> str:
    """A step: its number, name and options, and what it declares."""
    step = picture.plan.steps[index - 1]
    failed = picture.failed == index
    late = picture.failed is not None and index > picture.failed
    said = "failed" if failed else "not reached" if late else picture.done.get(index, "")
    options = format_pipeline([step.pass_]).partition("{")[2]
    head = (
        f'<font color="{_PALE if late else "#000000"}">{index}  <b>{escape(step.name)}</b></font>'
    )
    if options:
        head += f"  {small('{' + shorten(options, 40))}"
    if said:
        head += f"  {small(said, ALERT.hex if failed else _PALE if late else _DONE)}"
    shaded = f'bgcolor="{_HEAD}"'
    rows = [f"<tr>{cell(head, shaded)}</tr>"]
    rows.extend(f"<tr>{cell(line)}</tr>" for line in _declared(step.pass_.info, late=late))
    color, border = (ALERT.hex, 3) if failed else (_LINE, 1)
    attributes = (
        f'border="{border}" color="{color}" cellborder="0" cellspacing="0" cellpadding="2"'
        f' bgcolor="white" tooltip="{_tooltip(step.pass_)}"'
    )
    return f"<{table(rows, attributes)}>"


def _declared(info: PassInfo, *, late: bool) -> Iterator[str]:
    """Facts; what it writes is in the tooltip."""
    for what in ("requires", "provides", "invalidates"):
        facts = sorted(map(str, getattr(info, what)))
        if facts:
            text = shorten(f"{what} {', '.join(facts)}", _WIDE)
            yield small(text, _PALE if late else GREY)


def _tooltip(pass_: Pass) -> str:
    lines = [(type(pass_).__doc__ or "").strip().partition("\n")[0]]
    lines.append(f"writes {', '.join(sorted(pass_.info.writes)) or 'nothing'}")
    return "&#10;".join(map(escape, lines))
