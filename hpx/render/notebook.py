"""What notebooks show of a graph, a run and a comparison: small fragments of html.

Foreign text is escaped. A display must not be what ends a cell: whatever goes wrong in drawing is
told in its place.
"""

from __future__ import annotations

import functools
import html
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, ParamSpec

from hpx._text import printable

if TYPE_CHECKING:
    from hpx.diff import Change, Diff
    from hpx.graph.graph import ModuleGraph
    from hpx.run import Run

__all__ = ["html_of_diff", "html_of_graph", "html_of_run"]

_Asked = ParamSpec("_Asked")
_SECONDS: Final = 10.0
_MOST_CHANGES: Final = 50
_MOST_NAMES: Final = 6
_CELL: Final = 'style="text-align:left;vertical-align:top"'


def _escape(text: str) -> str:
    return html.escape(printable(text))


def _never_raising(make: Callable[_Asked, str]) -> Callable[_Asked, str]:
    @functools.wraps(make)
    def safe(*args: _Asked.args, **options: _Asked.kwargs) -> str:
        try:
            return make(*args, **options)
        except Exception as error:  # noqa: BLE001 - see the docstring of this module
            return f"<pre>{_escape(f'not drawn: {type(error).__name__}: {error}')}</pre>"

    return safe


@_never_raising
def html_of_graph(graph: ModuleGraph) -> str:
    """The folded picture of a graph."""
    return _svg_of(graph)


@_never_raising
def html_of_run(run: Run) -> str:
    """The folded picture of a run, which has mesh, problems and legend in it."""
    return _svg_of(run)


@_never_raising
def html_of_diff(diff: Diff) -> str:
    """What differs, as a table; equal changes of many parameters are one row."""
    if not diff:
        return "<p>no difference</p>"
    rows = [f"<tr>{_cells('<b>what</b>', '<b>names</b>', '<b>change</b>', '<b>why</b>')}</tr>"]
    for name, old, new in diff.header:
        change = f"{_escape(old)} &#8594; {_escape(new)}"
        rows.append(f"<tr>{_cells(_escape(name), '', change, '')}</tr>")
    rows.extend(f"<tr>{_cells(*_change(change))}</tr>" for change in diff.changes[:_MOST_CHANGES])
    more = len(diff.changes) - _MOST_CHANGES
    note = f"<p>and {more:,} more; print the comparison to see all</p>" if more > 0 else ""
    return f"<table>{''.join(rows)}</table>{note}"


def _cells(*texts: str) -> str:
    return "".join(f"<td {_CELL}>{text}</td>" for text in texts)


def _change(change: Change) -> Iterator[str]:
    from hpx.ranges import fold_names

    yield _escape(change.what)
    names = fold_names(change.names)
    shown = "<br/>".join(map(_escape, names[:_MOST_NAMES]))
    more = f"<br/>and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    yield f"{shown}{more}<br/><small>{len(change.names):,} in all</small>"
    fields = (
        f"{_escape(f.field)}: {_escape(f.old)} &#8594; {_escape(f.new)}" for f in change.fields
    )
    yield "<br/>".join(fields) or _escape(change.value)
    whys = [f"a: {why}" for why in change.why_old] + [f"b: {why}" for why in change.why_new]
    yield f"<small>{'<br/>'.join(map(_escape, whys))}</small>"


def _svg_of(target: Run | ModuleGraph) -> str:
    """An svg element: by Graphviz where it is there and in time, else the outline."""
    from hpx.errors import RenderError, TooLargeError
    from hpx.render import Options, draw
    from hpx.render.picture import has_graphviz

    if has_graphviz():
        try:
            return _element(draw(target, "svg", Options(timeout=_SECONDS)))
        except (RenderError, TooLargeError):
            pass  # the outline says the same
    return _element(draw(target, "svg", Options(engine="builtin")))


def _element(data: bytes) -> str:
    """The element alone: no declaration, which html has no place for."""
    svg = data.decode()
    svg = svg[svg.index("<svg") :]
    return f'<div style="overflow-x:auto">{svg}</div>'
