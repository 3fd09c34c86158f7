"""Progress on stderr, for work that takes more than a second: who waits reads what is going on."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from hpx.tools._interrupts import Interrupts
from hpx.tools._streams import tell

if TYPE_CHECKING:
    from rich.status import Status

__all__ = ["Progress"]

_PATIENCE: Final = 1.0


class Progress:
    """Says what is being done once a second has passed; says nothing about quick work.

    An interrupt ends the work at the next step at the latest.

    On a terminal the line is replaced as the work goes on, and gone at its end; elsewhere every
    step is one plain line.

    Args:
        what: What is done first.
        program: Who says it.
        quiet: Say nothing at all.
    """

    def __init__(self, what: str, program: str = "hpx", *, quiet: bool = False) -> None:
        self._what = what
        self._program = program
        self._quiet = quiet
        self._interrupts = Interrupts()
        self._lock = threading.Lock()
        self._shown = False
        self._closed = False
        self._status: Status | None = None
        self._timer = threading.Timer(_PATIENCE, self._show)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._interrupts.__enter__()
        if not self._quiet:
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._status is not None:
                self._status.stop()
        self._interrupts.__exit__(kind, error, trace)

    def say(self, what: str) -> None:
        """What is done from now on."""
        self._interrupts.check()
        with self._lock:
            self._what = what
            if self._shown:
                self._print()

    def step(self, number: int, total: int, name: str) -> None:
        """A step of a pipeline begins."""
        self.say(f"step {number} of {total}: {name}")

    def _show(self) -> None:
        with self._lock:
            if not self._closed:
                self._shown = True
                self._print()

    def _print(self) -> None:
        if not sys.stderr.isatty():
            tell(f"{self._program}: {self._what}")
            return
        if self._status is None:
            from rich.console import Console

            self._status = Console(stderr=True).status(self._what)
            self._status.start()
        self._status.update(self._what)
