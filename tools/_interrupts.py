"""Ctrl-C that nobody loses.

Python raises KeyboardInterrupt wherever the program happens to be. Inside the import of a large
library that may be caught and forgotten, and the work goes on to its end; or the import fails later
on with an error of its own.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self

__all__ = ["Interrupts"]


class Interrupts:
    """Remembers an interrupt; whatever else ends the block then, it ends with that interrupt."""

    def __init__(self) -> None:
        self._seen = False
        self._installed = False

    def __enter__(self) -> Self:
        # Who ignores interrupts, or handles them in another way, is left alone.
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if usual and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._installed = False
        self.check()

    def check(self) -> None:
        """Raise the interrupt once more if there was one."""
        if self._seen:
            raise KeyboardInterrupt

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self._seen = True
        raise KeyboardInterrupt
