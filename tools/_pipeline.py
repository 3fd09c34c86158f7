"""``hpx passes -o``: the picture of a pipeline, of a saved run, or of a run that failed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from hpx.errors import HpxError, InputError, UsageError

if TYPE_CHECKING:
    from hpx.mesh import MeshSpec
    from hpx.render.picture import PictureFormat
    from hpx.render.pipeline import PipelinePicture

__all__ = ["draw", "leaving_failures"]

_FORMATS: Final = ("svg", "png", "pdf", "dot")


def _picture_format(output: str, run: str | None) -> str:
    """The format that the suffix says, before any work is done.

    Raises:
        UsageError: It says none that a pipeline is drawn in, or the place cannot be written, or is
            the file of the run.
    """
    from hpx._files import check_writable

    found = Path(output).suffix.lower().removeprefix(".")
    if found not in _FORMATS:
        raise UsageError(
            f"{output} does not say its format",
            why="the suffix does",
            fix=f"end it in {', '.join('.' + name for name in _FORMATS)}",
        )
    check_writable(Path(output), (run,))
    return found


def _picture_of_text(pipeline: str) -> PipelinePicture:
    """A pipeline given as text, with no model at hand."""
    from hpx.pipeline import as_passes, schedule
    from hpx.render.pipeline import PipelinePicture

    return PipelinePicture(f"pipeline {pipeline}", schedule(as_passes(pipeline), None))


def _picture_of_file(path: str) -> PipelinePicture:
    """A saved run, or what a failed one left.

    Raises:
        InputError: It is neither.
    """
    from hpx._files import read_text
    from hpx.render.pipeline import FAILED_SCHEMA, picture_of_failure, picture_of_run
    from hpx.run import Run

    try:
        value = json.loads(read_text(Path(path)))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a saved run", why=f"it is not JSON: {error}") from None
    if isinstance(value, dict) and value.get("schema") == FAILED_SCHEMA:
        return picture_of_failure(value)
    return picture_of_run(Run.load(path))


def _write(picture: PipelinePicture, output: str, chosen: str) -> None:
    """Draw it.

    Raises:
        RenderError: There is no Graphviz, or it failed.
        TooLargeError: It took too long; the DOT text is kept beside ``output``.
    """
    from hpx._files import write_bytes
    from hpx.errors import TooLargeError
    from hpx.render.picture import draw_dot, keep_dot
    from hpx.render.pipeline import pipeline_to_dot

    dot = pipeline_to_dot(picture)
    place = Path(output)
    if chosen == "dot":
        write_bytes(place, dot.encode())
        return
    try:
        write_bytes(place, draw_dot(dot, cast("PictureFormat", chosen)))
    except TooLargeError as error:
        keep_dot(dot, place, error)
        raise


def draw(run: str | None, pipeline: str | None, output: str) -> None:
    """Draw a pipeline given as text, or that of a run; with neither, that of ``hpx run``.

    Args:
        run: A saved run, or what a failed one left.
        pipeline: The text form.
        output: Where to; the suffix says the format.

    Raises:
        UsageError: The place or its suffix is wrong.
        InputError: The file is not a run.
        RenderError: There is no Graphviz, or it failed.
        TooLargeError: It took too long; the DOT text is kept beside ``output``.
    """
    chosen = _picture_format(output, run)
    if run is not None and pipeline is None:
        picture = _picture_of_file(run)
    else:
        picture = _picture_of_text("@default" if pipeline is None else pipeline)
    _write(picture, output, chosen)


@contextmanager
def leaving_failures(
    output: str | None, model: str, mesh: MeshSpec, pipeline: str, order: str
) -> Iterator[None]:
    """Leave a file that ``hpx passes`` draws, if a step of the run inside fails.

    Args:
        output: Where the run was to be saved; nothing is left if it was not.
        model: What is run.
        mesh: The mesh.
        pipeline: The text form.
        order: ``auto`` or ``given``.
    """
    try:
        yield
    except HpxError as error:
        from hpx.pipeline.manager import failed_step

        failed = failed_step(error)
        if failed is not None and output is not None:
            from hpx._files import write_text
            from hpx.render.pipeline import failure_to_json
            from hpx.tools._streams import tell

            value = failure_to_json(
                failed, title=f"{model} on {mesh}", pipeline=pipeline, order=order, error=str(error)
            )
            place = write_text(Path(output).with_suffix(".failed.json"), json.dumps(value) + "\n")
            tell(f"hpx: step {failed.number} failed; to see where: hpx passes {place} -o F.svg")
        raise
