"""Draw DOT text through Graphviz, in a child process with a time limit.

A ``dot`` on PATH is used when there is one, else the libraries that pygraphviz brings. Whatever
goes wrong in there (a crash, no end) happens to the child.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from typing import Final, Literal, TypeAlias

from hpx.errors import RenderError, TooLargeError

__all__ = ["PictureFormat", "draw_dot"]

PictureFormat: TypeAlias = Literal["svg", "png", "pdf"]

_CHILD: Final = """\
import sys
import pygraphviz
graph = pygraphviz.AGraph(string=sys.stdin.buffer.read().decode())
sys.stdout.buffer.write(graph.draw(format=sys.argv[1], prog="dot", args=" ".join(sys.argv[2:])))
"""
_OPTIONS: Final[dict[PictureFormat, list[str]]] = {"svg": [], "pdf": [], "png": ["-Gdpi=110"]}
_BAR: Final = "install pygraphviz (pip install pygraphviz), or Graphviz; -f dot needs neither"


def draw_dot(dot: str, format: PictureFormat, *, timeout: float = 30.0) -> bytes:  # noqa: A002 - the word of the command line
    """The picture of some DOT text.

    Args:
        dot: The text.
        format: ``svg``, ``png`` or ``pdf``.
        timeout: Seconds; the child is ended when they are over.

    Raises:
        RenderError: There is no Graphviz, or it failed.
        TooLargeError: It took too long, or the picture is over the limit of its format.
    """
    try:
        done = subprocess.run(  # waits, and kills the child when the time is over
            [*_command(), *_arguments(format)],
            input=dot.encode(),
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TooLargeError(
            f"the picture was not ready after {timeout:g} s",
            why=f"Graphviz was laying out {len(dot):,} characters of DOT",
            fix="draw less (--depth, --root, --max-nodes), or allow more (--timeout)",
        ) from None
    except OSError as error:
        raise RenderError("Graphviz does not start", why=error.strerror, fix=_BAR) from None
    complaint = done.stderr.decode(errors="replace")
    if "too large" in complaint:
        raise TooLargeError(
            f"the picture is too large for {format}",
            why=_last_line(complaint),
            fix="write svg, or draw less (--depth, --root, --max-nodes)",
        )
    if done.returncode != 0 or not done.stdout:
        raise RenderError(
            "Graphviz failed",
            why=_last_line(complaint) or f"exit status {done.returncode}",
            fix=_BAR,
        )
    return done.stdout


def _command() -> list[str]:
    program = shutil.which("dot")
    if program is not None:
        return [program]
    if importlib.util.find_spec("pygraphviz") is None:
        raise RenderError(
            "there is no Graphviz", why="no dot on PATH and no pygraphviz installed", fix=_BAR
        )
    # -P: a folder that happens to be the current one is no place to import from.
    return [sys.executable, "-P", "-c", _CHILD]


def _arguments(picture_format: PictureFormat) -> list[str]:
    options = _OPTIONS[picture_format]
    if shutil.which("dot") is not None:
        return [f"-T{picture_format}", *options]
    return [picture_format, *options]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
