"""The command ``hpx-viz``: the picture of a model's parameters, or of what a run decided for them.

Data goes to stdout or to the file asked for, everything else to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, cast

import typer

from hpx.tools._main import run_app
from hpx.tools._streams import answering, tell

if TYPE_CHECKING:
    from hpx.graph.graph import ModuleGraph
    from hpx.render import Format, Options
    from hpx.render.conditions import Condition
    from hpx.render.options import Column, Only
    from hpx.run import Run

__all__ = ["app", "main"]

_FOUND: Final = 1
_BINARY: Final = ("png", "pdf")

app = typer.Typer(
    name="hpx-viz",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        from hpx import __version__

        print(f"hpx-viz {__version__}")
        raise typer.Exit


@app.command()
def viz(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|RUN",
            help="A checkpoint, a config.json or package.module:factory; or a saved run.",
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="OUT", help="The format follows the suffix; - is stdout."
        ),
    ] = None,
    format: Annotated[  # noqa: A002 - the option's name
        Literal["text", "json", "html", "svg", "png", "pdf", "dot"] | None,
        typer.Option("--format", "-f", help="Text on stdout if neither -f nor -o is given."),
    ] = None,
    mesh: Annotated[
        str | None, typer.Option(metavar="AXES", help="With --plan: such as dp=4,tp=8,ep=16.")
    ] = None,
    plan: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw what this plan makes of a model.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(metavar="N", help="The graph after step N; 0: as it came.")
    ] = None,
    focus: Annotated[
        list[str] | None,
        typer.Option(metavar="P", help="Show only what pattern P matches; may be repeated."),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="P", help="Leave out what pattern P matches; may be repeated."),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="KINDS",
            help="Show only unsharded, replicated, unset, conflict, tied, experts or changed.",
        ),
    ] = None,
    depth: Annotated[int | None, typer.Option(metavar="N", help="Draw N levels.")] = None,
    root: Annotated[str | None, typer.Option(metavar="PATH", help="Begin at this module.")] = None,
    fold: Annotated[
        Literal["auto", "structure", "layout", "none"],
        typer.Option(help="What equal siblings are equal in; auto is layout."),
    ] = "auto",
    expand: Annotated[
        list[str] | None,
        typer.Option(metavar="P", help="Do not fold the siblings that pattern P matches."),
    ] = None,
    axis: Annotated[
        str | None, typer.Option(metavar="NAME", help="Colour the cuts of this mesh axis alone.")
    ] = None,
    color_by: Annotated[
        Literal["layout", "pass", "dtype", "bytes"], typer.Option(help="What colours tell.")
    ] = "layout",
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Of text: name,shape,dtype,layout,local_shape,bytes,pass."
        ),
    ] = None,
    sort: Annotated[
        Literal["tree", "bytes", "name"], typer.Option(help="The order of siblings.")
    ] = "tree",
    rank: Annotated[
        int | None, typer.Option(metavar="R", help="What this rank holds, as index ranges.")
    ] = None,
    diff: Annotated[
        str | None,
        typer.Option(metavar="OTHER", help="What OTHER, a model or run, adds, removes, changes."),
    ] = None,
    dataflow: Annotated[
        bool, typer.Option("--dataflow", help="Trace a model, and draw what flows where.")
    ] = False,
    max_nodes: Annotated[int, typer.Option(metavar="N", help="Boxes and rows in a picture.")] = 200,
    direction: Annotated[
        Literal["LR", "TB"] | None,
        typer.Option("--dir", help="Left to right or top down; chosen by the shape if not given."),
    ] = None,
    engine: Annotated[
        Literal["auto", "dot", "builtin"],
        typer.Option(help="Who lays pictures out: Graphviz, or the outline that is built in."),
    ] = "auto",
    timeout: Annotated[float, typer.Option(metavar="S", help="Seconds that Graphviz gets.")] = 30.0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a pickle that names foreign code.")
    ] = False,
    trust_pickle: Annotated[
        bool, typer.Option("--trust-pickle", help="Load a pickled module for real: runs its code.")
    ] = False,
    fail_on: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT", help="Exit 1 if there is any: unset,conflict,unsharded>5%, ..."
        ),
    ] = None,
    opens: Annotated[
        bool, typer.Option("--open", help="Open the file that was written, in a browser.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say what was drawn, and how long it took.")
    ] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="Plain text.")] = False,
    version: Annotated[  # noqa: ARG001 - its callback does it all
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Draw the parameters of a model, or what a run decided for them.

    Equal layers are folded; one that differs stands out. No weight is read, and no code of a file
    is run. Patterns are those of plan files.

    Exit codes: 0 ok; 1 --fail-on or --diff found something (the output is written); 2 wrong use or
    no such file; 3 unreadable or unsupported input; 4 refused as unsafe; 5 renderer missing or
    failed; 6 too large or timed out.
    """
    import time
    from dataclasses import replace

    from hpx.render import Options
    from hpx.render.conditions import parse_conditions
    from hpx.render.options import COLUMNS
    from hpx.tools._progress import Progress
    from hpx.tools._viz_open import open_other, open_target

    chosen = _format(output, format, (target, plan, diff), opens=opens)
    conditions = parse_conditions(fail_on)
    options = Options(
        step=step,
        root=root,
        focus=tuple(focus or ()),
        ignore=tuple(ignore or ()),
        only=cast("tuple[Only, ...]", _words(only)),
        expand=tuple(expand or ()),
        fold=fold,
        depth=depth,
        max_nodes=max_nodes,
        direction=direction,
        axis=axis,
        color_by=color_by,
        columns=cast("tuple[Column, ...]", _words(columns)) if columns is not None else COLUMNS,
        sort=sort,
        dataflow=dataflow,
        rank=rank,
        engine=engine,
        timeout=timeout,
        color=_wants_color(output, no_color=no_color),
    )
    started = time.perf_counter()
    with Progress(f"reading {target}", "hpx-viz", quiet=quiet) as progress:
        opened = open_target(
            target,
            mesh,
            plan,
            progress,
            strict=strict,
            trust_pickle=trust_pickle,
            dataflow=dataflow,
        )
        if diff is not None:
            progress.say(f"reading {diff}")
            other = open_other(diff, strict=strict, trust_pickle=trust_pickle)
            options = replace(options, against=other)
            _report_foreign(other, diff, quiet=quiet)
        _report_foreign(opened, target, quiet=quiet)
        read = time.perf_counter()
        progress.say(f"drawing {target}")
        found = _draw(opened, output, chosen, options, conditions)
    if output not in (None, "-") and not quiet:
        tell(f"hpx-viz: wrote {output}")
    if verbose:
        drawn = time.perf_counter()
        tell(f"hpx-viz: read in {read - started:.2f} s, drawn in {drawn - read:.2f} s")
    if opens and output is not None:
        typer.launch(Path(output).resolve().as_uri())
    for line in found:
        tell(f"hpx-viz: {line}")
    if found:
        raise typer.Exit(_FOUND)


def _format(
    output: str | None, given: Format | None, inputs: tuple[str | None, ...], *, opens: bool
) -> Format:
    """The format, and a refusal of what cannot be written before the work is done."""
    from hpx._files import check_writable
    from hpx.errors import UsageError
    from hpx.render import format_of

    if output is None or output == "-":
        if opens:
            raise UsageError("--open needs a file", fix="add -o picture.html")
        if given in _BINARY and sys.stdout.isatty():
            raise UsageError(f"a {given} is nothing for a terminal", fix=f"give -o picture.{given}")
        return given or "text"
    path = Path(output)
    chosen = given or format_of(path)
    check_writable(path, inputs)
    return chosen


def _words(text: str | None) -> tuple[str, ...]:
    """The words of a list with commas."""
    return () if text is None else tuple(word.strip() for word in text.split(","))


def _wants_color(output: str | None, *, no_color: bool) -> bool:
    if no_color or output is not None or os.environ.get("NO_COLOR"):
        return False
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _report_foreign(opened: Run | ModuleGraph, target: str, *, quiet: bool) -> None:
    """Say that a file holds names which could run code, whatever is drawn of it."""
    from hpx.graph.graph import ModuleGraph
    from hpx.render.of_file import foreign_text

    text = foreign_text(opened if isinstance(opened, ModuleGraph) else opened.graph)
    if text and not quiet:
        tell(f"hpx-viz: warning: {target}: {text}; nothing of it was run")


def _draw(
    opened: Run | ModuleGraph,
    output: str | None,
    chosen: Format,
    options: Options,
    conditions: tuple[Condition, ...],
) -> list[str]:
    """Write the output; what --fail-on and --diff found, one line each."""
    from hpx.render import draw, save
    from hpx.render.conditions import failing
    from hpx.render.more import compared_text
    from hpx.render.prepare import only, without_only

    whole = without_only(opened, options)
    found = [f"--fail-on: {line}" for line in failing(whole, conditions)]
    if whole.diff:
        found.append(f"--diff: {whole.source}: {compared_text(whole)}")
    subject = only(whole, options)
    if output is None or output == "-":
        data = draw(subject, chosen, options)
        with answering() as stdout:
            stdout.buffer.write(data)
    else:
        save(subject, Path(output), chosen, options)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; bad input is one line on stderr."""
    return run_app(app, "hpx-viz", arguments)


if __name__ == "__main__":
    sys.exit(main())
