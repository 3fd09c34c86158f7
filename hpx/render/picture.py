"""Draw DOT text through Graphviz, in a child process with a time limit.

A ``dot`` on PATH is used when there is one, else the libraries that pygraphviz brings. Whatever
goes wrong in there (a crash, rubbish, no end) happens to the child, and it ends with all that it
started.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Literal, NoReturn, TypeAlias

from hpx._files import write_bytes
from hpx.errors import RenderError, TooLargeError
from hpx.render.tooltips import with_titles

__all__ = ["PictureFormat", "draw_dot", "has_graphviz", "keep_dot"]

PictureFormat: TypeAlias = Literal["svg", "png", "pdf"]

_CHILD: Final = """\
import sys
import pygraphviz
graph = pygraphviz.AGraph(string=sys.stdin.buffer.read().decode())
sys.stdout.buffer.write(graph.draw(format=sys.argv[1], prog="dot", args=" ".join(sys.argv[2:])))
"""
_DPI: Final = 110
_OPTIONS: Final[dict[PictureFormat, list[str]]] = {"svg": [], "png": [f"-Gdpi={_DPI}"], "pdf": []}
_ENDS: Final[dict[PictureFormat, tuple[bytes, bytes]]] = {
    "svg": (b"<svg", b"</svg>"),
    "png": (b"\x89PNG", b"IEND"),
    "pdf": (b"%PDF", b"%%EOF"),
}
"""What stands near the beginning and the end of a picture that is whole."""
_MOST_PIXELS: Final = 64_000_000
"""Of a raster picture: 256 MB in memory. Graphviz would shrink one that is far larger, silently."""
_DATE: Final = re.compile(rb"(/(?:CreationDate|ModDate) \(D:)[0-9]{14}")
"""The time that is in a pdf: the same input is to give the same bytes."""
_SIZE: Final = re.compile(rb'<svg width="([0-9.]+)pt" height="([0-9.]+)pt"')
_GET: Final = (
    "install pygraphviz (pip install pygraphviz), or Graphviz; -f dot and --engine builtin need"
    " neither"
)


def has_graphviz() -> bool:
    """Whether there is anything to draw with."""
    return shutil.which("dot") is not None or _has_pygraphviz()


def _has_pygraphviz() -> bool:
    try:
        return importlib.util.find_spec("pygraphviz") is not None
    except (ImportError, ValueError):  # something keeps it from being imported
        return False


def draw_dot(dot: str, format: PictureFormat, *, timeout: float = 30.0) -> bytes:  # noqa: A002 - the word of the command line
    """The picture of some DOT text; in an svg, tooltips are ``title`` elements.

    Args:
        dot: The text.
        format: ``svg``, ``png`` or ``pdf``.
        timeout: Seconds; the child is ended when they are over.

    Raises:
        RenderError: There is no Graphviz, or it failed, or wrote something else.
        TooLargeError: It took too long, or the picture is over the limit of its format.
    """
    until = time.monotonic() + timeout
    if format == "png":
        _check_raster(_drawn(dot, "svg", until, timeout))
    data = _drawn(dot, format, until, timeout)
    if format == "pdf":
        return _DATE.sub(rb"\g<1>19700101000000", data)  # as long, as a pdf counts its bytes
    return with_titles(data.decode(errors="replace")).encode() if format == "svg" else data


def keep_dot(dot: str, place: Path, error: TooLargeError) -> None:
    """Leave the DOT text beside a picture that cannot be drawn, and let the error say where.

    Of ``a.svg`` it is ``a.svg.dot``: ``a.dot`` may be somebody's own.

    Args:
        dot: The text.
        place: Where the picture was to be.
        error: Why it is not there.

    Raises:
        UsageError: The place cannot be written.
    """
    kept = write_bytes(place.with_name(f"{place.name}.dot"), dot.encode())
    error.fix = f"{error.fix}; the DOT text is in {kept}"


def _drawn(dot: str, picture_format: PictureFormat, until: float, timeout: float) -> bytes:
    """What the child writes, if that is a picture."""
    code, data, complaint = _run(dot, picture_format, until, timeout)
    if "too large" in complaint:
        _refuse_size(picture_format, _last_line(complaint))
    first, last = _ENDS[picture_format]
    if code != 0 or not data:
        why = _last_line(complaint) or (
            f"it was ended by signal {-code}" if code < 0 else f"exit status {code}"
        )
        raise RenderError("Graphviz failed", why=why, fix=_GET)
    if first not in data[:2048] or last not in data[-2048:]:
        raise RenderError(
            f"Graphviz wrote no {picture_format}",
            why=f"it wrote {len(data):,} bytes of something else",
            fix=f"see what {_command()[0]} is; {_GET}",
        )
    return data


def _run(
    dot: str, picture_format: PictureFormat, until: float, timeout: float
) -> tuple[int, bytes, str]:
    """Exit status, output and complaints of the child, which never outlives this call."""
    try:
        # A session of its own: what the child starts (a wrapper's program) is ended with it.
        child = subprocess.Popen(
            [*_command(), *_arguments(picture_format)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise RenderError("Graphviz does not start", why=error.strerror, fix=_GET) from None
    with child:
        try:
            out, err = child.communicate(dot.encode(), max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TooLargeError(
                f"the picture was not ready after {timeout:g} s",
                why=f"Graphviz was laying out {len(dot):,} characters of DOT",
                fix="draw less (--depth, --root, --max-nodes), or allow more (--timeout)",
            ) from None
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
    return child.returncode, out, err.decode(errors="replace")


def _command() -> list[str]:
    program = shutil.which("dot")
    if program is not None:
        return [program]
    if not _has_pygraphviz():
        raise RenderError(
            "there is no Graphviz", why="no dot on PATH and no pygraphviz installed", fix=_GET
        )
    # -P: a folder that happens to be the current one is no place to import from.
    return [sys.executable, "-P", "-c", _CHILD]


def _arguments(picture_format: PictureFormat) -> list[str]:
    options = _OPTIONS[picture_format]
    if shutil.which("dot") is not None:
        return [f"-T{picture_format}", *options]
    return [picture_format, *options]


def _check_raster(svg: bytes) -> None:
    """Refuse before anything is drawn: by then it is either shrunken or has filled the memory."""
    found = _SIZE.search(svg)
    if found is None:
        return
    width, height = (float(size) * _DPI / 72 for size in found.groups())
    if width * height > _MOST_PIXELS:
        _refuse_size(
            "png",
            f"it would have {width:,.0f} x {height:,.0f} pixels, {_MOST_PIXELS:,} is the most",
        )


def _refuse_size(picture_format: PictureFormat, why: str) -> NoReturn:
    raise TooLargeError(
        f"the picture is too large for {picture_format}",
        why=why,
        fix="write svg, or draw less (--depth, --root, --max-nodes)",
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
