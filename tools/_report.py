"""What ``hpx run`` prints: problems, model, schedule, layouts, uneven pieces and the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from hpx._text import bytes_text, counted, reasons_text, shape_text
from hpx.explain_text import event_line
from hpx.holding import uneven
from hpx.lookup import Names
from hpx.params import Param
from hpx.pipeline.context import Problem
from hpx.provenance import Event
from hpx.ranges import fold_names
from hpx.run import Run
from hpx.tools._folding import Folded, fold_params
from hpx.tools._tables import Block, Table

__all__ = [
    "layout_table",
    "lines_of_problems",
    "problem_as_json",
    "problem_lines",
    "problem_to_json",
    "run_report",
    "uneven_lines",
]

_MAX_NAMES = 6
_HEADINGS = (
    *("parameters", "count", "shape", "dtype", "layout", "mesh"),
    *("local shape", "bytes/rank", "rule"),
)


def run_report(run: Run, *, verbose: bool) -> list[Block]:
    """The whole report, problems first."""
    blocks: list[Block] = []
    if run.problems:
        blocks += [f"problems ({len(run.problems)})", *problem_lines(run), ""]
    blocks += _summary(run)
    blocks += ["", "schedule"]
    blocks.append(
        Table(
            ("step", "pass", "because"),
            tuple(
                (str(step["step"]), str(step["pass"]), reasons_text(step["because"]))
                for step in run.schedule
            ),
            frozenset(["step"]),
        )
    )
    rows = fold_params(run.params)
    dtype = same_dtype(rows)
    blocks += ["", f"layouts, all {dtype}" if dtype else "layouts", layout_table(rows)]
    lines = list(uneven_lines(run))
    if lines:
        blocks += ["", "uneven", *lines]
    blocks += ["", *_log_summary(run)]
    if verbose:
        names = Names(run)
        for event in run.events:
            blocks.append(f"  {event.seq} {event_line(event, names)}")
            blocks += (f"      {line}" for line in _nodes_lines(event, names))
    return blocks


def _nodes_lines(event: Event, names: Names) -> Iterator[str]:
    """The nodes of an event by their names, as many lines as their folded names need."""
    folded = fold_names(names.path(node) or "the model" for node in event.nodes)
    yield from folded[:_MAX_NAMES]
    if len(folded) > _MAX_NAMES:
        yield f"and {counted(len(folded) - _MAX_NAMES, 'more line')}; --json has them all"


def problem_lines(run: Run, problems: Sequence[Problem] | None = None) -> Iterator[str]:
    """Problems, errors before warnings, each with its names and its hint; by default the run's."""
    found = run.problems if problems is None else problems
    yield from lines_of_problems(found, Names(run).path if found else str)


def lines_of_problems(problems: Sequence[Problem], path: Callable[[int], str]) -> Iterator[str]:
    """The same for nodes whose names ``path`` tells."""
    order = ("error", "warning", "info")
    for problem in sorted(problems, key=lambda problem: order.index(problem.level)):
        yield f"  {problem.level}: {problem.text}"
        names = fold_names(map(path, problem.nodes))
        named = [name for name in names[:_MAX_NAMES] if name and name not in problem.text]
        if named:
            more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
            yield f"    at {', '.join(named)}{more}"
        if problem.hint:
            yield f"    hint: {problem.hint}"


def problem_to_json(run: Run, problem: Problem) -> dict[str, object]:
    """``{level, check, text, hint, names, numbers}``."""
    return problem_as_json(problem, Names(run).path if problem.nodes else str)


def problem_as_json(problem: Problem, path: Callable[[int], str]) -> dict[str, object]:
    """The same for nodes whose names ``path`` tells."""
    return {
        "level": problem.level,
        "check": problem.check,
        "text": problem.text,
        "hint": problem.hint,
        "names": fold_names(map(path, problem.nodes)),
        "numbers": dict(problem.numbers),
    }


def _summary(run: Run) -> Iterator[str]:
    model = run.model
    held = sum(param.local_bytes for param in run.params)
    experts = sum(param.local_bytes for param in run.params if param.mesh == "expert")
    of = f" ({bytes_text(experts)} of it experts)" if experts else ""
    expert = f", expert mesh {run.mesh.expert}" if run.mesh.expert else ""
    tensors = counted(len(run.params), "parameter")
    at_first = counted(int(model["num_parameters"]), "parameter")
    yield (
        f"model     {model['source'] or '(from Python)'}: {at_first}, "
        f"{int(model['num_elements']):,} elements, {bytes_text(int(model['bytes']))}"
    )
    yield f"mesh      {run.mesh}: {counted(run.mesh.world_size, 'rank')}{expert}"
    yield f"plan      {run.plan.file or '(from Python)'}: {counted(len(run.plan.params), 'rule')}"
    yield f"pipeline  {run.pipeline or '(empty)'}"
    yield f"result    {tensors}; rank 0 holds {bytes_text(held)}{of}, and no rank more"


def layout_table(rows: Sequence[Folded], *, full: bool = False) -> Table:
    """Parameters with shape, layout, what a rank holds and the rule that decided.

    Args:
        rows: The parameters.
        full: With the patterns of the rules, and with the dtype even if all have the same.
    """
    cells = tuple(_layout_row(row, full=full) for row in rows)
    table = Table(_HEADINGS, cells, frozenset(["count", "bytes/rank"]))
    return table if full or not same_dtype(rows) else table.without("dtype")


def same_dtype(rows: Sequence[Folded]) -> str | None:
    """The dtype of all parameters, if all are trained and have one."""
    found = {_dtype_text(row.first) for row in rows}
    return found.pop() if len(found) == 1 else None


def _dtype_text(param: Param) -> str:
    return param.dtype if param.requires_grad else f"{param.dtype}, frozen"


def _layout_row(row: Folded, *, full: bool) -> tuple[str, ...]:
    param = row.first
    rule = "-"
    if param.rule is not None:
        source = param.rule.source
        who = f" ({source})" if source != "user" else ""
        pattern = f" {param.rule.pattern!r}" if full and source != "default" else ""
        place = param.rule.where.rpartition("/")[2]
        rule = f"{place}{pattern}{who}"
    return (
        row.name,
        str(row.count),
        shape_text(param.shape),
        _dtype_text(param),
        "-" if param.layout is None else str(param.layout),
        param.mesh or "-",
        shape_text(param.local_shape),
        bytes_text(param.local_bytes * row.count),
        rule,
    )


def uneven_lines(run: Run) -> Iterator[str]:
    """Parameters whose pieces differ in size, with every size and the empty ranks."""
    for row in fold_params(param for param in run.params if param.layout is not None):
        found = uneven(row.first, run.mesh)
        if found is not None:
            yield f"  {row.name} {shape_text(row.first.shape)}, {found}"


def _log_summary(run: Run) -> Iterator[str]:
    total = sum(timing.seconds for timing in run.timings)
    yield f"log: {counted(len(run.events), 'event')} in {total:.2f} s"
    for timing in run.timings:
        kinds = Counter(event.kind for event in run.events if event.step == timing.step)
        counts = ", ".join(f"{number:,} {kind}" for kind, number in kinds.items())
        yield (
            f"  {timing.step} {timing.name}: {counts}; {counted(timing.nodes, 'node')}, "
            f"{timing.seconds:.3f} s"
        )
