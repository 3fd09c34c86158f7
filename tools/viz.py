"""The command ``hpx-viz``: the picture of a model's parameters, or of what a run decided for them.

Data goes to stdout or to the file asked for, everything else to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from hpx.tools._main import run_app
from hpx.tools._streams import answering, tell

if TYPE_CHECKING:
    from hpx.graph.graph import ModuleGraph
    from hpx.render import Format, Options
    from hpx.run import Run
    from hpx.tools._progress import Progress

__all__ = ["app", "main"]

_LONGEST_HEAD: Final = 4096

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
        Literal["text", "svg", "png", "dot"] | None,
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
    depth: Annotated[int | None, typer.Option(metavar="N", help="Draw N levels.")] = None,
    root: Annotated[str | None, typer.Option(metavar="PATH", help="Begin at this module.")] = None,
    fold: Annotated[
        Literal["auto", "structure", "layout", "none"],
        typer.Option(help="What equal siblings are equal in; auto is layout."),
    ] = "auto",
    max_nodes: Annotated[int, typer.Option(metavar="N", help="Boxes and rows in a picture.")] = 200,
    direction: Annotated[
        Literal["LR", "TB"] | None,
        typer.Option("--dir", help="Left to right or top down; chosen by the shape if not given."),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="S", help="Seconds that Graphviz gets.")] = 30.0,
    rank: Annotated[
        int | None, typer.Option(metavar="R", help="What this rank holds, as index ranges.")
    ] = None,
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

    Equal layers are folded; one that differs stands out. No weight is read.

    Exit codes: 0 ok; 2 wrong use or no such file; 3 unreadable or unsupported input; 4 refused as
    unsafe; 5 Graphviz missing or failed; 6 too large or timed out.
    """
    from hpx.render import Options
    from hpx.tools._progress import Progress

    chosen = _format(output, format)
    options = Options(
        step=step,
        root=root,
        fold=fold,
        depth=depth,
        max_nodes=max_nodes,
        direction=direction,
        rank=rank,
        timeout=timeout,
        color=_wants_color(output, no_color=no_color),
    )
    import time

    started = time.perf_counter()
    with Progress(f"reading {target}", "hpx-viz", quiet=quiet) as progress:
        subject = _open(target, mesh, plan, progress)
        read = time.perf_counter()
        progress.say(f"drawing {target}")
        _write(subject, output, chosen, options)
    if output not in (None, "-") and not quiet:
        tell(f"hpx-viz: wrote {output}")
    if verbose:
        drawn = time.perf_counter()
        tell(f"hpx-viz: read in {read - started:.2f} s, drawn in {drawn - read:.2f} s")


def _format(output: str | None, given: Format | None) -> Format:
    """The format, and a refusal of what cannot be written before the work is done."""
    from hpx._files import check_writable
    from hpx.errors import UsageError
    from hpx.render import format_of

    if output in (None, "-"):
        if given == "png" and sys.stdout.isatty():
            raise UsageError("a png is nothing for a terminal", fix="give -o picture.png")
        return given or "text"
    assert output is not None
    path = Path(output)
    chosen = given or format_of(path)
    check_writable(path)
    return chosen


def _wants_color(output: str | None, *, no_color: bool) -> bool:
    if no_color or output is not None or os.environ.get("NO_COLOR"):
        return False
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _open(text: str, mesh: str | None, plan: str | None, progress: Progress) -> Run | ModuleGraph:
    """The run or model that a user named; a model with a plan becomes a run."""
    from hpx.errors import UsageError

    if _is_run(text):
        if mesh is not None or plan is not None:
            raise UsageError(
                f"{text} is a run, which has its own mesh and plan",
                fix="leave --mesh and --plan out, or give the model instead",
            )
        from hpx.run import Run

        return Run.load(text)
    if plan is None:
        if mesh is not None:
            raise UsageError("--mesh needs a plan", fix="add --plan plan.yaml")
        from hpx.graph.sources import open_model

        return open_model(text)
    from hpx.mesh import MeshSpec
    from hpx.plan import ShardingPlan

    sharding = ShardingPlan.from_file(plan)
    spec = mesh or sharding.mesh
    if spec is None:
        raise UsageError(
            "there is no mesh",
            why=f"{plan} names none",
            fix="give --mesh such as dp=4,tp=8, or write mesh: in the plan",
        )
    parsed = MeshSpec.parse(spec)
    sharding.check_mesh(parsed)
    from hpx.graph.sources import open_model
    from hpx.run import run

    return run(open_model(text), sharding, parsed, progress=progress.step)


def _is_run(text: str) -> bool:
    """Whether this is a file of JSON with the schema of a run; a config.json is JSON as well."""
    path = Path(text)
    try:
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            head = stream.read(_LONGEST_HEAD).lstrip()
        if not head.startswith(b"{"):
            return False
        if b'"hpx.run/' in head:
            return True
        if path.suffix != ".json":
            return False
        import json

        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False  # whoever opens it as a model says what is wrong
    return isinstance(value, dict) and str(value.get("schema", "")).startswith("hpx.run/")


def _write(
    subject: Run | ModuleGraph, output: str | None, chosen: Format, options: Options
) -> None:
    from hpx.render import draw, render

    if output is None or output == "-":
        data = draw(subject, chosen, options)
        with answering() as stdout:
            stdout.buffer.write(data)
        return
    from dataclasses import asdict

    render(subject, output, format=chosen, **asdict(options))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; bad input is one line on stderr."""
    return run_app(app, "hpx-viz", arguments)


if __name__ == "__main__":
    sys.exit(main())
