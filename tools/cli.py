"""The command ``hpx``: run a plan, explain, compare, list passes, derive a plan, check numbers.

Data goes to stdout and everything else to stderr. Nothing heavy is imported before a command needs
it: torch for reading a model, networkx for an order, rich for a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import typer

from hpx.tools._arguments import (
    Json,
    Mesh,
    Model,
    PipelineText,
    RunFile,
    check_writable,
    request_of,
    wrote,
)
from hpx.tools._main import run_app
from hpx.tools._streams import tell

__all__ = ["app", "main"]

_FOUND: Final = 1

app = typer.Typer(
    name="hpx",
    help="Prepare a PyTorch model for parallel training, and explain every layout.\n\n"
    "MODEL is a .safetensors, .pt, .pth or .bin file, a checkpoint folder, a Hugging Face "
    "config.json, or package.module:factory. Weights are never read.\n\n"
    "Exit codes: 0 ok; 1 a check or diff found something; 2 wrong use, no such file, bad plan or "
    "pipeline; 3 unreadable or unsupported input; 4 refused as unsafe; 5 Graphviz missing or "
    "failed; 6 too large or timed out.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        from hpx import __version__

        print(f"hpx {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None: ...


@app.command("run", short_help="Work out a plan on a model: layouts, bytes a rank, problems.")
def run_command(
    model: Model,
    plan: Annotated[str, typer.Option(metavar="FILE", help="The plan, a YAML file.")],
    mesh: Mesh = None,
    pipeline: PipelineText = "@default",
    order: Annotated[
        Literal["auto", "given"],
        typer.Option(help="auto sorts the passes; given only checks the order as listed."),
    ] = "auto",
    dataflow: Annotated[
        bool,
        typer.Option(
            "--dataflow", help="Trace the model, and check what flows into each boundary."
        ),
    ] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Save the run as JSON.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print every event of the log.")
    ] = False,
    json: Json = False,
) -> None:
    """Work out a plan on a model: schedule, layouts, bytes per rank, problems, log.

    This is a dry run: no weight is read and no tensor is touched.
    """
    check_writable(output, model, plan)
    sharding, spec = request_of(plan, mesh)
    from hpx.pipeline.textform import as_passes, format_pipeline

    passes = as_passes(pipeline)

    from hpx.tools._pipeline import leaving_failures
    from hpx.tools._progress import Progress

    with Progress(f"reading {model}") as progress:
        from hpx.graph.sources import open_model
        from hpx.run import run
        from hpx.tools._flow import open_traced

        graph = open_traced(model, progress) if dataflow else open_model(model)
        with leaving_failures(output, model, spec, format_pipeline(passes), order):
            done = run(graph, sharding, spec, passes, order=order, progress=progress.step)
        progress.say("writing")
        if output is not None:
            done.save(output)
    from hpx.tools._tables import emit_json, emit_report

    if json:
        emit_json(done.to_json())
    else:
        from hpx.tools._report import run_report

        emit_report(run_report(done, verbose=verbose))
    wrote(output)
    if any(problem.level == "error" for problem in done.problems):
        raise typer.Exit(_FOUND)


@app.command("explain", short_help="Explain one name: what each pass did to it, and why.")
def explain_command(
    run: RunFile,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A parameter, buffer, module or module.attribute, by any name it has or had.",
        ),
    ],
    why_not: Annotated[
        str | None,
        typer.Option("--why-not", metavar="PASS", help="Ask why this pass did nothing to it."),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(metavar="R", help="Say exactly what this global rank holds.")
    ] = None,
    json: Json = False,
) -> None:
    """Explain one name: where it comes from, what each pass did and why, what a rank holds."""
    from hpx.errors import UsageError
    from hpx.run import Run
    from hpx.tools._tables import emit_json, emit_text

    if why_not is not None and rank is not None:
        raise UsageError("--why-not and --rank ask different things", fix="give one of them")
    loaded = Run.load(run)
    answer = loaded.explain(name, rank=rank) if why_not is None else loaded.why_not(name, why_not)
    if json:
        emit_json(answer.to_json())
    else:
        emit_text(str(answer))


@app.command("diff", short_help="Compare two runs by parameter; 1 if they differ.")
def diff_command(
    run_a: Annotated[str, typer.Argument(metavar="RUN_A", help="The old run.")],
    run_b: Annotated[str, typer.Argument(metavar="RUN_B", help="The new run.")],
    json: Json = False,
) -> None:
    """Compare two runs by parameter; exits with 1 if they differ."""
    from hpx.run import Run
    from hpx.tools._progress import Progress
    from hpx.tools._tables import emit_json, emit_text

    with Progress("comparing"):
        diff = Run.load(run_a).diff(Run.load(run_b))
        text = "" if json else str(diff)
    if json:
        emit_json(diff.to_json())
    else:
        emit_text(text)
    if diff:
        raise typer.Exit(_FOUND)


@app.command("passes", short_help="List the passes, or show the order of a pipeline.")
def passes_command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|RUN",
            help="Tell all about this pass; or, with -o, draw the pipeline of a saved run.",
        ),
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option("--pipeline", "-p", metavar="TEXT", help="Show the order of this pipeline."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Draw the pipeline: passes, facts, and why each runs no earlier. .svg, .png, .pdf "
            "or .dot.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List the passes; tell about one; or show the order that a pipeline gets, and why.

    With -o it is drawn: @default, if neither a run nor a text is given. A run that fails leaves
    RUN.failed.json beside where it was to be saved; drawn, that shows the step that failed.
    """
    from hpx.errors import UsageError
    from hpx.tools import _passes
    from hpx.tools._tables import emit_json, emit_report

    if name is not None and pipeline is not None:
        raise UsageError("NAME and --pipeline ask different things", fix="give one of them")
    if output is not None:
        from hpx.tools import _pipeline

        _pipeline.draw(name, pipeline, output)
        wrote(output)
    elif pipeline is not None:
        from hpx.pipeline import as_passes, format_pipeline, schedule

        passes = as_passes(pipeline)
        plan, text = schedule(passes, None), format_pipeline(passes)
        if json:
            emit_json(_passes.schedule_to_json(plan, text))
        else:
            emit_report(_passes.schedule_report(plan, text))
    elif name is not None:
        _passes.check_is_name(name)
        if json:
            emit_json(_passes.pass_to_json(name))
        else:
            emit_report(_passes.describe_pass(name))
    else:
        found, clashes = _passes.known_passes()
        if json:
            emit_json(_passes.passes_to_json(found))
        else:
            emit_report(_passes.list_passes(found))
        for clash in clashes:
            tell(f"hpx: error: {clash}")
        if clashes:
            raise typer.Exit(clashes[0].exit_code)


@app.command("plan", short_help="Derive a plan from a model, or check one.")
def plan_command(
    model: Model,
    mesh: Mesh = None,
    check: Annotated[
        str | None, typer.Option(metavar="FILE", help="The plan to check, a YAML file.")
    ] = None,
    from_tp_plan: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|MODEL",
            help="Translate a plan of module names and styles (JSON or YAML), or the one that a "
            "transformers model ships, instead of deriving one.",
        ),
    ] = None,
    pipeline: PipelineText = "@default",
    pattern: Annotated[
        str | None,
        typer.Option("--filter", metavar="PATTERN", help="Only parameters that it matches."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="One row for each parameter, nothing folded.")
    ] = False,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the plan, or the table."),
    ] = None,
    prove: Annotated[
        bool,
        typer.Option(
            "--prove/--no-prove",
            help="With --check, run each distinct region on fake tensors with the shapes of one "
            "rank, where MODEL has code.",
        ),
    ] = True,
    json: Json = False,
) -> None:
    """Derive a plan: a file with a rule and a reason for every parameter, to edit and run.

    With --check: a table of what a plan decides for all parameters, what is wrong with it, and
    where it differs from the derived one. Exits with 1 if there are problems; the table is written
    all the same.
    """
    from hpx.errors import UsageError
    from hpx.tools import _plan

    if check is None and (pattern is not None or every):
        raise UsageError("--filter and --all are for the table", fix="give --check plan.yaml")
    if check is not None and from_tp_plan is not None:
        raise UsageError("--check and --from-tp-plan ask different things", fix="give one of them")
    check_writable(output, model, check, from_tp_plan)
    if check is None:
        _plan.write(model, mesh, from_tp_plan, output, json=json)
    else:
        request = request_of(check, mesh)
        passed = _plan.check(
            model, request, pipeline, pattern, output, every=every, json=json, prove=prove
        )
        if not passed:
            raise typer.Exit(_FOUND)


@app.command("check", short_help="Run a model sharded and unsharded on local processes; compare.")
def check_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A Hugging Face config.json, or package.module:factory, which returns a model or "
            "(model, example inputs, loss function).",
        ),
    ],
    mesh: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXES", help="Such as dp=2,tp=2; once more for another. Its ranks run here."
        ),
    ] = None,
    plan: Annotated[
        str | None, typer.Option(metavar="FILE", help="The plan; derived if not given.")
    ] = None,
    pipeline: PipelineText = "@run",
    shrink: Annotated[
        bool | None,
        typer.Option(
            "--shrink/--no-shrink",
            help="Make a configuration small, keeping its structure; yes if not given.",
        ),
    ] = None,
    attention: Annotated[
        Literal["eager", "sdpa"] | None,
        typer.Option("--attn", help="The attention of a transformers model."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(metavar="X", help="The limit of max|a-b| / max|b|, for each tensor.")
    ] = 1e-9,
    steps: Annotated[int, typer.Option(metavar="N", help="Steps of AdamW.")] = 1,
    timeout: Annotated[float, typer.Option(metavar="S", help="Seconds for all of it.")] = 300.0,
    dry: Annotated[
        bool, typer.Option("--dry", help="Start no process: validate declarations on DTensors.")
    ] = False,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Save the report as JSON."),
    ] = None,
    json: Json = False,
) -> None:
    """Run a model unsharded and sharded on local processes, in float64, and compare.

    Outputs, loss, every gradient and the parameters after a step of AdamW have to be equal. On a
    difference the first module that differs is named, forward or backward, with the decisions that
    led to it, and the exit code is 1. Weights are random; nothing is fetched.
    """
    check_writable(output, model, plan)
    from hpx.pipeline.textform import as_passes
    from hpx.tools import _numeric

    as_passes(pipeline)
    equal = _numeric.check(
        model,
        mesh or [],
        plan,
        pipeline,
        output,
        shrink=shrink,
        attention=attention,
        tolerance=tolerance,
        steps=steps,
        timeout=timeout,
        dry=dry,
        json=json,
    )
    if not equal:
        raise typer.Exit(_FOUND)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; bad input is one line on stderr."""
    return run_app(app, "hpx", arguments)


if __name__ == "__main__":
    sys.exit(main())
