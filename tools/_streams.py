"""What a command writes: answers to stdout, everything else to stderr.

A reader that leaves ends a command quietly; a full disk is one line; a stream that was closed
before the start is one that nobody reads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, TextIO

__all__ = ["answering", "prepare_streams", "tell"]

_BROKEN_PIPE: Final = 141  # what a shell reports of a program that SIGPIPE ended
_LONGEST_LINE: Final = 4000


def prepare_streams() -> None:
    """Make both streams take whatever a name may hold, and stand in for those that are closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def answering() -> Iterator[TextIO]:
    """Stdout to write to; flushed at the end.

    Raises:
        UsageError: It cannot be written.
        SystemExit: Nobody reads it any more.
    """
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_the_rest()
        raise SystemExit(_BROKEN_PIPE) from None
    except OSError as error:
        _drop_the_rest()
        from hpx.errors import UsageError

        raise UsageError("cannot write to stdout", why=error.strerror) from None


def _drop_the_rest() -> None:
    # What is still in the buffer must not fail once more when Python ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _clipped(line: str) -> str:
    """The line, or its ends: what a user gave may be of any length."""
    over = len(line) - _LONGEST_LINE
    if over <= 0:
        return line
    half = _LONGEST_LINE // 2
    return f"{line[:half]} ... {over:,} characters ... {line[-half:]}"


def tell(text: str) -> None:
    """A line on stderr; nothing if nobody can read it."""
    from hpx._text import printable_lines

    lines = "\n".join(map(_clipped, printable_lines(text).split("\n")))
    with suppress(OSError):
        print(lines, file=sys.stderr, flush=True)
